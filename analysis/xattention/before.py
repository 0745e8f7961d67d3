"""What came before: blocks chosen by their place alone, as many in every row as a content-based choice keeps.

Sliding window and global tokens: Longformer (arXiv 2004.05150); with random blocks: BigBird (arXiv 2007.14062). Both
are encoders' methods; here they look back only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.numbers import percent
from analysis.xattention.head import Head
from analysis.xattention.scores import kept_shares


@dataclass(frozen=True)
class Placed:
    """A pattern of one head.

    Attributes:
        title: its name.
        meaning: what it keeps.
        kept: (n, n) bool.
        pairs: share of the pairs that is kept.
        mass: share of dense attention on them.
    """

    title: str
    meaning: str
    kept: np.ndarray
    pairs: float
    mass: float


MEANING = {
    "Sliding window": "The nearest blocks.",
    "Global": "The first blocks, and the row's own.",
    "Random": "Blocks drawn by chance, and the row's own.",
    "Longformer": "The first block and the nearest ones.",
    "BigBird": "The first block, and of the rest half the nearest and half by chance.",
    "XAttention": "What the picture above keeps.",
    "Best blocks": "Those with most dense attention: none can keep more with as many blocks.",
}


_NAMES = {"Sliding window": "the sliding window", "Global": "the global pattern", "Random": "chance"}


def by_place(kind: str, counts: np.ndarray, seed: int = 0) -> np.ndarray:
    """(n, n) bool: row i keeps ``counts[i]`` of its blocks 0 to i, its own always among them."""
    n, rng = len(counts), np.random.default_rng(seed)
    kept = np.eye(n, dtype=bool)
    for row, count in enumerate(counts):
        more = int(count) - 1
        nearest = np.arange(row - 1, -1, -1)
        first = min(1, more) if kind in ("Longformer", "BigBird") else 0
        kept[row, :first] = True
        if kind == "Global":
            chosen = nearest[::-1]
        elif kind == "Random":
            chosen = rng.permutation(row)
        else:
            chosen = nearest[nearest >= first]
        if kind == "BigBird":
            near = (more - first + 1) // 2
            chosen = np.concatenate([chosen[:near], rng.permutation(chosen[near:])])
        kept[row, chosen[: more - first]] = True
    return kept


def patterns(head: Head) -> list[Placed]:
    """Every pattern of ``MEANING`` with the head's own number of blocks in each row."""
    counts = head.kept.sum(1)
    found = []
    for title, meaning in MEANING.items():
        if title == "XAttention":
            kept = head.kept
        elif title == "Best blocks":
            order = np.argsort(-np.where(np.tri(head.blocks, dtype=bool), head.true, -1.0), axis=1, kind="stable")
            kept = np.zeros_like(head.kept)
            np.put_along_axis(kept, order, np.arange(head.blocks)[None, :] < counts[:, None], axis=1)
        else:
            kept = by_place(title, counts)
        pairs, mass = kept_shares(kept, head.true, head.count, head.setting.block)
        found.append(Placed(title, meaning, kept, float(pairs), float(mass)))
    return found


def sentence(found: list[Placed]) -> str:
    """How far place alone gets, in one sentence."""
    mass = {one.title: one.mass for one in found}
    placed = {t: m for t, m in mass.items() if t not in ("XAttention", "Best blocks")}
    best = max(placed, key=placed.__getitem__)
    ours, gap = mass["XAttention"], mass["XAttention"] - placed[best]
    name = _NAMES.get(best, best)
    if abs(gap) < 0.001:
        how = f"{name} keeps as much of this head's attention as XAttention"
    else:
        way = "less" if gap > 0 else "more"
        how = f"{name} keeps {100 * abs(gap):.2g} points {way} of this head's attention than XAttention"
    return f"By place alone, {how} ({percent(placed[best])} and {percent(ours)}), with as many blocks in every row."
