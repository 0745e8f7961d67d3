"""Parts of the KV cache page."""
