"""The app's colours. One group is one colour and one letter on every page; pairs have colours of their own."""

from __future__ import annotations

GROUPS = (
    "#5b5acc",
    "#d9c472",
    "#db5566",
    "#66acfd",
    "#9d70af",
    "#18e1b3",
    "#ac3a5a",
    "#b4c1f5",
    "#cb8dcb",
    "#677501",
    "#8b81f6",
    "#fc9225",
    "#9bb07f",
    "#c07f17",
    "#934498",
    "#3b907c",
)
"""Sixteen colours that stay apart under simulated protanopia, deuteranopia and tritanopia, on white and on black
(smallest OKLab distance 0.07; found by maximising it), most different first."""

LETTERS = "ABCDEFGHIJKLMNOP"

KEPT, DROPPED, LOST, WINDOW, SINK = "#2f7fe0", "#b9bec7", "#f08a24", "#12a594", "#3a3f4b"
"""Pairs: computed; not computed; not computed although dense attention wanted it; nearby; first tokens."""

PAIRS = {"kept": KEPT, "dropped": DROPPED, "lost": LOST, "window": WINDOW, "sink": SINK}

SECOND = "#e6b422"
"""Pairs that only the second of two masks keeps; the first's are ``KEPT``. Blue and yellow stay apart for all eyes."""

WORSE, BETTER = "#e0622f", "#2f7fe0"
"""Ends of a difference around zero: less likely than dense, more likely."""


def group_color(group: int) -> str:
    """Colour of a group; groups beyond 16 repeat the colours and differ by their label."""
    return GROUPS[group % len(GROUPS)]


def group_label(group: int) -> str:
    """``A`` to ``P``, then ``A2`` ... for groups beyond 16."""
    turn, letter = divmod(group, len(GROUPS))
    return LETTERS[letter] + (str(turn + 1) if turn else "")


def groups_of(bits: int) -> list[int]:
    """The groups in one int64 set, ascending."""
    bits &= (1 << 64) - 1
    return [g for g in range(64) if bits >> g & 1]
