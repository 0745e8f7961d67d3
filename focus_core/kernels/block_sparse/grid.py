"""Where blocks lie: they are counted from the first real key of each row, so that padding moves nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Grid(NamedTuple):
    """One batch row's blocks; positions count from its first real key.

    Attributes:
        first: index of the first real key.
        length: real keys.
        begin: position of the first real query.
        skip: padded queries before it.
        row: block of the first real query: row 0 of the mask.
        rows: blocks that hold queries.
        columns: blocks that hold keys.
    """

    first: int
    length: int
    begin: int
    skip: int
    row: int
    rows: int
    columns: int


def grids(batch: int, queries: int, keys: int, block: int, first_key: torch.Tensor | None) -> list[Grid]:
    """The grid of every batch row; a row of padding alone has no blocks."""
    firsts = [0] * batch if first_key is None else [min(int(f), keys) for f in first_key.tolist()]
    found = []
    for first in firsts:
        length, begin = keys - first, max(0, keys - queries - first)
        row, columns = begin // block, -(-length // block)
        skip = max(0, first - (keys - queries))
        found.append(Grid(first, length, begin, skip, row, max(0, columns - row), columns))
    return found


def mask_shape(batch: int, queries: int, keys: int, block: int, first_key: torch.Tensor | None) -> tuple[int, int]:
    """Rows and columns that a mask needs for all batch rows: ``ceil(Nq / block)``, one more where blocks are cut."""
    every = grids(batch, queries, keys, block, first_key)
    return max([1, *(g.rows for g in every)]), max([1, *(g.columns for g in every)])
