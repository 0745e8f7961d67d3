"""The backward pass with a tile of keys held: gradients of keys, values and key memberships.

Query heads that share a key head each write their own part: more and shorter programs fill the GPU better than a sum in
the tile, and fewer registers are spilt.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.tiles import Tile, cover
from focus_core.kernels.focus.triton_soft.call import Call
from focus_core.kernels.focus.triton_soft.gate import agreement, base2, pull, rows


@triton.jit
def _queries(
    dk, dv, dx, k, v, xk, Q, G, XQ, XK, LSE, DELTA, j, at, first, offset, queries, base, head, gap, count,
    qt, gt, unit, cap_in, cap_out, floor, rest, window, sinks,
    D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr, GROUPS: tl.constexpr, KP: tl.constexpr,
    NEGATIVE: tl.constexpr, CAPPED: tl.constexpr, PRODUCT: tl.constexpr, DOT: tl.constexpr, HEADS: tl.constexpr,
    GATE: tl.constexpr, ROWS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Blocks of queries: ``count`` from ``base`` on, leaving out ``gap`` queries after ``head`` blocks."""
    for step in range(0, count):
        n = base + step * ROWS + tl.where(step >= head, gap, 0) + tl.arange(0, ROWS)
        real = n < queries
        row = tl.minimum(n, queries - 1)
        q = rows(Q, n, qt, queries, D, DP, MASKED)
        if NEGATIVE:
            q = -q
        g = rows(G, n, gt, queries, DV, DVP, MASKED)
        if MASKED:
            # A row that is not there has no weight.
            lse = tl.load(LSE + n, mask=real, other=float("inf"))
            delta = tl.load(DELTA + n, mask=real, other=0.0)
        else:
            lse = tl.load(LSE + n)
            delta = tl.load(DELTA + n)
        xq = q
        if not PRODUCT:
            xq = rows(XQ, n, KP, queries, KP, KP, MASKED)
        x, slope = base2(tl.dot(k, tl.trans(q), input_precision=DOT), unit, cap_in, cap_out, CAPPED)
        shared, apart = agreement(xk, xq, XK, XQ, at, row, GROUPS, KP, PRODUCT, DOT)
        w = floor + rest * tl.minimum(shared, 1.0)
        if MASKED:
            i = n + offset
            near = (i[None, :] - j[:, None] < window) | (j - first < sinks)[:, None]
            w = tl.where(near, 1.0, w)
            x = tl.where(j[:, None] <= i[None, :], x, float("-inf"))
        # The weight without the gate.
        u = tl.exp2(x - lse[None, :])
        t = u * (tl.dot(v, tl.trans(g), input_precision=DOT) - delta[None, :])
        far = t
        if MASKED:
            far = tl.where(near, 0.0, t)
        if HEADS:
            dv = tl.dot((u * w).to(g.dtype), g, dv, input_precision=DOT)
            dk = tl.dot((t * w * slope).to(q.dtype), q, dk, input_precision=DOT)
        if GATE:
            dx = pull(dx, far, apart, xq, XK, XQ, at, row, GROUPS, KP, PRODUCT, DOT)
    return dk, dv, dx


@triton.jit(do_not_specialize=["queries", "keys", "heads", "routers", "window", "sinks"])
def _by_keys(
    Q, K, V, XQ, XK, FIRST, G, LSE, DELTA, DK, DV_, DX,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, dkb, dkh, dkt, dvb, dvh, dvt,
    size, unit, cap_in, cap_out, floor, rest, queries, keys, heads, routers, window, sinks,
    SHARE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr,
    GROUPS: tl.constexpr, KP: tl.constexpr, NEGATIVE: tl.constexpr, CAPPED: tl.constexpr, PADDED: tl.constexpr,
    PRODUCT: tl.constexpr, DOT: tl.constexpr, HEADS: tl.constexpr, GATE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    b, s = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    h = s // SHARE
    r = b * routers + s // (heads // routers)
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    begin = first + tl.program_id(0) * BLOCK
    if begin < keys:
        j = begin + tl.arange(0, BLOCK)
        at = tl.minimum(j, keys - 1)
        k = rows(K + b * kb + h * kh, j, kt, keys, D, DP, True)
        v = rows(V + b * vb + h * vh, j, vt, keys, DV, DVP, True)
        XQ += r * queries * KP
        XK += r * keys * KP
        xk = k
        if not PRODUCT:
            xk = rows(XK, j, KP, keys, KP, KP, True)
        offset = keys - queries
        low = tl.maximum(begin - offset, 0)
        rest_of = queries - low
        total = tl.cdiv(rest_of, ROWS)
        head = tl.minimum(tl.cdiv(tl.maximum(begin + BLOCK - 1 + window - offset - low, 0), ROWS), total)
        if begin - first < sinks:
            head = total
        # The last block is masked too where it is not full.
        far = tl.maximum(rest_of // ROWS - head, 0)
        dk = tl.zeros([BLOCK, DP], tl.float32)
        dv = tl.zeros([BLOCK, DVP], tl.float32)
        dx = tl.zeros([BLOCK, KP], tl.float32)
        line = tl.program_id(1).to(tl.int64) * queries
        Q += b * qb + s * qh
        G += b * gb + s * gh
        dk, dv, dx = _queries(
            dk, dv, dx, k, v, xk, Q, G, XQ, XK, LSE + line, DELTA + line, j, at, first, offset, queries,
            low, head, far * ROWS, total - far, qt, gt, unit, cap_in, cap_out, floor, rest, window, sinks,
            D, DV, DP, DVP, GROUPS, KP, NEGATIVE, CAPPED, PRODUCT, DOT, HEADS, GATE, ROWS, True,
        )  # fmt: skip
        dk, dv, dx = _queries(
            dk, dv, dx, k, v, xk, Q, G, XQ, XK, LSE + line, DELTA + line, j, at, first, offset, queries,
            low + head * ROWS, 0, 0, far, qt, gt, unit, cap_in, cap_out, floor, rest, window, sinks,
            D, DV, DP, DVP, GROUPS, KP, NEGATIVE, CAPPED, PRODUCT, DOT, HEADS, GATE, ROWS, False,
        )  # fmt: skip
        there = (j < keys)[:, None]
        to = j.to(tl.int64)[:, None]
        if HEADS:
            d, w = tl.arange(0, DP)[None, :], tl.arange(0, DVP)[None, :]
            dk = (dk * size).to(DK.dtype.element_ty)
            tl.store(DK + b * dkb + s * dkh + to * dkt + d, dk, mask=there & (d < D))
            tl.store(DV_ + b * dvb + s * dvh + to * dvt + w, dv.to(DV_.dtype.element_ty), mask=there & (w < DV))
        if GATE:
            to += tl.program_id(1).to(tl.int64) * keys
            tl.store(DX + to * KP + tl.arange(0, KP)[None, :], dx * rest, mask=there)


def by_keys(
    call: Call, grad: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor, heads: bool, gate: bool, tile: Tile
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Gradients of keys and values (where ``heads``) and of key memberships (where ``gate``), a part a query head.

    Args:
        call: the call.
        grad: (B, Hq, Nq, Dv) gradient of the output.
        lse: (B, Hq, Nq) from the forward pass.
        delta: (B, Hq, Nq) products of output and its gradient.
        heads: whether q, k and v want gradients.
        gate: whether memberships want gradients.
        tile: sizes.

    Returns:
        (B, Hkv, share, Nk, D) and (B, Hkv, share, Nk, Dv), whose sums over ``share`` are the gradients, and
        (B, Hq, Nk, KP) in fp32; None where nobody wants it.
    """
    q, k, v = call.q, call.k, call.v
    batch, kv_heads, keys, dim = k.shape
    count, share, groups = q.shape[1], call.share, call.xk.shape[3]
    # Pads are in no tile; in fp32 where the parts are still to be summed.
    new = torch.empty if call.first is None else torch.zeros
    kind = {"device": q.device, "dtype": q.dtype if share == 1 else torch.float32}
    dk = new(batch, count, keys, dim, **kind) if heads else None
    dv = new(batch, count, keys, v.shape[3], **kind) if heads else None
    dx = new(batch, count, keys, groups, device=q.device, dtype=torch.float32) if gate else None
    to = [lse if x is None else x for x in (dk, dv, dx)]
    _by_keys[(cover(keys, tile.keys), batch * count)](
        q, k, v, call.xq, call.xk, call.xk if call.first is None else call.first, grad, lse, delta, *to,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad.stride()[:3], *to[0].stride()[:3],
        *to[1].stride()[:3], call.size, *call.factors, *call.sizes, **call.constants,
        HEADS=heads, GATE=gate, ROWS=tile.rows, BLOCK=tile.keys, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    dk, dv = (None if x is None else x.view(batch, kv_heads, share, keys, -1) for x in (dk, dv))
    return dk, dv, dx
