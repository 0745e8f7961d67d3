"""Kept pairs by blocks: what block-sparse attention computes, with a window and first tokens where a variant has them.

NumPy only, as ``focus_core.pattern``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from focus_core.errors import InvalidInput
from focus_core.pattern import Pattern

_CHUNK_CELLS = 1 << 22


@dataclass(frozen=True)
class BlockPattern(Pattern):
    """Whole blocks of pairs, causal inside, and the pairs of a window and of first tokens beside them.

    Positions count from the first real key, so a padded row has the blocks that it has alone. A pair (i, j) is kept
    iff ``0 <= j <= i`` and (``kept`` holds the block of i and j, or ``i - j < window``, or ``j < sinks``).

    Attributes:
        kept: (B, R, rows, columns) bool; R = 1 (all heads share), or one a group of heads, or one a query head. Row 0
            is the block of the row's first query, column 0 that of its first real key.
        block: tokens a side.
        heads: number of query heads.
        queries_count: number of queries, the last of the keys.
        keys_count: number of keys.
        window: keys nearest to the query that are kept beside the blocks, itself included; 0 for none.
        sinks: first real keys that are kept beside the blocks.
        first_key: (B,) first real key of each row; None when no row is padded.
    """

    kept: np.ndarray
    block: int
    heads: int
    queries_count: int
    keys_count: int
    window: int = 0
    sinks: int = 0
    first_key: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Refuse blocks that do not cover the pairs."""
        if self.kept.ndim != 4 or self.block < 1 or self.kept.shape[1] < 1 or self.heads % self.kept.shape[1]:
            raise InvalidInput(f"Blocks {self.kept.shape} of {self.block} tokens do not fit {self.heads} heads.")
        rows = max(grid_rows(self.queries_count, self.keys_count, self.block, f) for f in self._firsts())
        columns = -(-self.keys_count // self.block)
        if self.kept.shape[2] < rows or self.kept.shape[3] < columns - max(self._firsts()) // self.block:
            raise InvalidInput(
                f"{self.queries_count} queries and {self.keys_count} keys in blocks of {self.block} are {rows} x "
                f"{columns} blocks, not {self.kept.shape[2]} x {self.kept.shape[3]}."
            )

    def _firsts(self) -> list[int]:
        return [self._first(b) for b in range(self.batch)] or [0]

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.kept.shape[0]

    @property
    def queries(self) -> int:
        """Number of query positions."""
        return self.queries_count

    @property
    def keys(self) -> int:
        """Number of key positions."""
        return self.keys_count

    def router_of(self, head: int) -> int:
        """Index of the block mask that serves this query head."""
        return head * self.kept.shape[1] // self.heads

    def only(self, router: int) -> BlockPattern:
        """The pattern of all heads were they served by this one block mask."""
        return dataclasses.replace(self, kept=self.kept[:, router : router + 1])

    def _first(self, batch: int) -> int:
        return 0 if self.first_key is None else int(self.first_key[batch])

    def possible_per_query(self, batch: int) -> np.ndarray:
        """(queries,) number of real causal keys each query could see."""
        return np.maximum(super().possible_per_query(batch) - self._first(batch), 0)

    def _positions(self, batch: int, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Positions of queries past the first real key, and the row of ``kept`` of each (0 for a padded query)."""
        past = self.keys - self.queries - self._first(batch)
        i = np.arange(*rows.indices(self.queries)) + past
        return i, np.maximum(i, 0) // self.block - max(past, 0) // self.block

    def tile(self, batch: int, head: int, rows: slice, cols: slice) -> np.ndarray:
        """See Pattern.tile."""
        i, row = self._positions(batch, rows)
        j = np.arange(*cols.indices(self.keys)) - self._first(batch)
        blocks = self.kept[batch, self.router_of(head)]
        held = blocks[row][:, np.maximum(j, 0) // self.block]
        i, j = i[:, None], j[None, :]
        return (j <= i) & (j >= 0) & (held | (i - j < self.window) | (j < self.sinks))

    def kept_per_query(self, batch: int, head: int) -> np.ndarray:
        """See Pattern.kept_per_query; counts blocks, then the near pairs outside of them."""
        blocks = self.kept[batch, self.router_of(head)]
        every, row = self._positions(batch, slice(0, self.queries))
        own = np.maximum(every, 0) // self.block
        before = np.cumsum(blocks, 1) - blocks
        # The blocks before a query's own are whole; its own is kept up to the query.
        count = before[row, own] * self.block + blocks[row, own] * (every - own * self.block + 1)
        count[every < 0] = 0
        near = self.window + self.sinks
        step = max(1, _CHUNK_CELLS // max(1, near))
        for start in range(0, self.queries if near else 0, step):
            i, r = every[start : start + step, None], row[start : start + step, None]
            back = i - np.arange(self.window)[None, :]
            first = np.broadcast_to(np.arange(self.sinks)[None, :], (len(i), self.sinks))
            j = np.concatenate([back, first], 1)
            # A first token inside the window is counted there.
            new = (j >= 0) & (j <= i) & ((np.arange(near)[None, :] < self.window) | (i - j >= self.window))
            new &= ~blocks[r, np.clip(j // self.block, 0, blocks.shape[1] - 1)]
            count[start : start + step] += new.sum(1)
        return count

    def packed(self, batch: int = 0) -> np.ndarray:
        """(R, rows, ceil(columns / 8)) uint8: the blocks of one row as bits, as a Trace keeps them."""
        return np.packbits(self.kept[batch], axis=-1)

    @classmethod
    def from_packed(
        cls, bits: np.ndarray, block: int, heads: int, tokens: int, window: int = 0, sinks: int = 0
    ) -> BlockPattern:
        """The whole-sequence pattern of ``tokens`` tokens that ``packed`` wrote."""
        columns = -(-tokens // block)
        kept = np.unpackbits(bits, axis=-1, count=columns).astype(bool)[None]
        return cls(kept, block, heads, tokens, tokens, window, sinks)


def grid_rows(queries: int, keys: int, block: int, first: int = 0) -> int:
    """Blocks that the last ``queries`` of ``keys`` positions lie in, counted from the first real key."""
    last, begin = keys - first, max(0, keys - queries - first)
    return max(0, -(-last // block) - begin // block)
