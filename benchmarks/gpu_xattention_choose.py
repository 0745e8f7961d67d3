"""A trial of XAttention's last step, several strided rows at a time and fewer warps: timed beside the project's own.

It keeps the same blocks as ``focus_core.kernels.xattention.triton.choose``. Its one loop over a score's bits has a
fixed number of steps.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "blocks", "tops", "row_low", "own_from", "heads"])
def _choose(
    SUMS, TOPS, WANTED, MASK, mb, mh, mr, rows, blocks, tops, row_low, own_from, heads,
    EACH: tl.constexpr, AT: tl.constexpr, PER: tl.constexpr, CAUSAL: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    row = row_low + tl.program_id(0)
    j = tl.arange(0, BLOCKS)
    real = j < blocks
    if CAUSAL:
        real = real & (j <= own_from + row)
    score = tl.zeros([BLOCKS], tl.float32)
    line = tl.program_id(1).to(tl.int64) * rows + tl.program_id(0) * EACH
    # Several rows at a time, so that their loads do not wait for each other's sums.
    for start in range(0, EACH, AT):
        r = line + start + tl.arange(0, AT)
        part = tl.load(SUMS + r[:, None] * blocks + j[None, :], mask=real[None, :], other=0.0)
        top = tl.load(TOPS + r[:, None] * tops + (j // PER)[None, :], mask=real[None, :], other=-1e30)
        part = part * tl.exp2(top - tl.max(top, 1)[:, None])
        whole = tl.sum(part, 1)
        score += tl.sum(part / tl.where(whole > 0, whole, 1.0)[:, None], 0)
    wanted = tl.load(WANTED + h)
    exact = tl.where(real, score, 0.0).to(tl.float64)
    forced = j < 0
    if CAUSAL:
        forced = (j == 0) | (j == own_from + row)
    free = real & (forced == 0)
    missing = wanted * tl.sum(exact, 0) - tl.sum(tl.where(forced & real, exact, 0.0), 0)
    bits = score.to(tl.int32, bitcast=True)
    low, high = tl.full([], -1, tl.int32), tl.full([], 0x7F800000, tl.int32)
    for _ in range(32):
        middle = low + (high - low) // 2
        enough = tl.sum(tl.where(free & (bits > middle), exact, 0.0), 0) >= missing
        low = tl.where(enough & (low < high), middle + 1, low)
        high = tl.where(enough, high, middle)
    above = free & (bits > high)
    equal = free & (bits == high)
    before = tl.sum(tl.where(above, exact, 0.0), 0) + (tl.cumsum(equal.to(tl.int32), 0) - 1).to(tl.float64) * exact
    take = (above | (equal & (before < missing))) & (exact * 0.0 + missing > 0)
    take = (take | forced | (exact * 0.0 + wanted >= 1.0)) & real
    tl.store(MASK + b * mb + h * mh + row * mr + j, take.to(tl.uint8), mask=j < blocks)


def choose_trial(
    sums: Any, tops: Any, scores: Any, mask: Any, wanted: Any, *,
    each: int, per: int, row_low: int, own_from: int, causal: bool, at: int, warps: int, usual: Any,
) -> None:  # fmt: skip
    """``choose_blocks`` for masks alone; scores are left to ``usual``.

    Args:
        sums: (B * Hq, rows, blocks) fp32, as ``choose_blocks`` takes it; so are the others.
        tops: (B * Hq, rows, tiles) fp32.
        scores: (B, Hq, block rows, columns) fp32, or None.
        mask: (B, Hq, block rows, columns) bool, or None.
        wanted: (Hq,) fp64.
        each: strided rows, and columns, of a block.
        per: blocks of a tile of columns.
        row_low: first row of blocks that is written.
        own_from: column of block row 0's own block.
        causal: whether later columns are hidden.
        at: strided rows that are read at a time.
        warps: of a program.
        usual: the project's own ``choose_blocks``.
    """
    about: dict[str, Any] = {"each": each, "per": per, "row_low": row_low, "own_from": own_from, "causal": causal}
    if scores is not None or mask is None:
        usual(sums, tops, scores, mask, wanted, **about)
        return
    bits = mask.view(torch.uint8)
    _choose[(-(-sums.shape[1] // each), sums.shape[0])](
        sums, tops, wanted, bits, *bits.stride()[:3], sums.shape[1], sums.shape[2], tops.shape[2], row_low, own_from,
        mask.shape[1], EACH=each, AT=min(each, at), PER=per, CAUSAL=causal,
        BLOCKS=max(16, 1 << (sums.shape[2] - 1).bit_length()), num_warps=warps,
    )  # fmt: skip


@contextlib.contextmanager
def choosing(at: int, warps: int) -> Iterator[None]:
    """Blocks are chosen by the trial inside; ``at`` 0 leaves the project's own."""
    from focus_core.kernels.xattention.triton import run

    usual = run.choose_blocks
    if at:
        run.choose_blocks = functools.partial(choose_trial, at=at, warps=warps, usual=usual)
    try:
        yield
    finally:
        run.choose_blocks = usual
