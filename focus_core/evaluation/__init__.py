"""What a variant costs in quality, and whether it keeps its promises."""
