"""Scripts that made what ships in ``data``; each can be run again."""
