"""What a model can do beside its training text: grammar, finding what it read, following instructions, refusing.

Each task is asked twice: bare, and behind a shipped passage that is longer than any shipped window, since a variant
with a window is dense attention by definition on a text that fits into it.
"""
