"""FlashSFA as published, step by step: posting lists of the keys, tiles, an online softmax (appendix C, Algorithm 1).

Plain loops for teaching and for tests of the algorithm; nothing here is fast.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import torch

from focus_core.kernels.checks import wide


@dataclass(frozen=True)
class Postings:
    """The keys of one head by feature (CSC): feature u is held by ``keys[start[u]:start[u + 1]]``, ascending.

    ``values`` are those keys' values at u. Key numbers need 32 bits: one byte holds a feature, never a key.
    """

    start: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class Step:
    """One tile of one head after it was added.

    Attributes:
        batch, head: which row and query head.
        rows, cols: the queries (from 0) and the keys of the tile.
        hits: (query, key, feature, product) of every shared feature, the score's scale included.
        scores: (rows, cols) scores; pairs without a hit have 0, pairs that are not kept -inf.
        maximum, total: (rows,) the running maximum and sum after this tile.
        output: (rows, Dv) the running output, not yet divided by the sum.
    """

    batch: int
    head: int
    rows: range
    cols: range
    hits: list[tuple[int, int, int, float]]
    scores: torch.Tensor
    maximum: torch.Tensor
    total: torch.Tensor
    output: torch.Tensor


def postings(k: torch.Tensor, support: torch.Tensor) -> Postings:
    """The posting lists of one head's keys (N, D) with their support (N, D)."""
    feature, key = support.T.nonzero(as_tuple=True)
    start = torch.zeros(k.shape[1] + 1, dtype=torch.int32)
    start[1:] = support.sum(0).cumsum(0)
    return Postings(start, key.to(torch.int32), k[key, feature])


def sfa_tiled(
    q,
    k,
    v,
    query_support,
    key_support,
    *,
    exclude,
    first_key,
    scale,
    softcap,
    tile: tuple[int, int] = (16, 16),
    watch: Callable[[Step], None] | None = None,
):
    """SFA by FlashSFA's algorithm; arguments and results as in ``sfa_reference``.

    ``tile`` is the number of queries and of keys of a tile (the paper's Br and Bc); ``watch`` is shown every tile.
    """
    work, share = wide(q.dtype), q.shape[1] // k.shape[1]
    batch, heads, queries, _ = q.shape
    out = torch.zeros(batch, heads, queries, v.shape[3], dtype=work)
    lse = torch.full((batch, heads, queries), float("-inf"), dtype=work)
    for b in range(batch):
        first = 0 if first_key is None else int(first_key[b])
        for h in range(heads):
            lists = postings(k[b, h // share].to(work), key_support[b, h // share])
            head = _Head(q[b, h].to(work), query_support[b, h], lists, v[b, h // share].to(work), scale, softcap)
            for start in range(0, queries, tile[0]):
                rows = range(start, min(start + tile[0], queries))
                out[b, h, start : rows.stop], lse[b, h, start : rows.stop] = head.rows(
                    rows, tile[1], first, exclude, None if watch is None else _at(watch, b, h)
                )
    return out.to(q.dtype), lse


def _at(watch: Callable[[Step], None], batch: int, head: int) -> Callable[..., None]:
    return lambda **step: watch(Step(batch, head, **step))


@dataclass(frozen=True)
class _Head:
    q: torch.Tensor
    support: torch.Tensor
    lists: Postings
    v: torch.Tensor
    scale: float
    softcap: float | None

    def rows(self, rows: range, width: int, first: int, exclude: bool, watch):
        past = len(self.v) - len(self.q)
        maximum = torch.full((len(rows),), float("-inf"), dtype=self.q.dtype)
        total, output = torch.zeros_like(maximum), self.q.new_zeros(len(rows), self.v.shape[1])
        for left in range(0, past + rows.stop, width):
            cols = range(left, min(left + width, past + rows.stop))
            scores, hits = self._scores(rows, cols)
            if self.softcap is not None:
                scores = self.softcap * torch.tanh(scores / self.softcap)
            i, j = torch.tensor(rows)[:, None] + past, torch.tensor(cols)[None, :]
            kept = (j <= i) & (j >= first)
            if exclude:
                shared = torch.zeros_like(kept)
                for query, key, _, _ in hits:
                    shared[query - rows.start, key - cols.start] = True
                kept = kept & shared
            # The causal mask comes after the sums: a posting list knows no query.
            scores = scores.masked_fill(~kept, float("-inf"))
            higher = torch.maximum(maximum, scores.amax(1))
            shift = torch.where(higher.isinf(), torch.zeros_like(higher), higher)
            weights = torch.exp(scores - shift[:, None])
            faded = torch.exp(maximum - shift)
            total = total * faded + weights.sum(1)
            output = output * faded[:, None] + weights @ self.v[cols.start : cols.stop]
            maximum = higher
            if watch is not None:
                parts = {"scores": scores, "maximum": maximum, "total": total, "output": output}
                watch(rows=rows, cols=cols, hits=hits, **parts)
        empty = total == 0
        return output / total.masked_fill(empty, 1)[:, None], maximum + torch.log(total)

    def _scores(self, rows: range, cols: range):
        """Scores of a tile, from the parts of the posting lists that lie in it."""
        scores = self.q.new_zeros(len(rows), len(cols))
        hits = []
        for i in rows:
            for u in self.support[i].nonzero().flatten().tolist():
                begin, end = self.lists.start[u].item(), self.lists.start[u + 1].item()
                keys = self.lists.keys[begin:end].tolist()
                for at in range(bisect_left(keys, cols.start), bisect_left(keys, cols.stop)):
                    product = float(self.q[i, u] * self.lists.values[begin + at]) * self.scale
                    scores[i - rows.start, keys[at] - cols.start] += product
                    hits.append((i, keys[at], u, product))
        return scores, hits
