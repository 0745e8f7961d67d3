"""Attention of every row of blocks over the blocks on its list."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from focus_core.kernels.block_sparse.planes import Plane, plane_of
from focus_core.kernels.block_sparse.triton_lists import Lists
from focus_core.kernels.focus.triton.tiles import Scores, block_step, dot_precision, padded


@dataclass(frozen=True)
class PassTile:
    """Queries and keys of a step, warps and pipeline stages; and whether the longest rows go first."""

    rows: int
    keys: int
    warps: int
    stages: int
    sort: bool = False


def pass_tile(dtype: torch.dtype, widest: int) -> PassTile:
    """Sizes for a type and the wider of the two head sizes."""
    if dtype == torch.float32:
        return PassTile(64, 32, 4, 2) if widest <= 64 else PassTile(32, 32, 4, 1)
    if widest <= 128:
        return PassTile(128, 64, 8, 3)
    return PassTile(128, 32, 8, 2)


@triton.jit
def _some(X, j, low, high, step, D: tl.constexpr, DP: tl.constexpr):
    d = tl.arange(0, DP)
    at = X + j.to(tl.int64)[:, None] * step + d[None, :]
    return tl.load(at, mask=((j >= low) & (j < high))[:, None] & (d < D)[None, :], other=0.0)


@triton.jit(do_not_specialize=["queries", "keys", "room", "rows", "units"])
def _sparse(
    Q, K, V, KEYS, VALUES, OUT, LSE, LISTS, COUNTS, EDGES, FIRST, ORDER,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot, k_row_b, k_row_h, k_col_h, v_row_b, v_row_h, v_col_h,
    unit, cap_in, cap_out, queries, keys, room, rows, units, heads, masks,
    SHARE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr,
    NEGATIVE: tl.constexpr, CAPPED: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, SUMS: tl.constexpr,
    DOT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, SORTED: tl.constexpr,
    COPIES: tl.constexpr,
):  # fmt: skip
    PARTS: tl.constexpr = BLOCK // ROWS
    STEPS: tl.constexpr = BLOCK // STEP
    unit_at = tl.program_id(0) // PARTS
    if SORTED:
        unit_at = tl.load(ORDER + unit_at).to(tl.int32)
        line, row = unit_at // rows, unit_at % rows
    else:
        # Later rows keep more blocks: they go first.
        line, row = unit_at % (units // rows), rows - 1 - unit_at // (units // rows)
    b, h = line // heads, line % heads
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    own = tl.maximum(keys - queries - first, 0) // BLOCK + row
    start = own * BLOCK + tl.program_id(0) % PARTS * ROWS
    i = start + tl.arange(0, ROWS)
    n = i + first - (keys - queries)
    real = (n >= 0) & (n < queries)
    q = _some(Q + b.to(tl.int64) * qb + h.to(tl.int64) * qh, n, 0, queries, qt, D, DP)
    if NEGATIVE:
        q = -q
    kv = h // SHARE
    Kh = K + b.to(tl.int64) * kb + kv.to(tl.int64) * kh
    Vh = V + b.to(tl.int64) * vb + kv.to(tl.int64) * vh
    at = ((b * masks + h // (heads // masks)) * rows + row).to(tl.int64)
    LIST = LISTS + at * room
    count = tl.load(COUNTS + at)
    m = tl.full([ROWS], -1e30, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DVP], tl.float32)
    if COPIES:
        k_row, v_row = b * k_row_b + kv * k_row_h + first, b * v_row_b + kv * v_row_h + first
        k_col, v_col = (kv * k_col_h).to(tl.int32), (kv * v_col_h).to(tl.int32)
    # The list is read one step ahead, so that no load of keys waits for its own place.
    column = tl.load(LIST)
    for step in range(count * STEPS):
        key = column * BLOCK + step % STEPS * STEP
        column = tl.load(LIST + (step + 1) // STEPS)
        if COPIES:
            k = KEYS.load([(k_row + key).to(tl.int32), k_col])
            v = VALUES.load([(v_row + key).to(tl.int32), v_col])
        else:
            j = first + key + tl.arange(0, STEP)
            k = _some(Kh, j, 0, keys, kt, D, DP)
            v = _some(Vh, j, 0, keys, vt, DV, DVP)
        m, l, acc = block_step(q, k, v, None, m, l, acc, unit, cap_in, cap_out, False, CAPPED, DOT)
    if tl.load(EDGES + at) != 0:
        edge = (keys - first) // BLOCK
        stop = BLOCK
        if CAUSAL:
            edge = own
            stop = start + ROWS - own * BLOCK
        for place in range(0, stop, STEP):
            j = edge * BLOCK + place + tl.arange(0, STEP)
            k = _some(Kh, first + j, 0, keys, kt, D, DP)
            v = _some(Vh, first + j, 0, keys, vt, DV, DVP)
            keep = (first + j < keys)[None, :]
            if CAUSAL:
                keep = keep & (j[None, :] <= i[:, None])
            m, l, acc = block_step(q, k, v, keep, m, l, acc, unit, cap_in, cap_out, True, CAPPED, DOT)
    some = l > 0
    whole = tl.where(some, l, 1.0)
    to = n.to(tl.int64)
    dv = tl.arange(0, DVP)
    if SUMS:
        lse = tl.where(some, (m + tl.log2(whole)) * 0.6931471805599453, float("-inf"))
        tl.store(LSE + line.to(tl.int64) * queries + to, lse, mask=real)
    tl.store(
        OUT + b.to(tl.int64) * ob + h.to(tl.int64) * oh + to[:, None] * ot + dv[None, :],
        (acc / whole[:, None]).to(OUT.dtype.element_ty),
        mask=real[:, None] & (dv < DV)[None, :],
    )


def sparse_pass(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    lists: Lists,
    first: torch.Tensor | None,
    block: int,
    causal: bool,
    scores: Scores,
    tile: PassTile,
    copies: bool = True,
) -> None:
    """Write the attention of all queries that a row of blocks holds.

    Args:
        q: (B, Hq, Nq, D).
        k: (B, Hkv, Nk, D).
        v: (B, Hkv, Nk, Dv).
        out: (B, Hq, Nq, Dv); padded queries are not written.
        lse: (B, Hq, Nq) fp32, contiguous, or None.
        lists: the kept blocks.
        first: (B,) int32 first real keys, or None.
        block: tokens a side.
        causal: whether later keys are hidden.
        scores: factors of the scores.
        tile: sizes.
        copies: let the copy engine bring keys and values where it can.
    """
    batch, heads, queries, dim = q.shape
    keys, wide = v.shape[2:]
    masks, rows = lists.counts.shape[1:]
    units = batch * heads * rows
    step = min(tile.keys, block)
    planes: tuple[Plane, Plane] | None = None
    if copies and padded(dim) == dim and padded(wide) == wide:
        found = plane_of(k), plane_of(v)
        if found[0] is not None and found[1] is not None:
            planes = found[0], found[1]
    sources: tuple = (k, v)
    places = (0,) * 6
    if planes is not None:
        sources = planes[0].descriptor(k, [step, dim]), planes[1].descriptor(v, [step, wide])
        places = (*planes[0].places, *planes[1].places)
    order = lists.counts
    if tile.sort:
        order = lists.counts.repeat_interleave(heads // masks, 1) if masks != heads else order
        order = order.view(-1).argsort(descending=True)
    _sparse[(units * (block // min(tile.rows, block)),)](
        q, k, v, *sources, out, out if lse is None else lse, *lists, out if first is None else first, order,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], *places,
        scores.unit, scores.cap_in, scores.cap_out, queries, keys, lists.columns.shape[3], rows, units, heads, masks,
        SHARE=heads // k.shape[1], D=dim, DV=wide, DP=padded(dim), DVP=padded(wide), NEGATIVE=scores.negative,
        CAPPED=scores.capped, PADDED=first is not None, CAUSAL=causal, SUMS=lse is not None,
        DOT=dot_precision(q.dtype), BLOCK=block, ROWS=min(tile.rows, block), STEP=step, SORTED=tile.sort,
        COPIES=planes is not None, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
