"""The forward pass: a tile of queries over all its keys."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.tiles import Tile, cover
from focus_core.kernels.focus.triton_soft.call import Call
from focus_core.kernels.focus.triton_soft.gate import agreement, base2, rows


@triton.jit
def _keys(
    m, l, acc, q, xq, K, V, XQ, XK, i, n, first, keys, base, head, gap, count, kt, vt,
    unit, cap_in, cap_out, floor, rest, window, sinks,
    D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr, GROUPS: tl.constexpr, KP: tl.constexpr,
    CAPPED: tl.constexpr, PRODUCT: tl.constexpr, LOGS: tl.constexpr, DOT: tl.constexpr, BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Blocks of keys into the running softmax: ``count`` from ``base`` on, leaving out ``gap`` keys after ``head``."""
    for step in range(0, count):
        j = base + step * BLOCK + tl.where(step >= head, gap, 0) + tl.arange(0, BLOCK)
        k = rows(K, j, kt, keys, D, DP, MASKED)
        xk = k
        if not PRODUCT:
            xk = rows(XK, j, KP, keys, KP, KP, MASKED)
        x, _ = base2(tl.dot(q, tl.trans(k), input_precision=DOT), unit, cap_in, cap_out, CAPPED)
        shared, _ = agreement(xq, xk, XQ, XK, n, tl.minimum(j, keys - 1), GROUPS, KP, PRODUCT, DOT)
        w = floor + rest * tl.minimum(shared, 1.0)
        if MASKED:
            near = (i[:, None] - j[None, :] < window) | (j - first < sinks)[None, :]
            w = tl.where(near, 1.0, w)
            x = tl.where(j[None, :] <= i[:, None], x, float("-inf"))
        if LOGS:
            x = x + tl.log2(w)
        # Without the gate in it, the maximum is one that the gated scores do not pass.
        new = tl.maximum(m, tl.max(x, 1))
        p = tl.exp2(x - new[:, None])
        if not LOGS:
            p = p * w
        shrink = tl.exp2(m - new)
        l = l * shrink + tl.sum(p, 1)
        v = rows(V, j, vt, keys, DV, DVP, MASKED)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=DOT)
        m = new
    return m, l, acc


@triton.jit(do_not_specialize=["queries", "keys", "heads", "routers", "window", "sinks"])
def _forward(
    Q, K, V, XQ, XK, FIRST, OUT, LSE, qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot,
    unit, cap_in, cap_out, floor, rest, queries, keys, heads, routers, window, sinks,
    SHARE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr,
    GROUPS: tl.constexpr, KP: tl.constexpr, NEGATIVE: tl.constexpr, CAPPED: tl.constexpr, PADDED: tl.constexpr,
    PRODUCT: tl.constexpr, LOGS: tl.constexpr, DOT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    r = b * routers + h // (heads // routers)
    # The longest first.
    begin = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    n = begin + tl.arange(0, ROWS)
    offset = keys - queries
    i = n + offset
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    q = rows(Q + b * qb + h * qh, n, qt, queries, D, DP, True)
    if NEGATIVE:
        q = -q
    XQ += r * queries * KP
    XK += r * keys * KP
    K += b * kb + (h // SHARE) * kh
    V += b * vb + (h // SHARE) * vh
    xq = q
    if not PRODUCT:
        xq = rows(XQ, n, KP, queries, KP, KP, True)
    total = tl.cdiv(tl.maximum(tl.minimum(begin + ROWS, queries) + offset - first, 0), BLOCK)
    head = tl.minimum(tl.cdiv(sinks, BLOCK), total)
    far = tl.maximum(tl.maximum(begin + offset - window + 1 - first, 0) // BLOCK - head, 0)
    m = tl.full([ROWS], -1e30, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DVP], tl.float32)
    at = tl.minimum(n, queries - 1)
    m, l, acc = _keys(
        m, l, acc, q, xq, K, V, XQ, XK, i, at, first, keys, first + head * BLOCK, 0, 0, far, kt, vt,
        unit, cap_in, cap_out, floor, rest, window, sinks, D, DV, DP, DVP, GROUPS, KP, CAPPED, PRODUCT, LOGS, DOT,
        BLOCK, False,
    )  # fmt: skip
    m, l, acc = _keys(
        m, l, acc, q, xq, K, V, XQ, XK, i, at, first, keys, first, head, far * BLOCK, total - far, kt, vt,
        unit, cap_in, cap_out, floor, rest, window, sinks, D, DV, DP, DVP, GROUPS, KP, CAPPED, PRODUCT, LOGS, DOT,
        BLOCK, True,
    )  # fmt: skip
    some = l > 0
    whole = tl.where(some, l, 1.0)
    dv = tl.arange(0, DVP)
    tl.store(
        OUT + b * ob + h * oh + n.to(tl.int64)[:, None] * ot + dv[None, :],
        (acc / whole[:, None]).to(OUT.dtype.element_ty),
        mask=(n < queries)[:, None] & (dv < DV)[None, :],
    )
    # So a padded query has no weight in the backward pass.
    lse = tl.where(some, m + tl.log2(whole), float("inf"))
    tl.store(LSE + tl.program_id(1).to(tl.int64) * queries + n, lse, mask=n < queries)


def forward(call: Call, tile: Tile) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (B, Hq, Nq, Dv), 0 for padded queries; and (B, Hq, Nq) base-2 log-sum-exp, inf for padded queries."""
    q, k, v = call.q, call.k, call.v
    batch, heads, queries = q.shape[:3]
    # By token, as models take it: their transpose back then copies nothing.
    out = q.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)
    lse = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device)
    _forward[(cover(queries, tile.rows), batch * heads)](
        q, k, v, call.xq, call.xk, call.xk if call.first is None else call.first, out, lse,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], *call.factors, *call.sizes,
        # Below the largest dropped score, half precision has too little range for the kept ones' weights.
        **call.constants, LOGS=q.dtype == torch.float16, ROWS=tile.rows, BLOCK=tile.keys,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out, lse
