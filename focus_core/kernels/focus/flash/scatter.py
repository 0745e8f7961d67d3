"""Queries, keys and values in the order of the groups: read once in a row, each row written to its place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.launch import ready
from focus_core.kernels.focus.triton.tiles import cover, padded


@triton.jit
def _move(FROM, TO, there, some, D: tl.constexpr, DP: tl.constexpr):
    d = tl.arange(0, DP)[None, :]
    x = tl.load(FROM[:, None] + d, mask=some[:, None] & (d < D), other=0.0)
    tl.store(TO[:, None] + d, x, mask=there[:, None] & (d < D))


@ready
@triton.jit(do_not_specialize=["keys", "queries"])
def _scatter(
    Q, K, V, QUERIES, KEYS, VALUES, QUERY_SPOT, KEY_SPOT, GROUP, qb, qh, qt, kb, kh, kt, vb, vh, vt,
    qst, qsh, kst, ksh, vst, vsh, keys, queries, routers,
    SHARE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    per = tl.num_programs(1) // routers
    line, at = b * routers + h // per, h % per
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = t < keys
    far = t.to(tl.int64)
    spot = tl.load(KEY_SPOT + line * keys + t, mask=there, other=0).to(tl.int64)
    # Tokens of no group, padding too, are 0: blocks of flash-attn-4 reach into them, and 0 times a NaN would be NaN.
    some = tl.load(GROUP + line * keys + t, mask=there, other=-2) >= 0
    _move(K + b * kb + h * kh + far * kt, KEYS + spot * kst + at * ksh, there, some, D, DP)
    _move(V + b * vb + h * vh + far * vt, VALUES + spot * vst + at * vsh, there, some, DV, DVP)
    n = t - (keys - queries)
    there &= n >= 0
    far = n.to(tl.int64)
    spot = tl.load(QUERY_SPOT + line * queries + n, mask=there, other=0).to(tl.int64)
    for s in tl.static_range(SHARE):
        head = Q + b * qb + (h * SHARE + s) * qh
        _move(head + far * qt, QUERIES + spot * qst + (at * SHARE + s) * qsh, there, there, D, DP)


def sorted_rows(tokens: int, heads: int, dim: int, like: torch.Tensor, by_head: bool) -> torch.Tensor:
    """Room for (tokens, heads, dim), head by head in memory or token by token."""
    if by_head:
        return like.new_empty(heads, tokens, dim).transpose(0, 1)
    return like.new_empty(tokens, heads, dim)


def scatter_tokens(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spots: tuple[torch.Tensor, torch.Tensor],
    group: torch.Tensor,
    routers: int,
    rows: int = 128,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Copies of q (B * R * Nq, Hq / R, D), k (B * R * Nk, Hkv / R, D) and v in the order of the groups.

    Args:
        q: (B, Hq, Nq, D).
        k: (B, Hkv, Nk, D).
        v: (B, Hkv, Nk, Dv).
        spots: (B * R, Nq) row of each query, and (B * R, Nk) row of each key.
        group: (B * R, Nk) group of each key, below 0 where it has none.
        routers: R, 1 or Hkv.
        rows: tokens a program moves.
    """
    batch, heads, queries, dim = q.shape
    kv_heads, keys, wide = v.shape[1:]
    # One line: head by head, so that a block of keys is one stretch of memory.
    by_head = batch * routers == 1
    kind = [(q, heads, queries, dim), (k, kv_heads, keys, dim), (v, kv_heads, keys, wide)]
    done = [sorted_rows(batch * routers * n, h // routers, size, x, by_head) for x, h, n, size in kind]
    _scatter[(cover(keys, rows), kv_heads, batch)](
        q, k, v, *done, *spots, group, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        *done[0].stride()[:2], *done[1].stride()[:2], *done[2].stride()[:2], keys, queries, routers,
        SHARE=heads // kv_heads, D=dim, DV=wide, DP=padded(dim), DVP=padded(wide), ROWS=rows, num_warps=4,
    )  # fmt: skip
    return done[0], done[1], done[2]
