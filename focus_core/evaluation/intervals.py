"""Intervals of shares that were counted."""

from __future__ import annotations

import math


def wilson(right: int, of: int, z: float = 1.96) -> tuple[float, float] | None:
    """Wilson's score interval of a share, 95 % by default; it stays within 0 and 1 however few were counted.

    Args:
        right: how many.
        of: of how many.
        z: standard deviations.

    Returns:
        Both ends; None where nothing was counted.
    """
    if not of:
        return None
    share, spread = right / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
