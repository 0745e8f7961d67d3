"""From the sums of the strided rows to each block's score, and to the blocks that are kept."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "blocks", "tops", "row_low", "own_from", "heads"])
def _choose(
    SUMS, TOPS, WANTED, SCORES, MASK, sb, sh, sr, mb, mh, mr, rows, blocks, tops, row_low, own_from, heads,
    EACH: tl.constexpr, PER: tl.constexpr, CAUSAL: tl.constexpr, SCORED: tl.constexpr, CHOSEN: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    row = row_low + tl.program_id(0)
    j = tl.arange(0, BLOCKS)
    real = j < blocks
    if CAUSAL:
        real = real & (j <= own_from + row)
    score = tl.zeros([BLOCKS], tl.float32)
    line = tl.program_id(1).to(tl.int64) * rows + tl.program_id(0) * EACH
    for r in range(EACH):
        part = tl.load(SUMS + (line + r) * blocks + j, mask=real, other=0.0)
        top = tl.load(TOPS + (line + r) * tops + j // PER, mask=real, other=-1e30)
        part = part * tl.exp2(top - tl.max(top, 0))
        whole = tl.sum(part, 0)
        score += part / tl.where(whole > 0, whole, 1.0)
    if SCORED:
        tl.store(SCORES + b * sb + h * sh + row * sr + j, score, mask=real)
    if CHOSEN:
        wanted = tl.load(WANTED + h)
        exact = tl.where(real, score, 0.0).to(tl.float64)
        forced = j < 0
        if CAUSAL:
            forced = (j == 0) | (j == own_from + row)
        free = real & (forced == 0)
        missing = wanted * tl.sum(exact, 0) - tl.sum(tl.where(forced & real, exact, 0.0), 0)
        # Scores are at least 0, so they are ordered as their bits are: halve the range until the crossing score is
        # found, the smallest above which the blocks hold less than is missing.
        bits = score.to(tl.int32, bitcast=True)
        low, high = tl.full([], -1, tl.int32), tl.full([], 0x7F800000, tl.int32)
        for _ in range(32):
            middle = low + (high - low) // 2
            held = tl.sum(tl.where(free & (bits > middle), exact, 0.0), 0)
            enough = held >= missing
            low = tl.where(enough & (low < high), middle + 1, low)
            high = tl.where(enough, high, middle)
        above = free & (bits > high)
        equal = free & (bits == high)
        rank = tl.cumsum(equal.to(tl.int32), 0) - 1
        before = tl.sum(tl.where(above, exact, 0.0), 0) + rank.to(tl.float64) * exact
        # Sums of a block and a number: Triton's interpreter cannot join a block and a number of bools.
        take = (above | (equal & (before < missing))) & (exact * 0.0 + missing > 0)
        take = (take | forced | (exact * 0.0 + wanted >= 1.0)) & real
        tl.store(MASK + b * mb + h * mh + row * mr + j, take.to(tl.uint8), mask=j < blocks)


def choose_blocks(
    sums: torch.Tensor,
    tops: torch.Tensor,
    scores: torch.Tensor | None,
    mask: torch.Tensor | None,
    wanted: torch.Tensor,
    *,
    each: int,
    per: int,
    row_low: int,
    own_from: int,
    causal: bool,
) -> None:
    """Write the scores of some rows of blocks, or which blocks they keep, or both.

    Args:
        sums: (B * Hq, rows, blocks), see ``score_rows``; ``each`` strided rows a row of blocks.
        tops: (B * Hq, rows, tiles).
        scores: (B, Hq, block rows, columns) fp32, or None; blocks that hold no pair are not written.
        mask: (B, Hq, block rows, columns) bool, or None.
        wanted: (Hq,) fp64: share of a row's score that is kept.
        each: strided rows, and columns, of a block.
        per: blocks of a tile of columns.
        row_low: first row of blocks that is written.
        own_from: column of block row 0's own block.
        causal: whether later columns are hidden, and column 0 and the own one always kept.
    """
    some = scores if scores is not None else mask
    assert some is not None, "something to write"
    size = max(16, 1 << (sums.shape[2] - 1).bit_length())
    bits = sums if mask is None else mask.view(torch.uint8)
    _choose[(-(-sums.shape[1] // each), sums.shape[0])](
        sums, tops, wanted, sums if scores is None else scores, bits,
        *(sums if scores is None else scores).stride()[:3], *bits.stride()[:3],
        sums.shape[1], sums.shape[2], tops.shape[2], row_low, own_from, some.shape[1],
        EACH=each, PER=per, CAUSAL=causal, SCORED=scores is not None, CHOSEN=mask is not None, BLOCKS=size,
        num_warps=min(16, max(1, size // 1024)),
    )  # fmt: skip
