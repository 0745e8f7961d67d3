"""What one layer's mask keeps and loses: lost pairs, two masks over each other, shares by distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.numbers import percent
from focus_core.head_statistics import sampled_rows
from focus_core.pattern import GroupPattern, Pattern
from focus_core.pattern_blocks import BlockPattern
from focus_core.trace import Trace

CORE = 0.9
"""Lost: a dropped key in the smallest set that holds this much of the query's dense attention."""
MAX_CELLS = 2_000_000


@dataclass(frozen=True)
class LostPairs:
    """Lost pairs of some queries.

    Attributes:
        rows: (R,) queries, ascending.
        start: (R + 1,) where each row's keys begin in ``keys``.
        keys: (M,) lost keys, ascending within a row.
        mass: (M,) their dense attention mass, 0 to 1.
        dropped: (R,) dense mass of all dropped keys of each row.
    """

    rows: np.ndarray
    start: np.ndarray
    keys: np.ndarray
    mass: np.ndarray
    dropped: np.ndarray

    @property
    def share(self) -> float:
        """Lost pairs over these rows' causal pairs."""
        pairs = int((self.rows + 1).sum())
        return len(self.keys) / pairs if pairs else 0.0

    @property
    def lost_mass(self) -> float:
        """Dense mass of the lost pairs, mean over the rows."""
        return float(self.mass.sum()) / len(self.rows) if len(self.rows) else 0.0


def rows_for(count: int, begin: int = 0, end: int | None = None, cells: int = MAX_CELLS) -> slice:
    """Queries from ``begin`` to ``end``, evenly spread so that their rows hold at most ``cells`` cells."""
    end = count if end is None else end
    step = max(1, -(-(end - begin) * count // cells))
    return slice(begin + min(step - 1, end - begin - 1), end, step)


def dense_rows(trace: Trace, layer: int, rows: slice, heads: list[int]) -> np.ndarray:
    """(R, N) float32 dense attention of these queries, mean over ``heads``; zero after each query."""
    q, k = trace.arrays[f"queries.{layer}"], trace.arrays[f"keys.{layer}"]
    p, n, share = trace.provenance, len(trace), q.shape[0] // k.shape[0]
    i, j = np.arange(*rows.indices(n))[:, None], np.arange(n)[None, :]
    seen = j <= i
    if (own := p["native"][layer]) is not None:
        seen &= i - j < own
    total = np.zeros(seen.shape, np.float32)
    for head in heads:
        s = q[head, rows].astype(np.float32) @ k[head // share].astype(np.float32).T
        s *= p["scale"]
        if cap := p["softcap"]:
            s = cap * np.tanh(s / cap)
        s[~seen] = -np.inf
        s -= s.max(1, keepdims=True)
        np.exp(s, out=s)
        total += s / s.sum(1, keepdims=True)
    return total / len(heads)


def lost_pairs(trace: Trace, layer: int, rows: slice, heads: list[int]) -> LostPairs | None:
    """Lost pairs of these queries; None where q and k of the layer were not recorded.

    Args:
        trace: the run.
        layer: its layer.
        rows: queries.
        heads: query heads whose dense attention is averaged; one router serves them all.
    """
    if f"queries.{layer}" not in trace.arrays:
        return None
    mass = dense_rows(trace, layer, rows, heads)
    kept = trace.pattern(layer).tile(0, heads[0], rows, slice(0, len(trace)))
    falling = -np.sort(-mass, axis=1)
    reached = np.cumsum(falling, axis=1, dtype=np.float64)
    needed = (reached < CORE * reached[:, -1:]).sum(1)
    core = mass >= np.take_along_axis(falling, needed[:, None], 1)
    lost = core & ~kept
    row, keys = np.nonzero(lost)
    queries = np.arange(*rows.indices(len(trace)))
    start = np.concatenate([[0], np.cumsum(lost.sum(1))])
    return LostPairs(queries, start, keys, mass[row, keys], np.where(kept, 0, mass).sum(1))


@dataclass(frozen=True)
class Overlay:
    """Shares of the causal pairs by which of two masks keep them; ``rows`` queries of ``count`` were counted."""

    both: float
    first: float
    second: float
    rows: int
    count: int

    @property
    def neither(self) -> float:
        """Share that both drop."""
        return max(0.0, 1 - self.both - self.first - self.second)

    @property
    def agreement(self) -> float:
        """Kept by both over kept by at least one (Jaccard)."""
        kept = self.both + self.first + self.second
        return self.both / kept if kept else 1.0


def overlay(first: Pattern, second: Pattern, head: int, other_head: int, cells: int = 4 * MAX_CELLS) -> Overlay:
    """Count two masks over each other: all rows, or evenly spread ones where that is more than ``cells`` cells."""
    n = first.keys
    rows = rows_for(n, cells=cells)
    queries = np.arange(*rows.indices(n))
    counts = np.zeros(3, np.int64)
    chunk = max(1, MAX_CELLS // n)
    for at in range(0, len(queries), chunk):
        part = slice(int(queries[at]), int(queries[min(at + chunk, len(queries)) - 1]) + 1, rows.step)
        a, b = first.tile(0, head, part, slice(0, n)), second.tile(0, other_head, part, slice(0, n))
        counts += [int((a & b).sum()), int((a & ~b).sum()), int((b & ~a).sum())]
    both, one, two = (counts / max(1, int((queries + 1).sum()))).tolist()
    return Overlay(both, one, two, len(queries), n)


@dataclass(frozen=True)
class ByDistance:
    """Pairs by their distance, in bins that double.

    Attributes:
        low: (B,) smallest distance of each bin. high: (B,) largest.
        kept: (B,) share of the bin's pairs that are kept.
        mass: (B,) dense attention mass in the bin, mean over the rows; None where q and k were not recorded.
        lost: (B,) that part of it that lies on dropped pairs.
        rows: queries that were counted.
    """

    low: np.ndarray
    high: np.ndarray
    kept: np.ndarray
    mass: np.ndarray | None
    lost: np.ndarray | None
    rows: int


def by_distance(trace: Trace, layer: int, heads: list[int]) -> ByDistance:
    """Share kept, and where dense attention lies, by distance of query and key."""
    n = len(trace)
    rows = rows_for(n)
    queries = np.arange(*rows.indices(n))
    distance = queries[:, None] - np.arange(n)[None, :]
    causal = distance >= 0
    kept = trace.pattern(layer).tile(0, heads[0], rows, slice(0, n))[causal]
    far = distance[causal]
    # 0 is the token itself; then 1, 2-3, 4-7 and so on.
    bins = np.where(far > 0, np.floor(np.log2(np.maximum(far, 1))).astype(int) + 1, 0)
    count = int(bins.max()) + 1
    pairs = np.bincount(bins, minlength=count)
    low = np.concatenate([[0], 2 ** np.arange(count - 1)])
    high = np.minimum(np.concatenate([[0], 2 ** np.arange(1, count) - 1]), n - 1)
    share = np.bincount(bins, kept, minlength=count) / np.maximum(pairs, 1)
    if f"queries.{layer}" not in trace.arrays:
        return ByDistance(low, high, share, None, None, len(queries))
    mass = dense_rows(trace, layer, rows, heads)[causal]
    wanted = np.bincount(bins, mass, minlength=count) / len(queries)
    lost = np.bincount(bins, np.where(kept, 0, mass), minlength=count) / len(queries)
    return ByDistance(low, high, share, wanted, lost, len(queries))


def joined(one: LostPairs, more: LostPairs) -> LostPairs:
    """Both runs of rows together; a row that is in both is taken once."""
    new = [r for r in range(len(more.rows)) if more.rows[r] not in set(one.rows.tolist())]
    parts = [(int(one.rows[r]), one, r) for r in range(len(one.rows))] + [(int(more.rows[r]), more, r) for r in new]
    parts.sort(key=lambda part: part[0])
    cuts = [(of, int(of.start[r]), int(of.start[r + 1]), r) for _, of, r in parts]
    return LostPairs(
        np.array([row for row, _, _ in parts], np.int64),
        np.concatenate([[0], np.cumsum([end - begin for _, begin, end, _ in cuts])]).astype(np.int64),
        np.concatenate([of.keys[begin:end] for of, begin, end, _ in cuts]),
        np.concatenate([of.mass[begin:end] for of, begin, end, _ in cuts]),
        np.array([of.dropped[r] for of, _, _, r in cuts]),
    )


def shares(pattern: GroupPattern | BlockPattern, head: int, lost: LostPairs | None = None) -> dict[str, float]:
    """Share of the causal pairs that each part of the mask keeps, by the first reason that holds.

    Returns:
        ``near`` (window), ``sink``, ``group`` or ``block``, ``dropped``, and ``lost`` where lost pairs are given.
    """
    seen = np.arange(pattern.keys, dtype=np.int64) + 1
    near = np.minimum(seen, pattern.window)
    sink = np.minimum(seen - near, pattern.sinks)
    kept, possible = pattern.kept_per_query(0, head), max(1, int(seen.sum()))
    far = "block" if isinstance(pattern, BlockPattern) else "group"
    found = {"near": near, "sink": sink, far: kept - near - sink, "dropped": seen - kept}
    out = {name: int(count.sum()) / possible for name, count in found.items()}
    return out if lost is None else {**out, "lost": lost.share}


def mass_on(trace: Trace, layer: int, heads: list[int], pattern: Pattern) -> float | None:
    """Dense attention mass of a run that lies on a pattern's pairs, mean over the queries that ``mass_kept`` samples.

    With the run's own pattern it is ``mass_kept`` again but for the rounding of the recorded q and k; on other rows it
    would be another number under the same name. None where q and k of the layer were not recorded.
    """
    if f"queries.{layer}" not in trace.arrays:
        return None
    rows = sampled_rows(len(trace))
    kept = pattern.tile(0, heads[0], rows, slice(0, len(trace)))
    return float((dense_rows(trace, layer, rows, heads) * kept).sum(1).mean())


def heads_text(heads: list[int]) -> str:
    """``head 3``, ``heads 0 and 1`` or ``heads 0 to 2``."""
    if len(heads) == 1:
        return f"head {heads[0]}"
    return f"heads {heads[0]} {'and' if len(heads) == 2 else 'to'} {heads[-1]}"


def answer(trace: Trace, layer: int, heads: list[int], lost: LostPairs | None) -> str:
    """Which pairs are computed and what is lost, in one sentence with this layer's numbers."""
    pattern = trace.pattern(layer)
    kept = pattern.density(0, heads[0])
    where = f"In layer {layer}, {heads_text(heads)},"
    own = trace.provenance["native"][layer]
    if own is not None:
        return (
            f"Layer {layer} is the model's own sliding window of {own:,} tokens: {percent(kept)} of all pairs, as ever."
        )
    if kept >= 0.9995:
        return f"{where} every pair is computed: nothing is dropped, so nothing is lost."
    if lost is None:
        mass = trace.arrays.get("mass_kept")
        held = (
            "" if mass is None else f", and {percent(float(mass[layer, heads].mean()))} of dense attention lies on them"
        )
        return f"{where} {percent(kept)} of the pairs are computed{held}."
    if not len(lost.keys):
        return f"{where} {percent(kept)} of the pairs are computed, and nothing that dense attention wants is lost."
    return (
        f"{where} {percent(kept)} of the pairs are computed; {percent(lost.share)} are lost, "
        f"and {percent(lost.lost_mass)} of dense attention with them."
    )


def overlay_answer(found: Overlay, first: str, second: str) -> str:
    """How two masks differ, in one sentence."""
    if found.first + found.second < 5e-4:
        return f"{first} and {second} keep the same pairs: {percent(found.both)} of all."
    parts = [(found.first, f"only by {first}"), (found.second, f"only by {second}"), (found.neither, "by none")]
    rest = ", ".join(f"{percent(share)} {by}" for share, by in parts if share >= 5e-5)
    return f"{percent(found.both)} of the pairs are kept by both; {rest}."


def row_table(trace: Trace, layer: int, head: int, lost: LostPairs | None = None) -> pd.DataFrame:
    """One row a query: how many keys it could see and sees, and its lost keys where they are known (places from 1)."""
    pattern = trace.pattern(layer)
    table = pd.DataFrame(
        {
            "query": np.arange(1, len(trace) + 1),
            "token": list(trace.tokens),
            "possible": pattern.possible_per_query(0),
            "kept": pattern.kept_per_query(0, head),
        }
    )
    if lost is not None:
        keys = [lost.keys[a:b] + 1 for a, b in zip(lost.start[:-1], lost.start[1:], strict=True)]
        table["lost"] = pd.Series([" ".join(map(str, k.tolist())) for k in keys], index=lost.rows)
        table["dropped_mass"] = pd.Series(lost.dropped, index=lost.rows)
    return table
