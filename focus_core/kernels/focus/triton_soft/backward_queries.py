"""The backward pass with a tile of queries held: gradients of queries and of their memberships."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.tiles import Tile, cover
from focus_core.kernels.focus.triton_soft.call import Call
from focus_core.kernels.focus.triton_soft.gate import agreement, base2, pull, rows


@triton.jit
def _keys(
    dq, dx, q, g, xq, lse, delta, K, V, XQ, XK, i, n, first, keys, base, head, gap, count, kt, vt,
    unit, cap_in, cap_out, floor, rest, window, sinks,
    D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr, GROUPS: tl.constexpr, KP: tl.constexpr,
    CAPPED: tl.constexpr, PRODUCT: tl.constexpr, DOT: tl.constexpr, HEADS: tl.constexpr, GATE: tl.constexpr,
    BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Blocks of keys, chosen as in the forward pass."""
    for step in range(0, count):
        j = base + step * BLOCK + tl.where(step >= head, gap, 0) + tl.arange(0, BLOCK)
        at = tl.minimum(j, keys - 1)
        k = rows(K, j, kt, keys, D, DP, MASKED)
        v = rows(V, j, vt, keys, DV, DVP, MASKED)
        xk = k
        if not PRODUCT:
            xk = rows(XK, j, KP, keys, KP, KP, MASKED)
        x, slope = base2(tl.dot(q, tl.trans(k), input_precision=DOT), unit, cap_in, cap_out, CAPPED)
        shared, apart = agreement(xq, xk, XQ, XK, n, at, GROUPS, KP, PRODUCT, DOT)
        if MASKED:
            x = tl.where(j[None, :] <= i[:, None], x, float("-inf"))
        # The weight without the gate, times what the pair's weight is worth: the gradient of the gate itself.
        t = tl.exp2(x - lse[:, None]) * (tl.dot(g, tl.trans(v), input_precision=DOT) - delta[:, None])
        w = floor + rest * tl.minimum(shared, 1.0)
        far = t
        if MASKED:
            near = (i[:, None] - j[None, :] < window) | (j - first < sinks)[None, :]
            w = tl.where(near, 1.0, w)
            far = tl.where(near, 0.0, t)
        if HEADS:
            dq = tl.dot((t * w * slope).to(k.dtype), k, dq, input_precision=DOT)
        if GATE:
            dx = pull(dx, far, apart, xk, XQ, XK, n, at, GROUPS, KP, PRODUCT, DOT)
    return dq, dx


@triton.jit(do_not_specialize=["queries", "keys", "heads", "routers", "window", "sinks"])
def _by_queries(
    Q, K, V, XQ, XK, FIRST, G, LSE, DELTA, DQ, DX, qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, db, dh, dt,
    size, unit, cap_in, cap_out, floor, rest, queries, keys, heads, routers, window, sinks,
    SHARE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr,
    GROUPS: tl.constexpr, KP: tl.constexpr, NEGATIVE: tl.constexpr, CAPPED: tl.constexpr, PADDED: tl.constexpr,
    PRODUCT: tl.constexpr, DOT: tl.constexpr, HEADS: tl.constexpr, GATE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    r = b * routers + h // (heads // routers)
    # The longest first.
    begin = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    n = begin + tl.arange(0, ROWS)
    real = n < queries
    offset = keys - queries
    i = n + offset
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    q = rows(Q + b * qb + h * qh, n, qt, queries, D, DP, True)
    if NEGATIVE:
        q = -q
    g = rows(G + b * gb + h * gh, n, gt, queries, DV, DVP, True)
    XQ += r * queries * KP
    XK += r * keys * KP
    K += b * kb + (h // SHARE) * kh
    V += b * vb + (h // SHARE) * vh
    xq = q
    if not PRODUCT:
        xq = rows(XQ, n, KP, queries, KP, KP, True)
    row = tl.program_id(1).to(tl.int64) * queries + n
    lse = tl.load(LSE + row, mask=real, other=float("inf"))
    delta = tl.load(DELTA + row, mask=real, other=0.0)
    total = tl.cdiv(tl.maximum(tl.minimum(begin + ROWS, queries) + offset - first, 0), BLOCK)
    head = tl.minimum(tl.cdiv(sinks, BLOCK), total)
    far = tl.maximum(tl.maximum(begin + offset - window + 1 - first, 0) // BLOCK - head, 0)
    dq = tl.zeros([ROWS, DP], tl.float32)
    dx = tl.zeros([ROWS, KP], tl.float32)
    at = tl.minimum(n, queries - 1)
    dq, dx = _keys(
        dq, dx, q, g, xq, lse, delta, K, V, XQ, XK, i, at, first, keys, first + head * BLOCK, 0, 0, far, kt, vt,
        unit, cap_in, cap_out, floor, rest, window, sinks, D, DV, DP, DVP, GROUPS, KP, CAPPED, PRODUCT, DOT,
        HEADS, GATE, BLOCK, False,
    )  # fmt: skip
    dq, dx = _keys(
        dq, dx, q, g, xq, lse, delta, K, V, XQ, XK, i, at, first, keys, first, head, far * BLOCK, total - far, kt, vt,
        unit, cap_in, cap_out, floor, rest, window, sinks, D, DV, DP, DVP, GROUPS, KP, CAPPED, PRODUCT, DOT,
        HEADS, GATE, BLOCK, True,
    )  # fmt: skip
    if HEADS:
        d = tl.arange(0, DP)
        to = DQ + b * db + h * dh + n.to(tl.int64)[:, None] * dt + d[None, :]
        if NEGATIVE:
            dq = -dq
        tl.store(to, (dq * size).to(DQ.dtype.element_ty), mask=real[:, None] & (d < D)[None, :])
    if GATE:
        tl.store(DX + row[:, None] * KP + tl.arange(0, KP)[None, :], dx * rest, mask=real[:, None])


def by_queries(
    call: Call, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor, heads: bool, gate: bool, tile: Tile
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of the queries (where ``heads``), and of each head's query memberships (where ``gate``).

    Args:
        call: the call.
        grad: (B, Hq, Nq, Dv) gradient of the output.
        lse: (B, Hq, Nq) from the forward pass.
        delta: (B, Hq, Nq) products of output and its gradient.
        heads: whether queries want a gradient.
        gate: whether memberships want one.
        tile: sizes.

    Returns:
        (B, Hq, Nq, D) in the queries' type, and (B, Hq, Nq, KP) in fp32.
    """
    q, k, v = call.q, call.k, call.v
    batch, count, queries = q.shape[:3]
    dq = torch.empty_like(q) if heads else None
    dx = torch.empty(batch, count, queries, call.xq.shape[3], device=q.device) if gate else None
    to = q if dq is None else dq
    _by_queries[(cover(queries, tile.rows), batch * count)](
        q, k, v, call.xq, call.xk, call.xk if call.first is None else call.first, grad, lse, delta,
        to, lse if dx is None else dx, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad.stride()[:3],
        *to.stride()[:3], call.size, *call.factors, *call.sizes, **call.constants, HEADS=heads, GATE=gate,
        ROWS=tile.rows, BLOCK=tile.keys, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return dq, dx
