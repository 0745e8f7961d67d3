"""Kept pairs by shared features: what sparse-feature attention keeps when it drops pairs that share none.

NumPy only, as ``focus_core.pattern``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from focus_core.pattern import Pattern


@dataclass(frozen=True)
class FeaturePattern(Pattern):
    """A pair (i, j) is kept iff ``first <= j <= i`` and the supports of query i and key j meet.

    Attributes:
        query_support: (B, Hq, Nq, D) bool.
        key_support: (B, Hkv, Nk, D) bool.
        first_key: (B,) first real key of each row; None when no row is padded.
    """

    query_support: np.ndarray
    key_support: np.ndarray
    first_key: np.ndarray | None = None

    @property
    def heads(self) -> int:  # type: ignore[override]
        """Number of query heads."""
        return self.query_support.shape[1]

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.key_support.shape[0]

    @property
    def queries(self) -> int:
        """Number of query positions."""
        return self.query_support.shape[2]

    @property
    def keys(self) -> int:
        """Number of key positions."""
        return self.key_support.shape[2]

    def possible_per_query(self, batch: int) -> np.ndarray:
        """(queries,) number of real causal keys each query could see."""
        return np.maximum(super().possible_per_query(batch) - self._first(batch), 0)

    def tile(self, batch: int, head: int, rows: slice, cols: slice) -> np.ndarray:
        """See Pattern.tile."""
        i = np.arange(*rows.indices(self.queries))[:, None] + (self.keys - self.queries)
        j = np.arange(*cols.indices(self.keys))[None, :]
        shared = head * self.key_support.shape[1] // self.heads
        wanted = self.query_support[batch, head, rows].astype(np.float32)
        meet = wanted @ self.key_support[batch, shared, cols].astype(np.float32).T > 0
        return (j <= i) & (j >= self._first(batch)) & meet

    def _first(self, batch: int) -> int:
        return 0 if self.first_key is None else int(self.first_key[batch])
