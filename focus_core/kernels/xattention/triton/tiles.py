"""Sums of every strided row's softmax numerators, block by block: one product over the strided rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from focus_core.kernels.block_sparse.planes import Plane
from focus_core.kernels.focus.triton.tiles import dot_precision, padded


@dataclass(frozen=True)
class ScoreTile:
    """Strided rows and columns that a program scores, numbers of a product's step, warps and pipeline stages."""

    rows: int
    columns: int
    part: int
    warps: int
    stages: int


def score_tile(dtype: torch.dtype, dim: int) -> ScoreTile:
    """Sizes for a type and head size."""
    if dtype == torch.float32:
        return ScoreTile(64, 64, min(32, padded(dim)), 4, 2)
    # Two programs on a multiprocessor: one's softmax goes on beside the other's products.
    return ScoreTile(128, 128, min(64, padded(dim)), 4, 3)


@triton.jit
def _tokens(X, n, low, high, step, d, D: tl.constexpr):
    """Numbers ``d`` of tokens ``n``; zeros outside ``low`` to ``high``."""
    at = X + n.to(tl.int64)[:, None] * step + d[None, :]
    return tl.load(at, mask=((n >= low) & (n < high))[:, None] & (d < D)[None, :], other=0.0)


@triton.jit(do_not_specialize=["low", "rows", "columns", "blocks", "row_from", "before", "queries", "keys", "tops"])
def _score(
    Q, K, SUMS, TOPS, qb, qh, qt, kb, kh, kt, q_row_b, q_row_h, q_col_h, k_row_b, k_row_h, k_col_h,
    factor, cap_in, cap_out, low, rows, columns, blocks, row_from, before, queries, keys, heads, tops,
    SHARE: tl.constexpr, S: tl.constexpr, EACH: tl.constexpr, D: tl.constexpr, PART: tl.constexpr,
    REVERSED: tl.constexpr, CAUSAL: tl.constexpr, CAPPED: tl.constexpr, EDGES: tl.constexpr, COPIES: tl.constexpr,
    DOT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # Rows of tiles in groups, column by column: what runs at a time shares its rows of keys and of queries.
    wide = tl.cdiv(columns, COLUMNS)
    group = tl.program_id(0) // (GROUP * wide)
    inside = tl.program_id(0) % (GROUP * wide)
    row_tile, column_tile = group * GROUP + inside % GROUP, inside // GROUP
    start = row_tile * ROWS
    r, c = start + tl.arange(0, ROWS), column_tile * COLUMNS + tl.arange(0, COLUMNS)
    seen = start < rows
    if CAUSAL:
        seen = seen & (column_tile * COLUMNS <= row_from + low + tl.minimum(start + ROWS, rows) - 1)
    if seen:
        b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        PARTS: tl.constexpr = (D + PART - 1) // PART
        if COPIES:
            q_row = (b * q_row_b + h * q_row_h + low + start).to(tl.int32)
            k_row = (b * k_row_b + (h // SHARE) * k_row_h + column_tile * COLUMNS).to(tl.int32)
            q_col, k_col = (h * q_col_h).to(tl.int32), ((h // SHARE) * k_col_h).to(tl.int32)
            qs, ks = qt.to(tl.int32), kt.to(tl.int32)
            for step in range(S * PARTS):
                i, d = step // PARTS, step % PARTS * PART
                place = i
                if REVERSED:
                    place = S - 1 - i
                q = Q.load([q_row, q_col + place * qs + d])
                k = K.load([k_row, k_col + i * ks + d])
                acc = tl.dot(q, tl.trans(k), acc, input_precision=DOT)
        else:
            Qh = Q + b.to(tl.int64) * qb + h.to(tl.int64) * qh
            Kh = K + b.to(tl.int64) * kb + (h // SHARE).to(tl.int64) * kh
            for step in range(S * PARTS):
                i, d = step // PARTS, step % PARTS * PART + tl.arange(0, PART)
                place = i
                if REVERSED:
                    place = S - 1 - i
                q = _tokens(Qh, (low + r) * S + place - before, 0, queries, qt, d, D)
                k = _tokens(Kh, c * S + i, 0, keys, kt, d, D)
                acc = tl.dot(q, tl.trans(k), acc, input_precision=DOT)
        keep = (c < columns)[None, :] & (r < rows)[:, None]
        if CAUSAL:
            keep = keep & (c[None, :] <= (row_from + low + r)[:, None])
        if EDGES:
            # Sampled pairs of a tile whose tokens are both real: a run of the key's places.
            first = tl.maximum(before - (low + r) * S, 0)
            last = tl.minimum(before + queries - (low + r) * S, S)
            if REVERSED:
                first, last = S - last, S - first
            most = tl.minimum(keys - c * S, S)
            count = tl.minimum(last[:, None], most[None, :]) - tl.maximum(first, 0)[:, None]
            keep = keep & (count > 0)
            acc = acc * (S / tl.maximum(count, 1).to(tl.float32))
        x = acc * factor
        if CAPPED:
            x = cap_out * (1.0 - 2.0 / (tl.exp2(acc * cap_in) + 1.0))
        x = tl.where(keep, x, float("-inf"))
        # Finite, so that a row without a pair gives sums of 0.
        top = tl.maximum(tl.max(x, 1), -1e30)
        p = tl.exp2(x - top[:, None])
        sums = tl.sum(tl.reshape(p, [ROWS, COLUMNS // EACH, EACH]), 2)
        line = tl.program_id(1).to(tl.int64) * rows + r
        j = column_tile * (COLUMNS // EACH) + tl.arange(0, COLUMNS // EACH)
        tl.store(SUMS + line[:, None] * blocks + j[None, :], sums, mask=(r < rows)[:, None] & (j < blocks)[None, :])
        tl.store(TOPS + line * tops + column_tile, top, mask=r < rows)


def score_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    planes: tuple[Plane, Plane] | None,
    sums: torch.Tensor,
    tops: torch.Tensor,
    *,
    stride: int,
    each: int,
    low: int,
    row_from: int,
    before: int,
    reverse: bool,
    causal: bool,
    edges: bool,
    factors: tuple[float, float, float],
    tile: ScoreTile,
) -> None:
    """Score some strided rows against the columns that they see.

    Args:
        q: (B, Hq, Nq, D), real queries; the first lies ``before`` tokens into strided row 0.
        k: (B, Hkv, Nk, D), real keys, from strided column 0.
        planes: both as planes of strided rows, for the copy engine; None reads token by token.
        sums: (B * Hq, rows, blocks) fp32, written: a row's numerators summed over a block, relative to the tile's top.
        tops: (B * Hq, rows, tiles) fp32, written: a row's largest score (base 2) in each tile of columns.
        stride: tokens a side of a tile of pairs.
        each: strided columns of a block.
        low: first strided row of ``sums``.
        row_from: strided column of strided row 0's own tokens.
        before: tokens of strided row 0 that are not there.
        reverse: sample the antidiagonal; else the diagonal.
        causal: whether later columns are hidden.
        edges: some tokens of a strided row or column are not there.
        factors: of the sum of ``stride`` products into base 2; inside a soft cap, as an exponent of 2; of the cap
            (0: there is none).
        tile: sizes.
    """
    heads, rows, blocks = q.shape[1], sums.shape[1], sums.shape[2]
    columns = blocks * each
    sources: tuple = (q, k)
    places = (0,) * 6
    if planes is not None:
        sources = (
            planes[0].descriptor(q, [tile.rows, tile.part]),
            planes[1].descriptor(k, [tile.columns, tile.part]),
        )
        places = (*planes[0].places, *planes[1].places)
    grid = (-(-rows // (_GROUP * tile.rows)) * _GROUP * -(-columns // tile.columns), q.shape[0] * heads)
    _score[grid](
        *sources, sums, tops, *q.stride()[:3], *k.stride()[:3], *places, *factors, low, rows, columns, blocks,
        row_from, before, q.shape[2], k.shape[2], heads, tops.shape[2], SHARE=heads // k.shape[1], S=stride, EACH=each,
        D=q.shape[3], PART=tile.part, REVERSED=reverse, CAUSAL=causal, CAPPED=factors[2] != 0, EDGES=edges,
        COPIES=planes is not None, DOT=dot_precision(q.dtype), ROWS=tile.rows, COLUMNS=tile.columns, GROUP=_GROUP,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


_GROUP = 8
