"""Painted attention scores, and how each scorer ranks their blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.numbers import percent
from analysis.xattention.scores import MODES, block_scores, kept_shares, select

SIDE, BLOCK = 64, 8
STRENGTH = 6.0
"""Score of a painted pair; all others score 0, so that it draws e^6, four hundred times, the attention."""
MOST = 12.0
_TIE = 1e-4
_AHEAD = 0.05


@dataclass(frozen=True)
class Preset:
    """A pattern to begin with.

    Attributes:
        label: its name.
        said: what becomes of it, in a sentence.
    """

    label: str
    said: str


PRESETS = {
    "vertical": Preset("Vertical", "A key that all later tokens look at: every antidiagonal crosses its column."),
    "slash": Preset(
        "Slash",
        "Tokens that look 19 back: antidiagonals cross lines at odd distances; large strides in fewer tiles.",
    ),
    "spot": Preset(
        "Spot", "A few tokens that look at a few others: any sampling that reads each row and column finds it."
    ),
    "sink": Preset("Sink", "The first tokens draw everything: that block is kept whatever it scores."),
    "even": Preset(
        "Even slash",
        "Tokens that look 20 back. On an antidiagonal of an even stride the distance of query and key is always odd, "
        "so a line one token wide at an even distance is never read: the antidiagonals see nothing here.",
    ),
    "checkerboard": Preset(
        "Checkerboard",
        "Only pairs at an even distance count in this spot, and the antidiagonals read those at odd ones; the "
        "diagonals read the others.",
    ),
    "signs": Preset(
        "Cancelling signs",
        "Every other query looks at this stripe, and those between look away as strongly: a tile's mean is 0 for every "
        "sampling, since each reads every query once.",
    ),
}


def paint(name: str) -> np.ndarray:
    """(SIDE, SIDE) scores of a preset; pairs whose key comes later are 0."""
    i, j = np.arange(SIDE)[:, None], np.arange(SIDE)[None, :]
    stripe = (j >= 16) & (j < 24) & (i >= 32)
    found = {
        "vertical": j == 21,
        "slash": i - j == 19,
        "spot": (abs(i - 51) < 4) & (abs(j - 20) < 4),
        "sink": j < 2,
        "even": i - j == 20,
        "checkerboard": (abs(i - 51) < 5) & (abs(j - 20) < 5) & ((i + j) % 2 == 0),
        "signs": stripe * np.where(i % 2 == 0, 1, -1),
    }[name]
    return np.tril(np.broadcast_to(STRENGTH * found, (SIDE, SIDE))).astype(np.float32)


@dataclass(frozen=True)
class Judged:
    """What one scorer makes of the painted scores.

    Attributes:
        mode: the scorer.
        share: (n, n) share of each row's sampled attention.
        rank: (n, n) place in its row, from 1; equal scores share a place.
        kept: (n, n) bool.
        recall: attention in the kept blocks.
    """

    mode: str
    share: np.ndarray
    rank: np.ndarray
    kept: np.ndarray
    recall: float


def judge(scores: np.ndarray, stride: int, count: int) -> tuple[list[Judged], np.ndarray, float]:
    """Score and cut the painted blocks with every scorer, the same number of blocks in every row.

    Args:
        scores: (N, N) scores of pairs.
        stride: tokens a side of a tile.
        count: blocks that every row keeps, the forced ones among them: at least 2.

    Returns:
        One for each of ``MODES``, the (n, n) true share of each row's attention, and the share of pairs kept.
    """
    # With the identity for keys, the product of queries and keys is the painted score itself.
    q, k = scores[None].astype(np.float32), np.eye(len(scores), dtype=np.float32)[None]
    every = {m: block_scores(q, k, block=BLOCK, stride=stride, mode=m, scale=1.0)[0] for m in MODES}
    true, found, pairs = every["oracle"], [], 0.0
    for mode, table in every.items():
        kept = np.zeros(table.shape, bool)
        np.put_along_axis(kept, select(table, 0.0).order[:, :count], True, axis=1)
        kept &= np.tril(np.ones_like(kept))
        share = table / np.maximum(table.sum(1, keepdims=True), 1e-30)
        higher = np.tril(np.ones_like(kept))[:, None, :] & (share[:, None, :] > share[:, :, None] + _TIE)
        held = kept_shares(kept, true, len(scores), BLOCK)
        pairs = float(held[0])
        found.append(Judged(mode, share, 1 + higher.sum(2), kept, float(held[1])))
    return found, true / np.maximum(true.sum(1, keepdims=True), 1e-30), pairs


def verdict(judged: list[Judged], pairs: float, *, painted: bool = True) -> str:
    """How the antidiagonals do on this pattern, in one sentence; on none there is nothing to find."""
    if not painted:
        return "Nothing is painted: attention is even, and no block holds more than its pairs. Paint on the canvas."
    recall = {one.mode: one.recall for one in judged}
    ours, best = recall["antidiagonal"], recall["oracle"]
    others = " and ".join(f"{percent(recall[m])} ({m})" for m in ("diagonal", "random"))
    if best - ours > _AHEAD:
        how = f"The antidiagonals miss it: {percent(ours)} of the attention, and the best blocks hold {percent(best)}"
    else:
        how = f"The antidiagonals find it: {percent(ours)} of the attention, of {percent(best)} in the best blocks"
    return f"{how}; {others}, with {percent(pairs)} of the pairs each."
