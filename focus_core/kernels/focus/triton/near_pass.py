"""Near pairs (window and sinks) in time order, on top of what the group pass found."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.launch import ready
from focus_core.kernels.focus.triton.tiles import Scores, Tile, block_step, cover, dot_precision, padded

_SINKS = 16


@triton.jit
def _keys(K, V, n, low, high, kt, vt, D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr):
    d, dv = tl.arange(0, DP), tl.arange(0, DVP)
    there = (n >= low) & (n < high)
    j = n.to(tl.int64)[:, None]
    k = tl.load(K + j * kt + d[None, :], mask=there[:, None] & (d < D)[None, :], other=0.0)
    v = tl.load(V + j * vt + dv[None, :], mask=there[:, None] & (dv < DV)[None, :], other=0.0)
    return k, v


@ready
@triton.jit(do_not_specialize=["queries", "keys", "window", "sinks", "skip", "rows"])
def _near_pass(
    Q, K, V, OUT, LSE, PART, PART_LSE, QUERY_BITS, FIRST, OVER, SPOT, GROUP,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, qbb, qbr, qbt, unit, cap_in, cap_out,
    queries, keys, heads, routers, window, sinks, skip, rows,
    SHARE: tl.constexpr, SLOTS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr,
    NEGATIVE: tl.constexpr, CAPPED: tl.constexpr, PADDED: tl.constexpr, NEAR: tl.constexpr, SUMS: tl.constexpr,
    SORTED: tl.constexpr, DOT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = n < queries
    offset = keys - queries
    i = n + offset
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    d, dv = tl.arange(0, DP), tl.arange(0, DVP)
    to = tl.program_id(1).to(tl.int64) * queries + n
    m = tl.full([ROWS], -1e30, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DVP], tl.float32)
    if NEAR:
        at_q = Q + b * qb + h * qh + n.to(tl.int64)[:, None] * qt + d[None, :]
        q = tl.load(at_q, mask=real[:, None] & (d < D)[None, :], other=0.0)
        if NEGATIVE:
            q = -q
    else:
        m = tl.load(LSE + to, mask=real, other=float("-inf")) * 1.4426950408889634
        l = (m > float("-inf")).to(tl.float32)
        m = tl.maximum(m, -1e30)
        acc = tl.load(OUT + to[:, None] * DV + dv[None, :], mask=real[:, None] & (dv < DV)[None, :], other=0.0)
        acc = acc.to(tl.float32)
    # The groups' part comes first: its loads then overlap with those of the keys, and the running softmax merges it.
    if SORTED:
        per = heads // routers
        line = b * routers + h // per
        groups = GROUP + line * keys
        group = tl.load(groups + i, mask=real, other=-2)
        some = group >= 0
        # Two tokens without a group share none.
        group = tl.where(some, group, -1)
        spot = tl.load(SPOT + line * queries + n, mask=some, other=0).to(tl.int64)
        part_lse = tl.load(PART_LSE + (h % per) * rows + spot, mask=some, other=float("-inf"))
        at = PART + (spot * per + h % per)[:, None] * DV + dv[None, :]
        acc = tl.load(at, mask=some[:, None] & (dv < DV)[None, :], other=0.0).to(tl.float32)
        m = tl.where(some, part_lse * 1.4426950408889634, m)
        l = tl.where(some, 1.0, l)
    elif SLOTS > 0:
        sets = QUERY_BITS + b * qbb + (h // (heads // routers)) * qbr + n.to(tl.int64) * qbt
        left = tl.load(sets, mask=real & (i >= first), other=0)
        for _ in range(skip):
            left = left & (left - 1)
        for slot in tl.static_range(SLOTS):
            part_lse = tl.load(PART_LSE + to * SLOTS + slot, mask=left != 0, other=float("-inf"))
            left = left & (left - 1)
            some = part_lse > float("-inf")
            at = PART + (to * SLOTS + slot)[:, None] * DV + dv[None, :]
            part = tl.load(at, mask=some[:, None] & (dv < DV)[None, :], other=0.0).to(tl.float32)
            new = tl.maximum(m, part_lse)
            old, fresh = tl.exp2(m - new), tl.exp2(part_lse - new)
            acc = acc * old[:, None] + part * fresh[:, None]
            l = l * old + fresh
            m = new
    if NEAR:
        Kh, Vh = K + b * kb + (h // SHARE) * kh, V + b * vb + (h // SHARE) * vh
        high = tl.minimum(tl.program_id(0) * ROWS + ROWS, queries) + offset
        low = tl.maximum(tl.program_id(0) * ROWS + offset - window + 1, first)
        if SORTED:
            # Read a block ahead: in the loop its wait would stand before every product.
            next_j = low + tl.arange(0, BLOCK)
            theirs = tl.load(groups + next_j, mask=next_j < high, other=-2)
        for start in range(low, high, BLOCK):
            j = start + tl.arange(0, BLOCK)
            k, v = _keys(Kh, Vh, j, low, high, kt, vt, D, DV, DP, DVP)
            # Below 0 is past every window when read as unsigned: one comparison for both ends.
            keep = (i[:, None] - j[None, :]).to(tl.uint32) < window.to(tl.uint32)
            if SORTED:
                keep &= group[:, None] != theirs[None, :]
                theirs = tl.load(groups + j + BLOCK, mask=j + BLOCK < high, other=-2)
            m, l, acc = block_step(q, k, v, keep, m, l, acc, unit, cap_in, cap_out, True, CAPPED, DOT)
        high = tl.minimum(first + sinks, high - window)
        for start in range(first, high, SINKS):
            j = start + tl.arange(0, SINKS)
            k, v = _keys(Kh, Vh, j, first, high, kt, vt, D, DV, DP, DVP)
            keep = (j[None, :] < high) & (j[None, :] <= i[:, None] - window)
            if SORTED:
                keep &= group[:, None] != tl.load(groups + j, mask=j < high, other=-2)[None, :]
            m, l, acc = block_step(q, k, v, keep, m, l, acc, unit, cap_in, cap_out, True, CAPPED, DOT)
    if SLOTS > 0:
        # A token with more groups than was said: no number at all rather than a wrong one.
        over = OVER
        if SORTED:
            over = OVER + line
        l = tl.where(tl.load(over) != 0, float("nan"), l)
    some = l != 0
    whole = tl.where(some, l, 1.0)
    if SUMS:
        tl.store(LSE + to, tl.where(some, (m + tl.log2(whole)) * 0.6931471805599453, float("-inf")), mask=real)
    tl.store(
        OUT + to[:, None] * DV + dv[None, :],
        (acc / whole[:, None]).to(OUT.dtype.element_ty),
        mask=real[:, None] & (dv < DV)[None, :],
    )


@dataclass(frozen=True)
class SlotParts:
    """What ``group_pass`` found, a part a group of the query.

    Attributes:
        out: (B, Hq, Nq, slots, Dv), a softmax each.
        lse: (B, Hq, Nq, slots) log-sum-exp in base 2.
        over: (1,) int32 1 where a token had more groups than was said.
        skip: groups of each query that earlier rounds served; above 0, the outputs hold their result.
    """

    out: torch.Tensor
    lse: torch.Tensor
    over: torch.Tensor
    skip: int


@dataclass(frozen=True)
class SortedPart:
    """One part a query, in the order of the groups: all pairs of one group, near ones included.

    Attributes:
        out: (rows, heads a router, Dv); rows = sequences * routers * queries.
        lse: (heads a router, rows) natural-log log-sum-exp.
        spot: (B * R, Nq) int32 row of each query.
        group: (B * R, Nk) int32 group of each key, -2 where it has none.
        over: (B * R,) int32 1 where what was said about the sets does not hold.
    """

    out: torch.Tensor
    lse: torch.Tensor
    spot: torch.Tensor
    group: torch.Tensor
    over: torch.Tensor


def near_pass(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor | None,
    parts: SlotParts | SortedPart | None,
    query_bits: torch.Tensor,
    first: torch.Tensor | None,
    window: int,
    sinks: int,
    scores: Scores,
    tile: Tile,
) -> None:
    """Write window, sinks and the groups' parts to ``out``; in a later round only merge its parts into ``out``.

    With a ``SortedPart`` the near pairs that share a group are left to it.

    Args:
        qkv: query (B, Hq, Nq, D), key (B, Hkv, Nk, D), value (B, Hkv, Nk, Dv).
        out: (B, Hq, Nq, Dv), contiguous; a padded query gets 0.
        lse: (B, Hq, Nq) natural-log log-sum-exp, or None when nobody needs it; a padded query gets -inf.
        parts: what the groups gave; None when no token has a group.
        query_bits: (B, R, Nq) int64 sets.
        first: (B,) first real key of each row, or None.
        window: keys nearest to the query, itself included.
        sinks: first real keys; those inside a query's window count once.
        scores: factors of the scores.
        tile: sizes.
    """
    q, k, v = qkv
    batch, heads, queries, dim = q.shape
    keys, wide = v.shape[2:]
    part = part_lse = over = out
    spot = group = query_bits
    slots = skip = rows = 0
    if isinstance(parts, SlotParts):
        part, part_lse, over, skip, slots = parts.out, parts.lse, parts.over, parts.skip, parts.lse.shape[3]
    elif parts is not None:
        part, part_lse, over, spot, group = parts.out, parts.lse, parts.over, parts.spot, parts.group
        slots, rows = 1, parts.lse.shape[1]
    _near_pass[(cover(queries, tile.rows), batch * heads)](
        q, k, v, out, out if lse is None else lse, part, part_lse, query_bits, query_bits if first is None else first,
        over, spot, group, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *query_bits.stride(),
        scores.unit, scores.cap_in, scores.cap_out, queries, keys, heads, query_bits.shape[1], window, sinks, skip,
        rows,
        SHARE=heads // k.shape[1], SLOTS=slots, D=dim, DV=wide, DP=padded(dim), DVP=padded(wide),
        NEGATIVE=scores.negative, CAPPED=scores.capped, PADDED=first is not None, NEAR=skip == 0,
        SUMS=lse is not None, SORTED=isinstance(parts, SortedPart), DOT=dot_precision(q.dtype),
        ROWS=tile.rows, BLOCK=tile.keys, SINKS=_SINKS, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
