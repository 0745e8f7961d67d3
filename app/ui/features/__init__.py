"""Parts of the page Features."""
