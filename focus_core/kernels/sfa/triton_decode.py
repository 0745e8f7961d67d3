"""SFA for a few queries on a GPU: of the keys, their codes alone are read, once for all query heads that share them.

A query's numbers are laid out by feature, the heads of a key head side by side in words of 64 bits. A program walks
over its share of the keys: for every feature of a code it looks up one word, which holds that number of several
queries. The softmax runs along, and the values are read once. A second launch merges the programs' parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.tiles import Scores, cover, dot_precision, padded, scores_of
from focus_core.kernels.ready import launch
from focus_core.kernels.sfa.codes import Codes
from focus_core.kernels.split_merge import Parts, processors, split_keys


@dataclass(frozen=True)
class Plan:
    """Sizes of the decode kernel.

    Attributes:
        block: keys of a step.
        warps, stages: warps of a program, and steps whose loads are under way.
        gather: look words up among the program's own registers and shared memory; otherwise in the GPU's L1 cache.
        programs: programs for each multiprocessor.
    """

    block: int = 128
    warps: int = 4
    stages: int = 2
    gather: bool = True
    programs: int = 4


@triton.jit
def _words(
    Q, WORDS, HELD, qb, qh, qt, heads,
    SHARE: tl.constexpr, QUERIES: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, FEATURES: tl.constexpr,
    CHOOSE: tl.constexpr, NEGATIVE: tl.constexpr, EXCLUDE: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """One query's row of ``WORDS`` (B * Hkv, rows / PACK, D, PACK); rows past the last are 0."""
    row, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = group // heads, group % heads
    d = tl.arange(0, DP)
    real = (row < SHARE * QUERIES) & (d < D)
    q = tl.load(Q + b * qb + (h * SHARE + row // QUERIES) * qh + row % QUERIES * qt + d, mask=real, other=0.0)
    keep = d < D
    if CHOOSE:
        # Equal magnitudes go from the lowest feature on.
        size = tl.where(keep, tl.abs(q.to(tl.float32)), -1.0)
        before = (size[None, :] > size[:, None]) | ((size[None, :] == size[:, None]) & (d[None, :] < d[:, None]))
        keep = keep & (tl.sum(before.to(tl.int32), 1) < FEATURES)
    else:
        if EXCLUDE:
            keep = tl.load(HELD + group * D * SHARE * QUERIES + row * D + d, mask=real, other=0) != 0
    if NEGATIVE:
        q = -q
    to = ((group * (tl.num_programs(0) // PACK) + row // PACK) * D + d) * PACK + row % PACK
    tl.store(WORDS + to, tl.where(keep & real, q, 0.0), mask=d < D)
    if EXCLUDE:
        # Behind all queries' numbers: which of them are kept.
        offset = tl.num_programs(1).to(tl.int64) * tl.num_programs(0) * D
        tl.store(WORDS + offset + to, (keep & real).to(WORDS.dtype.element_ty), mask=d < D)


@triton.jit
def _lane(words, n: tl.constexpr, KIND: tl.constexpr, BITS: tl.constexpr):
    """Number n of words."""
    if BITS == 16:
        return (words >> (n * 16)).to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
    else:
        return (words >> (n * 32)).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _look_up(WORDS, held, at, D: tl.constexpr, BLOCK: tl.constexpr, KP: tl.constexpr, GATHER: tl.constexpr):
    if GATHER:
        found = tl.gather(held, tl.reshape(at, [BLOCK * KP]), 0)
        return tl.reshape(found, [BLOCK, KP])
    else:
        return tl.load(WORDS + at)


@triton.jit(do_not_specialize=["keys", "per"])
def _attend(
    WORDS, VALUES, IDS, V, FIRST, PART, MOST, SUM,
    cb, ch, ct, ib, ih, it, vb, vh, vt, unit, cap_in, cap_out, keys, per,
    REAL: tl.constexpr, QUERIES: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
    STORED: tl.constexpr, KP: tl.constexpr, HALVES: tl.constexpr, CODE_STEP: tl.constexpr, ID_STEP: tl.constexpr,
    V_STEP: tl.constexpr, KIND: tl.constexpr, BITS: tl.constexpr, WORDS_A_ROW: tl.constexpr,
    CAPPED: tl.constexpr, PADDED: tl.constexpr, EXCLUDE: tl.constexpr, DOT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, GATHER: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    split, h, b = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    group = b * tl.num_programs(1) + h
    PACK: tl.constexpr = 64 // BITS
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    # Strides in whole steps keep it known that rows lie at 16 bytes.
    C, I, W = VALUES + (b * cb + h * ch) * CODE_STEP, IDS + (b * ib + h * ih) * ID_STEP, V + (b * vb + h * vh) * V_STEP
    LOOK = WORDS + group * WORDS_A_ROW * D
    HELD = LOOK + tl.num_programs(2).to(tl.int64) * tl.num_programs(1) * WORDS_A_ROW * D
    t, dv, row, f = tl.arange(0, KP), tl.arange(0, DVP), tl.arange(0, ROWS), tl.arange(0, DP)
    i = keys - QUERIES + row % QUERIES
    m = tl.full([ROWS], -1e30, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DVP], tl.float32)
    begin = split * per
    stop = tl.minimum(begin + per, keys)
    for start in tl.range(begin, stop, BLOCK, num_stages=STAGES):
        j = start + tl.arange(0, BLOCK)
        there = j < stop
        far = j.to(tl.int64)[:, None]
        stored = there[:, None] & (t < STORED)[None, :]
        ids = tl.load(I + far * it * ID_STEP + t[None, :], mask=stored, other=0).to(tl.int32)
        v = tl.load(W + far * vt * V_STEP + dv[None, :], mask=there[:, None] & (dv < DV)[None, :], other=0.0)
        x = tl.zeros([ROWS, BLOCK], tl.float32)
        shared = tl.zeros([ROWS, BLOCK], tl.float32)
        for half in tl.static_range(HALVES):
            code = tl.load(C + far * ct * CODE_STEP + half * STORED + t[None, :], mask=stored, other=0.0)
            code = code.to(tl.float32)
            at = ids + half * (D // 2)
            for n in tl.static_range(WORDS_A_ROW):
                held = tl.load(LOOK + n * D + f, mask=f < D, other=0)
                words = _look_up(LOOK + n * D, held, at, D, BLOCK, KP, GATHER)
                for p in tl.static_range(PACK):
                    if n * PACK + p < REAL:
                        sum = tl.sum(_lane(words, p, KIND, BITS) * code, 1)
                        x += tl.where((row == n * PACK + p)[:, None], sum[None, :], 0.0)
                if EXCLUDE:
                    held = tl.load(HELD + n * D + f, mask=f < D, other=0)
                    words = _look_up(HELD + n * D, held, at, D, BLOCK, KP, GATHER)
                    for p in tl.static_range(PACK):
                        if n * PACK + p < REAL:
                            sum = tl.sum(tl.where(stored, _lane(words, p, KIND, BITS), 0.0), 1)
                            shared += tl.where((row == n * PACK + p)[:, None], sum[None, :], 0.0)
        if CAPPED:
            x = cap_out * (1.0 - 2.0 / (tl.exp2(x * cap_in) + 1.0))
        ok = there[None, :] & (row < REAL)[:, None]
        if PADDED:
            ok &= (j >= first)[None, :]
        if QUERIES > 1:
            ok &= j[None, :] <= i[:, None]
        if EXCLUDE:
            ok &= shared > 0
        x = tl.where(ok, x, float("-inf"))
        new = tl.maximum(m, tl.max(x, 1) * unit)
        weight = tl.exp2(x * unit - new[:, None])
        shrink = tl.exp2(m - new)
        l = l * shrink + tl.sum(weight, 1)
        acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None], input_precision=DOT)
        m = new
    to = (group * tl.num_programs(0) + split) * ROWS + row
    tl.store(MOST + to, m)
    tl.store(SUM + to, l)
    tl.store(PART + to[:, None] * DVP + dv[None, :], acc, mask=(l > 0)[:, None])


def plan_for(dtype: torch.dtype, widest: int, features: int) -> Plan:
    """Sizes for a head."""
    block = max(16, min(128, 2048 // padded(features)))
    if dtype == torch.float32 or widest > 128:
        return Plan(block=min(block, 32), stages=1)
    return Plan(block=block)


def sfa_decode(
    q: torch.Tensor,
    codes: Codes,
    v: torch.Tensor,
    query_support: torch.Tensor | None,
    *,
    choose: int | None,
    exclude: bool,
    first_key: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    return_lse: bool,
    plan: Plan | None = None,
):
    """SFA of the last few positions by Triton kernels.

    Args:
        q: (B, Hq, Nq, D); dense, or sparse already.
        codes: (B, Hkv, Nk, k) of the keys.
        v: (B, Hkv, Nk, Dv).
        query_support: (B, Hq, Nq, D) bool, read only with ``exclude`` and without ``choose``; None for all.
        choose: keep so many of a query's features, those that ``top_features`` takes; None to take ``q`` as it is.
        exclude: drop pairs without a shared feature.
        first_key: (B,) first real key of a row, or None.
        scale: factor of the scores.
        softcap: soft cap, or None.
        return_lse: also return the log-sum-exp.
        plan: sizes; those of ``plan_for`` when None.
    """
    q, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, v))
    values, ids = (x if x.stride(3) == 1 else x.contiguous() for x in (codes.values, codes.ids))
    batch, heads, queries, dim = q.shape
    kv_heads, keys, wide = v.shape[1:]
    share, kept = heads // kv_heads, values.shape[3]
    stored, halves = ids.shape[3], kept // ids.shape[3]
    real, bits = share * queries, 8 * q.dtype.itemsize
    pack = 64 // bits
    lines = cover(real, pack) * pack
    groups = batch * kv_heads
    plan = plan or plan_for(q.dtype, max(dim, wide), kept)
    scores: Scores = scores_of(scale, softcap)
    words = torch.empty((2 if exclude else 1) * groups * lines * dim, dtype=q.dtype, device=q.device)
    held = q
    if exclude and choose is None:
        held = torch.ones_like(q, dtype=torch.bool) if query_support is None else query_support.contiguous()
    constants = {
        "SHARE": share, "QUERIES": queries, "D": dim, "DP": padded(dim), "FEATURES": choose or dim,
        "CHOOSE": choose is not None, "NEGATIVE": scores.negative, "EXCLUDE": exclude, "PACK": pack,
    }  # fmt: skip
    fixed = *q.stride()[:3], kv_heads
    launch(_words, (lines, groups), (q, words, held), fixed, (), constants, num_warps=4)
    splits, per = split_keys(keys, groups, plan.programs * processors(q.device), plan.block)
    rows = padded(real)
    parts = Parts(groups, real, rows, splits, wide, q.device)
    steps = [_step(x) for x in (values, ids, v)]
    strides = [s // step if n > 1 else 0 for x, step in zip((values, ids, v), steps, strict=True)
               for s, n in zip(x.stride()[:3], x.shape[:3], strict=True)]  # fmt: skip
    first = values if first_key is None else first_key.to(q.device, torch.int32)
    tensors = words.view(torch.int64), values, ids, v, first, parts.part, parts.most, parts.total
    constants = {
        "REAL": real, "QUERIES": queries, "D": dim, "DP": padded(dim), "DV": wide, "DVP": padded(wide),
        "STORED": stored, "KP": 1 << (stored - 1).bit_length(), "HALVES": halves, "CODE_STEP": steps[0],
        "ID_STEP": steps[1], "V_STEP": steps[2], "KIND": _KINDS[q.dtype], "BITS": bits, "WORDS_A_ROW": lines // pack,
        "CAPPED": scores.capped, "PADDED": first_key is not None, "EXCLUDE": exclude, "DOT": dot_precision(q.dtype),
        "ROWS": rows, "BLOCK": plan.block, "GATHER": plan.gather, "STAGES": plan.stages,
    }  # fmt: skip
    free = scores.unit, scores.cap_in, scores.cap_out, keys, per
    launch(_attend, (splits, kv_heads, batch), tensors, tuple(strides), free, constants, num_warps=plan.warps)
    out = q.new_empty(batch, heads, queries, wide)
    lse = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device) if return_lse else None
    parts.merge(out, lse)
    return (out, lse) if return_lse else out


_KINDS = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def _step(x: torch.Tensor) -> int:
    """The largest number of elements that divides all strides of dimensions that are walked."""
    return math.gcd(*(stride for stride, size in zip(x.stride()[:3], x.shape[:3], strict=True) if size > 1)) or 1
