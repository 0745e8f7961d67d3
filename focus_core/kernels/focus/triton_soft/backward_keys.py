"""The backward pass with a tile of keys held: gradients of keys, values and key memberships.

The query heads that share a key head are summed in the tile, or, to fill the GPU with more and shorter programs, each
writes its own part. ``FUSED`` adds the queries' gradients too, by atomics: each tile is then made once instead of
twice, and the sums' order, so their rounding, changes from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.tiles import Tile, cover
from focus_core.kernels.focus.triton_soft.call import Call
from focus_core.kernels.focus.triton_soft.gate import agreement, base2, pull, rows


@triton.jit
def _queries(
    dk, dv, dx, k, v, xk, Q, G, XQ, XK, LSE, DELTA, DQ, DXQ, j, at, first, offset, queries, base, head, gap, count,
    qt, gt, dt, size, unit, cap_in, cap_out, floor, rest, window, sinks,
    D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr, GROUPS: tl.constexpr, KP: tl.constexpr,
    NEGATIVE: tl.constexpr, CAPPED: tl.constexpr, PRODUCT: tl.constexpr, DOT: tl.constexpr, HEADS: tl.constexpr,
    GATE: tl.constexpr, FUSED: tl.constexpr, ROWS: tl.constexpr, MASKED: tl.constexpr,
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
            ds = (t * w * slope).to(q.dtype)
            dk = tl.dot(ds, q, dk, input_precision=DOT)
            if FUSED:
                dq = tl.dot(tl.trans(ds), k, input_precision=DOT) * size
                if NEGATIVE:
                    dq = -dq
                d = tl.arange(0, DP)
                to = DQ + n.to(tl.int64)[:, None] * dt + d[None, :]
                tl.atomic_add(to, dq, mask=real[:, None] & (d < D)[None, :], sem="relaxed")
        if GATE:
            dx = pull(dx, far, apart, xq, XK, XQ, at, row, GROUPS, KP, PRODUCT, DOT)
            if FUSED:
                one = tl.dot(tl.trans(far.to(xk.dtype)), xk, input_precision=DOT) * rest
                to = DXQ + n.to(tl.int64)[:, None] * KP + tl.arange(0, KP)[None, :]
                tl.atomic_add(to, one, mask=real[:, None] & (tl.arange(0, KP) < GROUPS)[None, :], sem="relaxed")
    return dk, dv, dx


@triton.jit(do_not_specialize=["queries", "keys", "heads", "routers", "window", "sinks"])
def _by_keys(
    Q, K, V, XQ, XK, FIRST, G, LSE, DELTA, DK, DV_, DX, DQ, DXQ,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, dkb, dkh, dkt, dvb, dvh, dvt, dqb, dqh, dqt,
    size, unit, cap_in, cap_out, floor, rest, queries, keys, heads, routers, window, sinks,
    SHARE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr,
    GROUPS: tl.constexpr, KP: tl.constexpr, NEGATIVE: tl.constexpr, CAPPED: tl.constexpr, PADDED: tl.constexpr,
    PRODUCT: tl.constexpr, DOT: tl.constexpr, HEADS: tl.constexpr, GATE: tl.constexpr, FUSED: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    parts = heads // SHARE * PARTS
    b, part = (tl.program_id(1) // parts).to(tl.int64), (tl.program_id(1) % parts).to(tl.int64)
    h = part // PARTS
    r = b * routers + h // (heads // SHARE // routers)
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
        for one in range(0, SHARE // PARTS):
            s = h * SHARE + part % PARTS * (SHARE // PARTS) + one
            line = (b * heads + s) * queries
            Qs, Gs = Q + b * qb + s * qh, G + b * gb + s * gh
            DQs, DXQs = DQ + b * dqb + s * dqh, DXQ + line * KP
            dk, dv, dx = _queries(
                dk, dv, dx, k, v, xk, Qs, Gs, XQ, XK, LSE + line, DELTA + line, DQs, DXQs, j, at, first, offset,
                queries, low, head, far * ROWS, total - far, qt, gt, dqt, size, unit, cap_in, cap_out, floor, rest,
                window, sinks, D, DV, DP, DVP, GROUPS, KP, NEGATIVE, CAPPED, PRODUCT, DOT, HEADS, GATE, FUSED, ROWS,
                True,
            )  # fmt: skip
            dk, dv, dx = _queries(
                dk, dv, dx, k, v, xk, Qs, Gs, XQ, XK, LSE + line, DELTA + line, DQs, DXQs, j, at, first, offset,
                queries, low + head * ROWS, 0, 0, far, qt, gt, dqt, size, unit, cap_in, cap_out, floor, rest,
                window, sinks, D, DV, DP, DVP, GROUPS, KP, NEGATIVE, CAPPED, PRODUCT, DOT, HEADS, GATE, FUSED, ROWS,
                False,
            )  # fmt: skip
        there = (j < keys)[:, None]
        to = j.to(tl.int64)[:, None]
        if HEADS:
            d, w = tl.arange(0, DP)[None, :], tl.arange(0, DVP)[None, :]
            dk = (dk * size).to(DK.dtype.element_ty)
            tl.store(DK + b * dkb + part * dkh + to * dkt + d, dk, mask=there & (d < D))
            tl.store(DV_ + b * dvb + part * dvh + to * dvt + w, dv.to(DV_.dtype.element_ty), mask=there & (w < DV))
        if GATE:
            to += tl.program_id(1).to(tl.int64) * keys
            tl.store(DX + to * KP + tl.arange(0, KP)[None, :], dx * rest, mask=there)


@dataclass(frozen=True)
class KeyGradients:
    """What ``by_keys`` computes; a field is None where nobody wants it.

    Attributes:
        k: (B, Hkv, parts, Nk, D).
        v: (B, Hkv, parts, Nk, Dv).
        xk: (B, Hkv * parts, Nk, KP) in fp32.
        q: (B, Hq, Nq, D) in fp32; None unless fused.
        xq: (B, Hq, Nq, KP) in fp32; None unless fused.
    """

    k: torch.Tensor | None
    v: torch.Tensor | None
    xk: torch.Tensor | None
    q: torch.Tensor | None
    xq: torch.Tensor | None


def by_keys(
    call: Call,
    grad: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    heads: bool,
    gate: bool,
    tile: Tile,
    split: bool,
    fused: bool,
) -> KeyGradients:
    """Gradients of keys and values (where ``heads``) and of key memberships (where ``gate``).

    Args:
        call: the call.
        grad: (B, Hq, Nq, Dv) gradient of the output.
        lse: (B, Hq, Nq) from the forward pass.
        delta: (B, Hq, Nq) products of output and its gradient.
        heads: whether q, k and v want gradients.
        gate: whether memberships want gradients.
        tile: sizes.
        split: each query head writes its own part instead of being summed with those that share its key head.
        fused: add the queries' gradients too.
    """
    q, k, v = call.q, call.k, call.v
    batch, kv_heads, keys, dim = k.shape
    parts = call.share if split else 1
    groups = call.xk.shape[3]
    # Pads are in no tile; in fp32, because the parts are still to be summed.
    new = torch.empty if call.first is None else torch.zeros
    kind = {"device": q.device, "dtype": q.dtype if parts == 1 else torch.float32}
    wide = {"device": q.device, "dtype": torch.float32}
    dk = new(batch, kv_heads * parts, keys, dim, **kind) if heads else None
    dv = new(batch, kv_heads * parts, keys, v.shape[3], **kind) if heads else None
    dx = new(batch, kv_heads * parts, keys, groups, **wide) if gate else None
    dq = torch.zeros(q.shape, **wide) if heads and fused else None
    dxq = torch.zeros(*q.shape[:3], groups, **wide) if gate and fused else None
    to = [lse if x is None else x for x in (dk, dv, dx, dq, dxq)]
    _by_keys[(cover(keys, tile.keys), batch * kv_heads * parts)](
        q, k, v, call.xq, call.xk, call.xk if call.first is None else call.first, grad, lse, delta, *to,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad.stride()[:3], *to[0].stride()[:3],
        *to[1].stride()[:3], *to[3].stride()[:3], call.size, *call.factors, *call.sizes, **call.constants,
        HEADS=heads, GATE=gate, FUSED=fused, PARTS=parts, ROWS=tile.rows, BLOCK=tile.keys,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    dk, dv = (None if x is None else x.view(batch, kv_heads, parts, keys, -1) for x in (dk, dv))
    return KeyGradients(dk, dv, dx, dq, dxq)
