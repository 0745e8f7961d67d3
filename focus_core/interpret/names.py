"""What is a group about? The attribute that tells best who is in it, held against groups shuffled over the tokens.

How well an attribute tells it: the share of the membership's entropy that the attribute's value removes (Theil's
uncertainty coefficient), less what shuffled groups of the same sizes reach, so that an attribute of many values wins
nothing by them. A group is named only where this is above every shuffle's best attribute, and above ``LEAST``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from focus_core.interpret.attributes import Attribute

LEAST = 0.05
"""Share of a membership's entropy that an attribute must remove to name it: with thousands of tokens less is
significant too, and says nothing."""
AS_GOOD = 0.95
"""Attributes that reach so much of the best one's share count as good; the one with the fewest values names."""
SHUFFLES = 20
_MOST, _RARE = 3, 0.01


@dataclass(frozen=True)
class Name:
    """What one group is about.

    Attributes:
        attribute: the attribute's name; None where nothing tells who is in the group.
        says: its values in words, most telling first, or ``nothing found``.
        explained: share of the membership's entropy that the attribute removes beyond shuffled groups, 0 to 1; of the
            best attribute where none names.
        covers: share of the group's tokens that have these values. lift: that over the share of all tokens.
        null: the largest ``explained`` of any attribute in any shuffle.
    """

    attribute: str | None
    says: str
    explained: float
    covers: float
    lift: float
    null: float


def explained(joined: np.ndarray, values: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Share of each group's membership entropy that each attribute removes.

    Args:
        joined: (N, K) bool memberships.
        values: (N, V) one column a value, all attributes side by side.
        sizes: number of values of each attribute, V in all.

    Returns:
        (K, attributes), 0 to 1; 0 for a group of no token or of all.
    """
    n = len(joined)
    inside = joined.T.astype(np.float32) @ values
    total = values.sum(0)
    whole = _bits(joined.mean(0))
    p = inside / np.maximum(total, 1e-9)
    left = total / max(1, n) * _bits(p)
    ends = np.cumsum(sizes)
    each = np.stack([left[:, e - s : e].sum(1) for e, s in zip(ends, sizes, strict=True)], 1)
    safe = np.maximum(whole, 1e-12)[:, None]
    return np.where(whole[:, None] > 1e-9, np.clip(1 - each / safe, 0, 1), 0.0)


def _bits(p: np.ndarray) -> np.ndarray:
    p = np.clip(np.asarray(p, float), 0.0, 1.0)
    q = 1 - p
    return -(p * np.log2(np.where(p > 0, p, 1.0)) + q * np.log2(np.where(q > 0, q, 1.0)))


def columns(known: Sequence[Attribute]) -> np.ndarray:
    """(N, V) float32: one column a value of every attribute."""
    return np.concatenate([np.eye(len(a.values), dtype=np.float32)[a.codes] for a in known], 1)


def names(
    joined: np.ndarray, known: Sequence[Attribute], rng: np.random.Generator, *, values: np.ndarray | None = None
) -> list[Name]:
    """Name every group from the data.

    Args:
        joined: (N, K) bool memberships.
        known: attributes of the same tokens.
        rng: source of the shuffles.
        values: ``columns(known)``, where it is at hand.
    """
    values = columns(known) if values is None else values
    sizes = [len(a.values) for a in known]
    found = explained(joined, values, sizes)
    draws = np.stack([explained(joined[rng.permutation(len(joined))], values, sizes) for _ in range(SHUFFLES)])
    chance = draws.mean(0)
    net = (found - chance) / np.maximum(1 - chance, 1e-9)
    null = ((draws - chance) / np.maximum(1 - chance, 1e-9)).max((0, 2))
    inside = joined.T.astype(np.float32) @ values
    named = []
    for g in range(joined.shape[1]):
        best = float(net[g].max())
        if best <= max(LEAST, float(null[g])):
            named.append(Name(None, "nothing found", max(0.0, best), 0.0, 1.0, float(null[g])))
            continue
        as_good = [i for i in range(len(known)) if net[g, i] >= AS_GOOD * best]
        chosen = min(as_good, key=lambda i: (sizes[i], -net[g, i]))
        start = sum(sizes[:chosen])
        part = slice(start, start + sizes[chosen])
        says, covers, lift = _values(known[chosen], inside[g, part], values[:, part].sum(0))
        named.append(Name(known[chosen].name, says, float(net[g, chosen]), covers, lift, float(null[g])))
    return named


def _values(attribute: Attribute, inside: np.ndarray, total: np.ndarray) -> tuple[str, float, float]:
    """The few values, or all but a few, that tell most about who is in the group; one range of an ordered attribute.

    The best split into two sets is one of the values' order by how much of each is in the group (Breiman 1984, theorem
    4.5), so only those are tried.
    """
    of_group, of_all = inside / max(1.0, inside.sum()), total / max(1.0, total.sum())
    share, count = float(inside.sum() / max(1.0, total.sum())), len(total)
    if attribute.ranged is not None:
        splits = [(attribute.ranged(a, b), np.arange(a, b + 1)) for a in range(count) for b in range(a, count)]
    else:
        # A value of few tokens can be in the group by chance, and would take a place in its name.
        there = np.flatnonzero((of_all >= _RARE) | (of_group >= 3 * _RARE))
        order = there[np.argsort(-(inside[there] / total[there]), kind="stable")]
        cuts = {*range(1, _MOST + 1), *range(len(order) - _MOST, len(order))}
        splits = [(_said(attribute.values, order, cut), order[:cut]) for cut in sorted(cuts) if 0 < cut < len(order)]
    best, found = (-1.0, 0), (attribute.name, 1.0, 1.0)
    for said, values in splits:
        mine, every = float(of_group[values].sum()), float(of_all[values].sum())
        if not 0 < every < 1 or mine < every:
            continue
        within, outside = _bits(np.array([share * mine / every, share * (1 - mine) / (1 - every)]))
        told = float(_bits(np.array(share)) - every * within - (1 - every) * outside)
        # Of ranges that differ by values that no token has, the widest.
        if (rank := (round(told, 9), len(values))) > best:
            best, found = rank, (said, mine, mine / every)
    return found


def _said(values: Sequence[str], order: np.ndarray, cut: int) -> str:
    few = cut <= _MOST
    names = [values[v] for v in (order[:cut] if few else order[cut:])]
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return listed if few else f"all but {listed}"
