"""Kinds of work that need no torch."""
