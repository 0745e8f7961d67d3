"""Which far pairs there are, as segments: the members of one group in time order, with a key limit a query.

A far pair is older than the window and not a sink. The keys of a segment that a query may see are exactly its
first ``limit`` ones, so no pair needs to be looked at to know whether it is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_GROUPS = 64
_BLOCK_ROWS = 64


def lowest_group(sets: torch.Tensor) -> torch.Tensor:
    """Index of the lowest bit of each non-empty int64 set (bit 63 included)."""
    # A power of two is exact in fp64; the lowest bit of a set with only bit 63 is negative.
    return torch.log2((sets & -sets).double().abs()).long()


def without_lowest(sets: torch.Tensor) -> torch.Tensor:
    """The sets without their lowest group."""
    return sets & (sets - 1)


@dataclass(frozen=True)
class KeySegments:
    """Far keys sorted by (sequence, router, group, position).

    Attributes:
        code: (E,) sorted ``segment * keys + position``; segment = (sequence * routers + router) * 64 + group.
        start: (segments + 1,) first entry of each segment.
        single: every key is in at most one group.
    """

    code: torch.Tensor
    start: torch.Tensor
    keys: int
    single: bool

    @property
    def position(self) -> torch.Tensor:
        """(E,) position of each entry's key."""
        return self.code % self.keys


def key_segments(key_bits: torch.Tensor, first: torch.Tensor | None, sinks: int) -> KeySegments:
    """Sort the keys past the sinks into segments.

    Args:
        key_bits: (B, R, Nk) int64 sets.
        first: (B,) first real key of each row, or None.
        sinks: first real keys that belong to no segment.
    """
    batch, routers, keys = key_bits.shape
    j = torch.arange(keys)
    begin = sinks if first is None else (first + sinks)[:, None, None]
    left = key_bits.masked_fill(j < begin, 0).reshape(-1)
    row = torch.arange(batch * routers).repeat_interleave(keys)
    at = j.repeat(batch * routers)
    codes: list[torch.Tensor] = []
    while True:
        some = left.nonzero().squeeze(1)
        if not len(some) and codes:
            break
        codes.append((row[some] * _GROUPS + lowest_group(left[some])) * keys + at[some])
        left = without_lowest(left)
    code = torch.cat(codes).sort().values
    start = torch.searchsorted(code, torch.arange(batch * routers * _GROUPS + 1) * keys)
    return KeySegments(code, start, keys, single=len(codes) == 1)


@dataclass(frozen=True)
class Blocks:
    """Queries of one pass in blocks of ``rows`` that look into one segment each.

    Attributes:
        segment: (n,) segment of each block.
        query: (n, rows) query index (from 0) of each row.
        limit: (n, rows) keys of the segment that each row sees; 1 in unused rows.
        used: (n, rows) False in rows that only fill the block.
        length: per block, the most keys any of its rows sees; sorted, longest first.
    """

    segment: torch.Tensor
    query: torch.Tensor
    limit: torch.Tensor
    used: torch.Tensor
    length: list[int]


def query_blocks(left: torch.Tensor, segments: KeySegments, window: int) -> Blocks | None:
    """Blocks of one pass: each query looks into the lowest group left in its set.

    Args:
        left: (B, R, Nq) int64 sets that this and later passes have to serve.
        segments: the far keys.
        window: keys nearest to the query that are not far.

    Returns:
        The blocks, or None when no query of this pass has a far key.
    """
    rows, queries, keys = left.shape[0] * left.shape[1], left.shape[2], segments.keys
    flat = left.reshape(-1)
    entry = flat.nonzero().squeeze(1)
    row, i = entry // queries, entry % queries
    segment = row * _GROUPS + lowest_group(flat[entry])
    end = (i + (keys - queries - window + 1)).clamp_min(0)
    limit = torch.searchsorted(segments.code, segment * keys + end) - segments.start[segment]
    far = (limit > 0).nonzero().squeeze(1)
    if not len(far):
        return None
    code, order = (segment[far] * queries + i[far]).sort()
    limit, segment, i = limit[far][order], code // queries, code % queries
    count = torch.bincount(segment, minlength=rows * _GROUPS)
    size = _block_rows(len(far) / int((count > 0).sum()))
    blocks = (count + size - 1) // size
    of = torch.repeat_interleave(torch.arange(len(count)), blocks)
    rank = torch.arange(len(of)) - torch.repeat_interleave(blocks.cumsum(0) - blocks, blocks)
    stop = count.cumsum(0)[of]
    slot = ((stop - count[of]) + rank * size)[:, None] + torch.arange(size)
    used = slot < stop[:, None]
    slot = slot.minimum(stop[:, None] - 1)
    length, by_length = limit[slot[:, -1]].sort(descending=True)
    slot, used = slot[by_length], used[by_length]
    return Blocks(of[by_length], i[slot], limit[slot].masked_fill(~used, 1), used, length.tolist())


def _block_rows(mean: float) -> int:
    """Rows a block: about 64, cut so that a segment of usual size (mean + 2 standard deviations) leaves few unused."""
    usual = mean + 2 * math.sqrt(mean)
    pieces = max(1, round(usual / _BLOCK_ROWS))
    return max(8, -(-math.ceil(usual / pieces) // 8) * 8)


def buckets(length: list[int], cells_per_key: int, budget: int) -> list[tuple[int, int]]:
    """Cut blocks, longest first, into runs of similar length that fit ``budget`` cells.

    Args:
        length: keys a block, descending.
        cells_per_key: rows x heads of a block.
        budget: the most cells of a run.

    Returns:
        ``(start, stop)`` of each run.
    """
    runs, start = [], 0
    for at in range(1, len(length) + 1):
        longest = length[start]
        full = (at - start + 1) * longest * cells_per_key > budget
        if at == len(length) or full or (length[at] < 0.85 * longest and longest - length[at] > 24):
            runs.append((start, at))
            start = at
    return runs
