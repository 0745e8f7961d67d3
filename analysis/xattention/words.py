"""What a picked block's fate is, and what a head keeps, in sentences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.numbers import percent
from analysis.xattention.scores import Selection


@dataclass(frozen=True)
class Place:
    """Where a block stands in the cut that decides about it.

    Attributes:
        voter: row whose queries decide.
        kept: whether the block is computed.
        why: ``own``, ``sink``, ``neighbour``, ``all``, ``taken`` or ``dropped``.
        rank: place in the order of taking, from 1; 0 for an own block that nobody decides about.
        of: blocks that the voter's row has.
        before: share of the row's score held by those before it.
        share: the block's own share of the row's score.
    """

    voter: int
    kept: bool
    why: str
    rank: int
    of: int
    before: float
    share: float


def place(selection: Selection, row: int, column: int, voters: str, threshold: float) -> Place:
    """Where the block of ``row`` and ``column`` (from 0, causal) stands."""
    voter = row if voters == "own" or row == 0 else row - 1
    of = voter + 1
    if column > voter:
        return Place(voter, True, "own", 0, of, 0.0, 0.0)
    at = int(np.flatnonzero(selection.order[voter] == column)[0])
    before = float(selection.reached[voter, at - 1]) if at else 0.0
    share = float(selection.reached[voter, at]) - before
    kept = bool(selection.mask[voter, column]) or column == row
    if column == row:
        why = "own"
    elif column == 0:
        why = "sink"
    elif column == voter:
        why = "neighbour"
    elif threshold >= 1:
        why = "all"
    else:
        why = "taken" if kept else "dropped"
    return Place(voter, kept, why, at + 1, of, before, share)


def why(found: Place, row: int, threshold: float, voters: str) -> str:
    """Why the block was kept or dropped, in one sentence or two."""
    cut = percent(threshold)
    who = "its own queries" if voters == "own" else f"the queries of block {found.voter + 1}"
    chosen = "" if voters == "own" else f"Chosen for block {row + 1} by {who}, so that no later token has a say. "
    held = f"the {found.rank - 1} before it hold {percent(found.before)} of their sampled attention"
    if found.why == "own":
        return "Kept whatever it scores: a token always sees its own block."
    if found.why == "sink":
        return f"{chosen}Kept whatever it scores: the first block holds the attention sink ({percent(found.share)})."
    if found.why == "neighbour":
        return f"{chosen}Kept whatever it scores: it is the choosing queries' own block ({percent(found.share)})."
    if found.why == "all":
        return f"{chosen}Kept: a threshold of 1 keeps every block."
    rank = f"Number {found.rank} of {found.of}"
    if found.why == "taken":
        return f"{chosen}Kept. {rank}: {held}, short of {cut}, so it is taken."
    return f"{chosen}Dropped. {rank}: {held}, and {cut} was enough."


def answer(*, layer: int, head: int, stride: int, mode: str, pairs: float, mass: float, best: float) -> str:
    """What the head's blocks keep: how they are chosen and what they hold.

    Args:
        layer: shown layer.
        head: shown head.
        stride: tokens a side of a tile.
        mode: the scorer.
        pairs: share of the pairs that is kept.
        mass: share of dense attention on them.
        best: what the best blocks would hold at the same share of pairs.
    """
    if mode == "oracle":
        how = "every score"
    elif mode == "random":
        how = f"one score in {stride}, at random"
    else:
        how = f"one score in {stride}, on {mode}s"
    rest = "" if mode == "oracle" else f"; the best blocks for as many pairs hold {percent(best)}"
    return (
        f"In layer {layer}, head {head}, XAttention chooses blocks by {how}. They are {percent(pairs)} of the pairs "
        f"and hold {percent(mass)} of dense attention{rest}."
    )
