"""What the figures of a comparison share: one colour a variant, one symbol a setting."""

from __future__ import annotations

from html import escape
from typing import Any

from analysis.comparison import scored
from analysis.palette import GROUPS, KEPT, WINDOW
from analysis.style import QUIET

EMPTY = "Nothing measured yet. Run a comparison."
SYMBOLS = ("circle", "square", "triangle-up", "star", "pentagon", "triangle-down", "hexagram", "cross")
DASHES = ("solid", "longdash", "longdashdot", "dashdot")
_COLOURS = {"dense": QUIET, "focus": KEPT, "window": WINDOW, "random": GROUPS[4], "kmeans": GROUPS[13]}
_COLOURS |= {"bigbird": GROUPS[2], "routing": GROUPS[9]}


def colour(variant: str) -> str:
    """A variant's colour, the same in every figure."""
    if variant in _COLOURS:
        return _COLOURS[variant]
    return GROUPS[sum(map(ord, variant)) % len(GROUPS)]


def turns(result: dict[str, Any]) -> dict[str, int]:
    """Which setting of its variant each line (by key) is: 0 for the first."""
    seen: dict[str, int] = {}
    found: dict[str, int] = {}
    for row in scored(result):
        if row["key"] not in found:
            found[row["key"]] = seen.get(row["variant"], 0)
            seen[row["variant"]] = found[row["key"]] + 1
    return found


def name_of(row: dict[str, Any]) -> str:
    """A line's label, safe in a figure's text."""
    return escape(row["label"])
