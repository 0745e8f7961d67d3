"""The groups of a few tokens in one launch: projections, lengths, logits, the largest ones, sets.

A decode step asks for them in every layer; by torch's operations they take some thirty launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.launch import ready


@ready
@triton.jit
def _sets(
    HIDDEN, KEY_WEIGHT, QUERY_WEIGHT, CENTROIDS, BIAS, KEYS, QUERIES, hb, hn, tokens, routers, width,
    DIM: tl.constexpr, DP: tl.constexpr, GROUPS: tl.constexpr, GP: tl.constexpr,
    KEY_TOPK: tl.constexpr, QUERY_TOPK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, r, side = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    b, n = row // tokens, row % tokens
    c, d = tl.arange(0, BLOCK), tl.arange(0, DP)
    acc = tl.zeros([BLOCK, DP], tl.float32)
    for start in range(0, width, BLOCK):
        i = start + c
        h = tl.load(HIDDEN + b * hb + n * hn + i, mask=i < width, other=0.0).to(tl.float32)
        at = (r * width + i)[:, None] * DIM + d[None, :]
        there = (i < width)[:, None] & (d < DIM)[None, :]
        if side == 0:
            w = tl.load(KEY_WEIGHT + at, mask=there, other=0.0)
        else:
            w = tl.load(QUERY_WEIGHT + at, mask=there, other=0.0)
        acc += h[:, None] * w.to(tl.float32)
    point = tl.sum(acc, 0)
    point /= tl.maximum(tl.sqrt(tl.sum(point * point, 0)), 1e-12)
    g = tl.arange(0, GP)
    at = (r * GROUPS + g)[:, None] * DIM + d[None, :]
    centroid = tl.load(CENTROIDS + at, mask=(g < GROUPS)[:, None] & (d < DIM)[None, :], other=0.0).to(tl.float32)
    size = tl.maximum(tl.sqrt(tl.sum(centroid * centroid, 1)), 1e-12)
    bias = tl.load(BIAS + r * GROUPS + g, mask=g < GROUPS, other=0.0).to(tl.float32)
    logit = tl.sum(centroid / size[:, None] * point[None, :], 1) + bias
    logit = tl.where(g < GROUPS, logit, float("-inf"))
    keys = tl.full([], 0, tl.int64)
    queries = tl.full([], 0, tl.int64)
    one = tl.full([], 1, tl.int64)
    for k in tl.static_range(max(KEY_TOPK, QUERY_TOPK)):
        best = tl.max(logit, 0)
        # No logit equals one that is no number.
        group = tl.min(tl.where(logit == best, g, GROUPS - 1), 0)
        logit = tl.where(g == group, float("-inf"), logit)
        if k < KEY_TOPK:
            keys |= one << group.to(tl.int64)
        if k < QUERY_TOPK:
            queries |= one << group.to(tl.int64)
    to = (b * routers + r) * tokens + n
    if side == 0:
        tl.store(KEYS + to, keys)
        if tl.num_programs(2) == 1:
            tl.store(QUERIES + to, queries)
    else:
        tl.store(QUERIES + to, queries)


def few_sets(
    hidden: torch.Tensor,
    key_weight: torch.Tensor,
    query_weight: torch.Tensor | None,
    centroids: torch.Tensor,
    bias: torch.Tensor,
    key_topk: int,
    query_topk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sets of the keys and of the queries, (B, R, N) int64 each, as ``Router.logits`` and ``top_groups`` give them.

    Args:
        hidden: (B, N, d).
        key_weight: (R, d, d_g), contiguous like all weights.
        query_weight: likewise; None where queries are projected as keys are.
        centroids: (R, K, d_g).
        bias: (R, K).
        key_topk: groups of a key; of equal logits the lowest groups count.
        query_topk: groups of a query.
    """
    batch, tokens, width = hidden.shape
    routers, groups, dim = centroids.shape
    hidden = hidden if hidden.stride(2) == 1 else hidden.contiguous()
    keys = torch.empty(batch, routers, tokens, dtype=torch.int64, device=hidden.device)
    queries = torch.empty_like(keys)
    padded = max(2, triton.next_power_of_2(dim))
    _sets[(batch * tokens, routers, 1 if query_weight is None else 2)](
        hidden, key_weight, key_weight if query_weight is None else query_weight, centroids, bias, keys, queries,
        *hidden.stride()[:2], tokens, routers, width,
        DIM=dim, DP=padded, GROUPS=groups, GP=max(2, triton.next_power_of_2(groups)),
        KEY_TOPK=min(key_topk, groups), QUERY_TOPK=min(query_topk, groups),
        BLOCK=max(32, min(triton.next_power_of_2(width), 1 << 14 >> (padded.bit_length() - 1))), num_warps=8,
    )  # fmt: skip
    return keys, queries
