"""Set-up, and what makes the pictures of the README."""
