"""The tabs of the page about token groups, one module each, with ``render(page)``."""
