"""MLA's absorbed form for a few queries on a GPU: the latent is read once for many heads, as key and as value.

W_UK is folded into the queries before and W_UV into the sums after, by plain matrix products. A program walks over its
share of the cache with a tile of heads; the same block of latents in shared memory gives the scores and is weighted by
them. A second launch merges the programs' parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.tiles import cover, dot_precision, padded, scores_of
from focus_core.kernels.ready import launch
from focus_core.kernels.split_merge import Parts, processors, split_keys


@dataclass(frozen=True)
class Plan:
    """Sizes of the decode kernel: rows and keys of a step, warps, stages, and programs for each multiprocessor."""

    rows: int = 64
    block: int = 64
    warps: int = 8
    stages: int = 2
    programs: int = 1


@triton.jit(do_not_specialize=["keys", "per"])
def _attend(
    Q, TURNED, SHIFT, LATENT, ROTATED, FIRST, PART, MOST, SUM, cb, ct, rb, rh, rt, unit, cap_in, cap_out, keys, per,
    TOTAL: tl.constexpr, QUERIES: tl.constexpr, RANK: tl.constexpr, RANKP: tl.constexpr, ROPE: tl.constexpr,
    ROPEP: tl.constexpr, SHIFTED: tl.constexpr, CAPPED: tl.constexpr, PADDED: tl.constexpr, NEGATIVE: tl.constexpr,
    DOT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    split, b = tl.program_id(0), tl.program_id(2).to(tl.int64)
    TILES: tl.constexpr = (TOTAL + ROWS - 1) // ROWS
    h, tile = (tl.program_id(1) // TILES).to(tl.int64), tl.program_id(1) % TILES
    group = b * (tl.num_programs(1) // TILES) + h
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    row = tile * ROWS + tl.arange(0, ROWS)
    real = row < TOTAL
    i = keys - QUERIES + row % QUERIES
    r, d = tl.arange(0, RANKP), tl.arange(0, ROPEP)
    at = (group * TOTAL + row)[:, None]
    q = tl.load(Q + at * RANK + r[None, :], mask=real[:, None] & (r < RANK)[None, :], other=0.0)
    if NEGATIVE:
        q = -q
    if ROPE > 0:
        turned = tl.load(TURNED + at * ROPE + d[None, :], mask=real[:, None] & (d < ROPE)[None, :], other=0.0)
        if NEGATIVE:
            turned = -turned
    if SHIFTED:
        shift = tl.load(SHIFT + group * TOTAL + row, mask=real, other=0.0)
        if NEGATIVE:
            shift = -shift
    L, R = LATENT + b * cb, ROTATED + b * rb + h * rh
    m = tl.full([ROWS], -1e30, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, RANKP], tl.float32)
    begin = split * per
    stop = tl.minimum(begin + per, keys)
    for start in tl.range(begin, stop, BLOCK, num_stages=STAGES):
        j = start + tl.arange(0, BLOCK)
        there = j < stop
        far = j.to(tl.int64)[:, None]
        c = tl.load(L + far * ct + r[None, :], mask=there[:, None] & (r < RANK)[None, :], other=0.0)
        x = tl.dot(q, tl.trans(c), input_precision=DOT)
        if ROPE > 0:
            k = tl.load(R + far * rt + d[None, :], mask=there[:, None] & (d < ROPE)[None, :], other=0.0)
            x = tl.dot(turned, tl.trans(k), x, input_precision=DOT)
        if SHIFTED:
            x += shift[:, None]
        if CAPPED:
            x = cap_out * (1.0 - 2.0 / (tl.exp2(x * cap_in) + 1.0))
        ok = there[None, :]
        if PADDED:
            ok &= (j >= first)[None, :]
        if QUERIES > 1:
            ok &= j[None, :] <= i[:, None]
        x = tl.where(ok, x, float("-inf"))
        new = tl.maximum(m, tl.max(x, 1) * unit)
        weight = tl.exp2(x * unit - new[:, None])
        shrink = tl.exp2(m - new)
        l = l * shrink + tl.sum(weight, 1)
        acc = tl.dot(weight.to(c.dtype), c, acc * shrink[:, None], input_precision=DOT)
        m = new
    to = ((group * TILES + tile) * tl.num_programs(0) + split) * ROWS + tl.arange(0, ROWS)
    tl.store(MOST + to, m)
    tl.store(SUM + to, tl.where(real, l, 0.0))
    tl.store(PART + to[:, None] * RANKP + r[None, :], acc, mask=((l > 0) & real)[:, None])


def plan_for(dtype: torch.dtype, rows: int, rank: int) -> Plan:
    """Sizes for so many rows and so long a latent."""
    if dtype == torch.float32:
        return Plan(rows=16, block=16 if rank > 256 else 32, warps=4, stages=1, programs=4)
    if rows <= 32:
        return Plan(rows=padded(rows), block=32, warps=4, stages=2, programs=4)
    return Plan()


def mla_decode(
    q,
    latent,
    k_rope,
    up_k,
    up_v,
    *,
    bias_k,
    bias_v,
    first_key,
    scale: float,
    softcap: float | None,
    return_lse: bool,
    plan: Plan | None = None,
):
    """MLA's absorbed form by Triton kernels; arguments as in ``mla_attention``, checked already."""
    batch, heads, queries, _ = q.shape
    shared, keys, rope = k_rope.shape[1:]
    rank, nope = latent.shape[3], up_k.shape[1]
    latent, k_rope = (x if x.stride(3) == 1 or not x.numel() else x.contiguous() for x in (latent, k_rope))
    folded = by_head(q[..., :nope], up_k)
    turned = q[..., nope:].contiguous() if rope else folded
    shift = folded if bias_k is None else by_head(q[..., :nope].float(), bias_k.float()[..., None]).squeeze(-1)
    scores, total = scores_of(scale, softcap), heads // shared * queries
    plan = plan or plan_for(q.dtype, total, rank)
    rows = min(plan.rows, padded(total))
    tiles = cover(total, rows)
    splits, per = split_keys(keys, batch * shared * tiles, plan.programs * processors(q.device), plan.block)
    parts = Parts(batch * shared, total, rows, splits, rank, q.device)
    first = latent if first_key is None else first_key.to(q.device, torch.int32)
    tensors = (
        folded, turned, shift, latent, k_rope if rope else latent, first, parts.part, parts.most, parts.total,
    )  # fmt: skip
    constants = {
        "TOTAL": total, "QUERIES": queries, "RANK": rank, "RANKP": padded(rank), "ROPE": rope,
        "ROPEP": padded(max(1, rope)), "SHIFTED": bias_k is not None, "CAPPED": scores.capped,
        "PADDED": first_key is not None, "NEGATIVE": scores.negative, "DOT": dot_precision(q.dtype), "ROWS": rows,
        "BLOCK": plan.block, "STAGES": plan.stages,
    }  # fmt: skip
    fixed = latent.stride(0), latent.stride(2), *k_rope.stride()[:3]
    free = scores.unit, scores.cap_in, scores.cap_out, keys, per
    launch(_attend, (splits, shared * tiles, batch), tensors, fixed, free, constants, num_warps=plan.warps)
    mixed = q.new_empty(batch, heads, queries, rank)
    lse = None
    if return_lse or (bias_v is not None and first_key is not None):
        lse = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device)
    parts.merge(mixed, lse)
    out = by_head(mixed, up_v.transpose(-1, -2))
    if bias_v is not None:
        bias = bias_v.repeat_interleave(heads // bias_v.shape[0], 0)[:, None]
        # A padded query attends to nothing, and its weights sum to 0.
        out = out + (bias if first_key is None else bias * (lse > -torch.inf)[..., None])
    return (out, lse) if return_lse else out


def by_head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(B, H, N, i) times one matrix (i, o) a head or group of heads, (Hu, i, o): contiguous (B, H, N, o)."""
    batch, heads, tokens, size = x.shape
    groups, _, wide = weight.shape
    # Heads first: a product with a batch in front would copy the weights for each of its rows.
    stacked = x.reshape(batch, groups, -1, size).transpose(0, 1).reshape(groups, -1, size)
    made = torch.bmm(stacked, weight).view(groups, batch, -1, wide).transpose(0, 1)
    return made.reshape(batch, heads, tokens, wide).contiguous()
