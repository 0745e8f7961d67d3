"""One file a page; each defines ``VIEW``."""
