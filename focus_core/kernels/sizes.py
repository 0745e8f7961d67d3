"""Bytes that cached forms take: known without torch, so that a page can count what a cache would hold."""

from __future__ import annotations


def code_bytes(features: int, itemsize: int, select: str = "features") -> int:
    """Bytes of one key's code in one head: 3k in a 16-bit type, 2.5k as pairs, 2k as a short embedding."""
    return features * itemsize + {"features": features, "pairs": features // 2, "first": 0}[select]
