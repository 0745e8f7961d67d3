"""A few new queries against a cache: reads every key's set, and of keys and values only the kept rows.

Each program looks at one chunk of one key head's sets, lists the keys that any of the queries keeps, and attends to
them for all query heads that share the key head. A second launch merges the chunks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.launch import ready
from focus_core.kernels.focus.triton.tiles import Scores, block_step, cover, dot_precision, padded

_FEW = 2048


@ready
@triton.jit(do_not_specialize=["keys", "window", "sinks"])
def _chunk(
    Q, K, V, QUERY_BITS, KEY_BITS, FIRST, LIST, PART, MOST, SUM,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, qbb, qbr, qbt, kbb, kbr, kbt,
    unit, cap_in, cap_out, keys, routers, window, sinks,
    SHARE: tl.constexpr, QUERIES: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr,
    NEGATIVE: tl.constexpr, CAPPED: tl.constexpr, PADDED: tl.constexpr, DOT: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    heads = tl.num_programs(1)
    r = h // (heads // routers)
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    QS, KS = QUERY_BITS + b * qbb + r * qbr, KEY_BITS + b * kbb + r * kbr
    j = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    sets = tl.load(KS + j.to(tl.int64) * kbt, mask=j < keys, other=0)
    keep = tl.zeros([CHUNK], tl.int1)
    for n in tl.static_range(QUERIES):
        i = keys - QUERIES + n
        shared = (sets & tl.load(QS + n * qbt)) != 0
        keep |= ((j <= i) & (j >= first)) & (((i - j < window) | (j - first < sinks)) | shared)
    place = tl.cumsum(keep.to(tl.int32), 0)
    count = tl.sum(keep.to(tl.int32), 0)
    piece = (b * heads + h) * tl.num_programs(0) + tl.program_id(0)
    tl.store(LIST + piece * CHUNK + place - 1, j, mask=keep)
    tl.debug_barrier()
    row = tl.arange(0, ROWS)
    real = row < SHARE * QUERIES
    head, n = h * SHARE + row // QUERIES, row % QUERIES
    i = keys - QUERIES + n
    d, dv = tl.arange(0, DP), tl.arange(0, DVP)
    at_q = Q + (b * qb + head * qh + n * qt)[:, None] + d[None, :]
    q = tl.load(at_q, mask=real[:, None] & (d < D)[None, :], other=0.0)
    if NEGATIVE:
        q = -q
    wanted = tl.load(QS + n * qbt)
    m = tl.full([ROWS], -1e30, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DVP], tl.float32)
    for start in range(0, count, BLOCK):
        e = start + tl.arange(0, BLOCK)
        there = e < count
        at = tl.load(LIST + piece * CHUNK + e, mask=there, other=0)
        far = at.to(tl.int64)[:, None]
        k = tl.load(K + b * kb + h * kh + far * kt + d[None, :], mask=there[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(V + b * vb + h * vh + far * vt + dv[None, :], mask=there[:, None] & (dv < DV)[None, :], other=0.0)
        ok = there[None, :] & real[:, None]
        if QUERIES > 1:
            offered = tl.load(KS + at.to(tl.int64) * kbt, mask=there, other=0)
            near = (i[:, None] - at[None, :] < window) | (at - first < sinks)[None, :]
            ok &= (at[None, :] <= i[:, None]) & (i >= first)[:, None]
            ok &= near | ((wanted[:, None] & offered[None, :]) != 0)
        m, l, acc = block_step(q, k, v, ok, m, l, acc, unit, cap_in, cap_out, True, CAPPED, DOT)
    # Rows of one chunk lie together: (batch, key head, chunk, row).
    to = piece * ROWS + row
    tl.store(MOST + to, m)
    tl.store(SUM + to, l)
    tl.store(PART + to[:, None] * DVP + dv[None, :], acc, mask=(l > 0)[:, None])


@ready
@triton.jit(do_not_specialize=["chunks"])
def _merge(
    PART, MOST, SUM, OUT, LSE, chunks,
    SHARE: tl.constexpr, QUERIES: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, ROWS: tl.constexpr,
    SUMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    dv = tl.arange(0, DVP)
    m = tl.full([BLOCK], -1e30, tl.float32)
    l = tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK, DVP], tl.float32)
    for start in range(0, chunks, BLOCK):
        c = start + tl.arange(0, BLOCK)
        at = (group * chunks + c) * ROWS + row
        part_l = tl.load(SUM + at, mask=c < chunks, other=0.0)
        some = part_l > 0
        part_m = tl.load(MOST + at, mask=some, other=-1e30)
        part = tl.load(PART + at[:, None] * DVP + dv[None, :], mask=some[:, None], other=0.0)
        new = tl.maximum(m, part_m)
        old, fresh = tl.exp2(m - new), tl.exp2(part_m - new)
        acc = acc * old[:, None] + part * fresh[:, None]
        l = l * old + part_l * fresh
        m = new
    top = tl.max(m, 0)
    weight = tl.exp2(m - top)
    whole = tl.sum(l * weight, 0)
    safe = tl.where(whole > 0, whole, 1.0)
    out = tl.sum(acc * weight[:, None], 0) / safe
    to = (group * SHARE + row // QUERIES) * QUERIES + row % QUERIES
    tl.store(OUT + to * DV + dv, out.to(OUT.dtype.element_ty), mask=dv < DV)
    if SUMS:
        tl.store(LSE + to, tl.where(whole > 0, (top + tl.log2(safe)) * 0.6931471805599453, float("-inf")))


def decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_bits: torch.Tensor,
    key_bits: torch.Tensor,
    window: int,
    sinks: int,
    first: torch.Tensor | None,
    scores: Scores,
    return_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of the last few positions; arguments as in ``focus_attention``.

    Returns:
        (B, Hq, Nq, Dv), and (B, Hq, Nq) natural-log log-sum-exp where asked for.
    """
    batch, heads, queries, dim = q.shape
    kv_heads, keys, wide = v.shape[1:]
    share = heads // kv_heads
    rows = padded(share * queries)
    # Small chunks fill the GPU when there is little work; large ones leave less to merge.
    chunk = 1024 if batch * kv_heads * cover(keys, 2048) < _FEW else 2048
    chunks = cover(keys, chunk)
    pieces = batch * kv_heads * chunks
    listed = torch.empty(pieces * chunk, dtype=torch.int32, device=q.device)
    sums = torch.empty(pieces * rows * (padded(wide) + 2), dtype=torch.float32, device=q.device)
    part, most, total = sums.split([pieces * rows * padded(wide), pieces * rows, pieces * rows])
    block = 64 if q.dtype != torch.float32 else 32
    _chunk[(chunks, kv_heads, batch)](
        q, k, v, query_bits, key_bits, key_bits if first is None else first, listed, part, most, total,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *query_bits.stride(), *key_bits.stride(),
        scores.unit, scores.cap_in, scores.cap_out, keys, key_bits.shape[1], window, sinks,
        SHARE=share, QUERIES=queries, D=dim, DV=wide, DP=padded(dim), DVP=padded(wide),
        NEGATIVE=scores.negative, CAPPED=scores.capped, PADDED=first is not None, DOT=dot_precision(q.dtype),
        ROWS=rows, CHUNK=chunk, BLOCK=block, num_warps=4, num_stages=2,
    )  # fmt: skip
    out = q.new_empty(batch, heads, queries, wide)
    lse = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device) if return_lse else None
    _merge[(share * queries, batch * kv_heads)](
        part, most, total, out, out if lse is None else lse, chunks,
        SHARE=share, QUERIES=queries, DV=wide, DVP=padded(wide), ROWS=rows, SUMS=return_lse, BLOCK=64, num_warps=8,
    )  # fmt: skip
    return out, lse
