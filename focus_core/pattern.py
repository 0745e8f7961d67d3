"""Which pairs an attention call keeps, of any size, without ever holding the N x N mask.

Pages, kept-pair figures and kernel tests all read the same object, so a picture cannot disagree
with the kernel. NumPy only: the app's process uses it too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

_CHUNK_CELLS = 1 << 22
_MAX_DISTINCT_SETS = 512


class Pattern(ABC):
    """The kept pairs of one layer: ``batch`` rows, ``heads`` query heads, ``queries`` x ``keys`` cells.

    Queries are the last ``queries`` of the ``keys`` positions (bottom-right causal).
    """

    heads: int

    @property
    @abstractmethod
    def batch(self) -> int:
        """Number of sequences."""

    @property
    @abstractmethod
    def queries(self) -> int:
        """Number of query positions."""

    @property
    @abstractmethod
    def keys(self) -> int:
        """Number of key positions."""

    @abstractmethod
    def tile(self, batch: int, head: int, rows: slice, cols: slice) -> np.ndarray:
        """Bool array of the cells ``rows`` (queries, from 0) x ``cols`` (keys): True where kept."""

    def router_of(self, head: int) -> int:
        """What heads that keep the same pairs have in common; each head is its own unless a pattern says more."""
        return head

    def possible_per_query(self, batch: int) -> np.ndarray:
        """(queries,) number of causal keys each query could see."""
        return np.arange(self.keys - self.queries, self.keys, dtype=np.int64) + 1

    def kept_per_query(self, batch: int, head: int) -> np.ndarray:
        """(queries,) number of keys each query sees."""
        step = max(1, _CHUNK_CELLS // max(1, self.keys))
        parts = [
            self.tile(batch, head, slice(i, min(i + step, self.queries)), slice(0, self.keys)).sum(1)
            for i in range(0, self.queries, step)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def density(self, batch: int | None = None, head: int | None = None) -> float:
        """Kept pairs over causal pairs, over the given row and head or over all of them."""
        kept = possible = 0
        for b in range(self.batch) if batch is None else [batch]:
            per_row = int(self.possible_per_query(b).sum())
            for h in range(self.heads) if head is None else [head]:
                kept += int(self.kept_per_query(b, h).sum())
                possible += per_row
        return kept / possible if possible else 1.0

    def blocks(self, size: int, batch: int = 0, head: int = 0) -> np.ndarray:
        """Bool array of ``size`` x ``size`` blocks: True where any pair of the block is kept (max pooling)."""
        rows, cols = -(-self.queries // size), -(-self.keys // size)
        out = np.zeros((rows, cols), bool)
        for r in range(rows):
            stripe = self.tile(batch, head, slice(r * size, min((r + 1) * size, self.queries)), slice(0, self.keys))
            padded = np.zeros(cols * size, bool)
            padded[: self.keys] = stripe.any(0)
            out[r] = padded.reshape(cols, size).any(1)
        return out


@dataclass(frozen=True)
class GroupPattern(Pattern):
    """Window, sinks and shared groups: the contract of ``focus_attention``.

    A pair (i, j) is kept iff ``first <= j <= i`` and (``i - j < window`` or ``j - first < sinks`` or the sets share
    a group). Dense is ``window >= keys``; a sliding window is empty sets.

    Attributes:
        query_bits: (B, R, Nq) int64 sets, R = 1 or the number of KV heads.
        key_bits: (B, R, Nk) int64 sets.
        heads: number of query heads.
        window: keys nearest to the query that are always kept, itself included.
        sinks: first real keys that are always kept.
        first_key: (B,) first real key of each row; None when no row is padded.
    """

    query_bits: np.ndarray
    key_bits: np.ndarray
    heads: int
    window: int
    sinks: int = 0
    first_key: np.ndarray | None = None

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.key_bits.shape[0]

    @property
    def queries(self) -> int:
        """Number of query positions."""
        return self.query_bits.shape[2]

    @property
    def keys(self) -> int:
        """Number of key positions."""
        return self.key_bits.shape[2]

    @classmethod
    def without_groups(
        cls, batch: int, queries: int, keys: int, heads: int, window: int, sinks: int = 0, first_key=None
    ) -> GroupPattern:
        """A pattern of window and sinks alone; ``window >= keys`` is dense."""
        empty = np.zeros((batch, 1, keys), np.int64)
        return cls(empty[:, :, :queries], empty, heads, window, sinks, first_key)

    def router_of(self, head: int) -> int:
        """Index of the router that serves this query head."""
        return head * self.key_bits.shape[1] // self.heads

    def _first(self, batch: int) -> int:
        return 0 if self.first_key is None else int(self.first_key[batch])

    def possible_per_query(self, batch: int) -> np.ndarray:
        """(queries,) number of real causal keys each query could see."""
        return np.maximum(super().possible_per_query(batch) - self._first(batch), 0)

    def tile(self, batch: int, head: int, rows: slice, cols: slice) -> np.ndarray:
        """See Pattern.tile."""
        r, first = self.router_of(head), self._first(batch)
        i = np.arange(*rows.indices(self.queries))[:, None] + (self.keys - self.queries)
        j = np.arange(*cols.indices(self.keys))[None, :]
        shared = (self.query_bits[batch, r, rows][:, None] & self.key_bits[batch, r, cols][None, :]) != 0
        return (j <= i) & (j >= first) & ((i - j < self.window) | (j - first < self.sinks) | shared)

    def kept_per_query(self, batch: int, head: int) -> np.ndarray:
        """See Pattern.kept_per_query; counts by distinct sets, O(N x sets)."""
        r, first, nk = self.router_of(head), self._first(batch), self.keys
        i = np.arange(nk - self.queries, nk, dtype=np.int64)
        near_start = np.maximum(i - self.window + 1, first)
        sink_end = first + self.sinks
        kept = np.maximum(i + 1 - near_start, 0) + np.clip(np.minimum(near_start, sink_end) - first, 0, None)
        keys = self.key_bits[batch, r]
        sets, member = np.unique(keys, return_inverse=True)
        if len(sets) > _MAX_DISTINCT_SETS:
            return super().kept_per_query(batch, head)
        seen = np.zeros((nk + 1, len(sets)), np.int32)
        far_key = np.flatnonzero(np.arange(nk) >= sink_end)
        seen[far_key + 1, member[far_key]] = 1
        np.cumsum(seen, axis=0, out=seen)
        shares = (self.query_bits[batch, r][:, None] & sets[None, :]) != 0
        kept = kept + np.where(shares, seen[near_start], 0).sum(1)
        return kept

    def density(self, batch: int | None = None, head: int | None = None) -> float:
        """See Pattern.density; heads of one router are counted once."""
        if head is not None or self.heads % self.key_bits.shape[1]:
            return super().density(batch, head)
        kept = possible = 0
        share = self.heads // self.key_bits.shape[1]
        for b in range(self.batch) if batch is None else [batch]:
            possible += int(self.possible_per_query(b).sum()) * self.key_bits.shape[1]
            for r in range(self.key_bits.shape[1]):
                kept += int(self.kept_per_query(b, r * share).sum())
        return kept / possible if possible else 1.0
