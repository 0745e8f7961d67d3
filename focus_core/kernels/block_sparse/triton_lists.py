"""Which blocks each row keeps, as lists of columns on the GPU: from a mask, without waiting for the GPU."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Lists(NamedTuple):
    """Kept blocks of every row, the row's edge block apart.

    The edge block is the one that needs a mask: a row's own (causal), or the last one where keys end inside it.

    Attributes:
        columns: (B, M, rows, room) int32: kept blocks whose pairs are all real, ascending.
        counts: (B, M, rows) int32: how many.
        edges: (B, M, rows) int32: whether the edge block is kept.
    """

    columns: torch.Tensor
    counts: torch.Tensor
    edges: torch.Tensor

    def own(self, queries: int, keys: int, block: int) -> torch.Tensor:
        """(1, 1, rows, 1) int32: each row's own column, where no row is padded and a block begins with the queries."""
        begin = (keys - queries) // block
        rows = self.counts.shape[2]
        return torch.arange(begin, begin + rows, dtype=torch.int32, device=self.counts.device).view(1, 1, rows, 1)


@triton.jit(do_not_specialize=["queries", "keys", "room"])
def _list(
    MASK, FIRST, COLUMNS, COUNTS, EDGES, mb, mm, mr, queries, keys, room, masks,
    BLOCK: tl.constexpr, CAUSAL: tl.constexpr, PADDED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    b, m = tl.program_id(1) // masks, tl.program_id(1) % masks
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    own = tl.maximum(keys - queries - first, 0) // BLOCK + row
    last = (keys - first) // BLOCK
    edge = last
    if CAUSAL:
        edge = own
        last = tl.minimum(own, (keys - first + BLOCK - 1) // BLOCK)
    j = tl.arange(0, WIDE)
    at = MASK + b.to(tl.int64) * mb + m.to(tl.int64) * mm + row.to(tl.int64) * mr
    kept = (tl.load(at + j, mask=j < last, other=0) != 0).to(tl.int32)
    line = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + row
    tl.store(COLUMNS + line * room + tl.cumsum(kept, 0) - 1, j, mask=kept != 0)
    tl.store(COUNTS + line, tl.sum(kept, 0))
    there = edge * BLOCK < keys - first
    tl.store(EDGES + line, (tl.load(at + edge, mask=there, other=0) != 0).to(tl.int32))


def list_blocks(
    mask: torch.Tensor, queries: int, keys: int, block: int, causal: bool, first: torch.Tensor | None
) -> Lists:
    """The lists of a mask.

    Args:
        mask: (B, M, rows, columns) bool, as ``block_sparse_attention`` takes it.
        queries: Nq.
        keys: Nk.
        block: tokens a side.
        causal: whether later keys are hidden.
        first: (B,) first real key, on the mask's device, or None.
    """
    bits = (mask if mask.stride(3) == 1 else mask.contiguous()).view(torch.uint8)
    batch, masks, rows, columns = mask.shape
    # One more than can be kept: the attention pass reads one entry ahead.
    lists = torch.empty(batch, masks, rows, columns + 1, dtype=torch.int32, device=mask.device)
    counts, edges = torch.empty(2, batch, masks, rows, dtype=torch.int32, device=mask.device)
    wide = max(16, 1 << (columns - 1).bit_length())
    _list[(rows, batch * masks)](
        bits, bits if first is None else first, lists, counts, edges, *bits.stride()[:3], queries, keys, columns + 1,
        masks, BLOCK=block, CAUSAL=causal, PADDED=first is not None, WIDE=wide, num_warps=min(8, max(1, wide // 256)),
    )  # fmt: skip
    return Lists(lists, counts, edges)
