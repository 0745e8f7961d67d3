"""Parts of the page Vision."""
