"""A few new queries against a cache with lists of each group's keys: only what is kept is looked at, sets included.

One launch: a program takes every SPLITS-th block of the keys that one key head keeps, for all query heads that share
it; the last program of a key head to arrive merges the parts, and the last of a router appends the new tokens to its
lists. How long the lists are, and where asked for how many tokens there are, is read on the GPU, so that a CUDA graph
of a step serves the next steps too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.lists import GroupLists, append_tokens
from focus_core.kernels.focus.triton.tiles import Scores, block_step, cover, dot_precision, padded


@triton.jit
def _merge_parts(
    PART, MOST, SUM, OUT, LSE, piece, group, bad,
    REAL: tl.constexpr, RP: tl.constexpr, SPLITS: tl.constexpr, SP: tl.constexpr, SB: tl.constexpr,
    DV: tl.constexpr, DVP: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    c, row, dv = tl.arange(0, SP), tl.arange(0, RP), tl.arange(0, DVP)
    at = (piece + c[:, None]) * RP + row[None, :]
    there = (c < SPLITS)[:, None] & (row < REAL)[None, :]
    l = tl.load(SUM + at, mask=there, other=0.0, cache_modifier=".cg")
    m = tl.load(MOST + at, mask=there & (l > 0), other=-1e30, cache_modifier=".cg")
    top = tl.max(m, 0)
    whole = tl.sum(l * tl.exp2(m - top[None, :]), 0)
    acc = tl.zeros([RP, DVP], tl.float32)
    for start in tl.static_range(0, SPLITS, SB):
        s = start + tl.arange(0, SB)
        where = (piece + s[:, None]) * RP + row[None, :]
        ok = (s < SPLITS)[:, None] & (row < REAL)[None, :]
        some = ok & (tl.load(SUM + where, mask=ok, other=0.0, cache_modifier=".cg") > 0)
        weight = tl.exp2(tl.load(MOST + where, mask=some, other=-1e30, cache_modifier=".cg") - top[None, :])
        far = where[:, :, None] * DVP + dv[None, None, :]
        part = tl.load(PART + far, mask=some[:, :, None], other=0.0, cache_modifier=".cg")
        acc += tl.sum(part * weight[:, :, None], 0)
    safe = tl.where(whole > 0, whole, 1.0)
    out = acc / safe[:, None]
    out = tl.where(bad, float("nan"), out)
    to = group * REAL + row
    ok = (row < REAL)[:, None] & (dv < DV)[None, :]
    tl.store(OUT + to[:, None] * DV + dv[None, :], out.to(OUT.dtype.element_ty), mask=ok)
    if SUMS:
        lse = tl.where(whole > 0, (top + tl.log2(safe)) * 0.6931471805599453, float("-inf"))
        tl.store(LSE + to, tl.where(bad, float("nan"), lse), mask=row < REAL)


@triton.jit(
    do_not_specialize=["keys", "window", "sinks", "pages", "longest"],
    do_not_specialize_on_alignment=["QUERY_BITS", "KEY_BITS", "FIRST", "TOKENS"],
)
def _attend(
    Q, K, V, QUERY_BITS, KEY_BITS, FIRST, TOKENS, POOL, TABLE, LENGTHS, USED, ARRIVED, PART, OUT, LSE,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, qbb, qbr, qbt, kbb, kbr, kbt,
    unit, cap_in, cap_out, keys, window, sinks, pages, longest,
    ROUTERS: tl.constexpr, SHARE: tl.constexpr, QUERIES: tl.constexpr, GROUPS: tl.constexpr, GP: tl.constexpr,
    HELD: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr,
    NEGATIVE: tl.constexpr, CAPPED: tl.constexpr, PADDED: tl.constexpr, COUNTED: tl.constexpr, APPEND: tl.constexpr,
    SUMS: tl.constexpr, DOT: tl.constexpr, ROWS: tl.constexpr, RP: tl.constexpr, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, SP: tl.constexpr, SB: tl.constexpr,
):  # fmt: skip
    split, h, b = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    heads = tl.num_programs(1)
    each = heads // ROUTERS
    r = h // each
    line = b * ROUTERS + r
    if COUNTED:
        keys = tl.load(TOKENS).to(tl.int32)
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    bad = tl.load(USED + line) > pages
    QS, KS = QUERY_BITS + b * qbb + r * qbr, KEY_BITS + b * kbb + r * kbr
    # The sinks, then what any of the queries has in its window, then the lists: each from where the one before ends.
    old = keys - QUERIES
    begin = first + sinks
    near = tl.maximum(old - window + 1, begin)
    sunk = tl.minimum(begin, keys) - first
    close = sunk + tl.maximum(keys - near, 0)
    wanted_by_any = tl.load(QS)
    for n in tl.static_range(1, QUERIES):
        wanted_by_any |= tl.load(QS + n * qbt)
    g = tl.arange(0, GP)
    looks = (((wanted_by_any >> g.to(tl.int64)) & 1) != 0) & (g < GROUPS)
    lengths = tl.load(LENGTHS + line * GROUPS + g, mask=looks, other=0)
    ends = tl.cumsum(tl.cdiv(lengths, BLOCK), 0)
    front = tl.cdiv(close, BLOCK)
    total = front + tl.sum(tl.cdiv(lengths, BLOCK), 0)

    row = tl.arange(0, ROWS)
    real = row < SHARE * QUERIES
    head, n = h * SHARE + row // QUERIES, row % QUERIES
    i = old + n
    d, dv, e = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, BLOCK)
    at_q = Q + (b * qb + head * qh + n * qt)[:, None] + d[None, :]
    q = tl.load(at_q, mask=real[:, None] & (d < D)[None, :], other=0.0)
    if NEGATIVE:
        q = -q
    wanted = tl.load(QS + n * qbt)
    m = tl.full([ROWS], -1e30, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DVP], tl.float32)
    KH, VH = K + b * kb + h * kh, V + b * vb + h * vh
    for t in range(split, total, SPLITS):
        f = t - front
        far = f >= 0
        done = ends <= f
        group = tl.sum(done.to(tl.int32), 0)
        o = (f - tl.max(tl.where(done, ends, 0), 0)) * BLOCK
        page = tl.load(TABLE + (line * GROUPS + group) * longest + o // PAGE, mask=far, other=0)
        # What was never written is -1, before every key.
        listed = tl.load(POOL + (line * pages + page) * PAGE + o % PAGE + e, mask=e < tl.where(far, BLOCK, 0), other=-1)
        c = t * BLOCK + e
        at = tl.where(far, listed, tl.where(c < sunk, first + c, near + c - sunk))
        there = tl.where(far, (listed >= begin) & (listed < near), c < close)
        spot = tl.where(there, at, 0).to(tl.int64)[:, None]
        k = tl.load(KH + spot * kt + d[None, :], mask=there[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(VH + spot * vt + dv[None, :], mask=there[:, None] & (dv < DV)[None, :], other=0.0)
        ok = there[None, :] & (real & (i >= first))[:, None]
        if (QUERIES > 1) | (HELD > 1):
            offered = tl.load(KS + tl.where(there, at, 0).to(tl.int64) * kbt, mask=there, other=0)
            # A key that is in several of the lists counts in the first of them.
            both = offered & wanted_by_any
            ok &= (
                (((both & -both) >> group.to(tl.int64)) & 1 != 0)[None, :] | (at >= near)[None, :] | (c < sunk)[None, :]
            )
            ok &= at[None, :] <= i[:, None]
            nigh = (i[:, None] - at[None, :] < window) | (at < begin)[None, :]
            ok &= nigh | ((wanted[:, None] & offered[None, :]) != 0)
        m, l, acc = block_step(q, k, v, ok, m, l, acc, unit, cap_in, cap_out, True, CAPPED, DOT)

    # The parts of a key head lie together: (batch, key head, split, row).
    parts = tl.num_programs(2).to(tl.int64) * heads * SPLITS * RP
    MOST, SUM = PART + parts * DVP, PART + parts * (DVP + 1)
    piece = (b * heads + h) * SPLITS
    to = (piece + split) * RP + row
    tl.store(MOST + to, m, mask=real)
    tl.store(SUM + to, l, mask=real)
    tl.store(PART + to[:, None] * DVP + dv[None, :], acc, mask=(real & (l > 0))[:, None])
    # All of the program's stores, then its arrival; the last to arrive sees them all.
    tl.debug_barrier()
    PLACE = ARRIVED + b * (heads + ROUTERS)
    if tl.atomic_add(PLACE + h, 1, sem="acq_rel") == SPLITS - 1:
        tl.store(PLACE + h, 0)
        _merge_parts(
            PART, MOST, SUM, OUT, LSE, piece, b * heads + h, bad, SHARE * QUERIES, RP, SPLITS, SP, SB, DV, DVP, SUMS
        )
        if APPEND:
            last = tl.atomic_add(PLACE + heads + r, 1, sem="acq_rel") == each - 1
            if last:
                tl.store(PLACE + heads + r, 0)
                append_tokens(
                    KS, kbt, POOL, TABLE, LENGTHS, USED, line, keys, pages, longest, QUERIES, GROUPS, GP, HELD, PAGE
                )


@dataclass(frozen=True)
class Cut:
    """How a step is cut up: keys of a block, warps, pipeline stages, programs of a key head (None: by the size)."""

    block: int = 64
    warps: int = 4
    stages: int = 3
    splits: int | None = None


_READY: dict[tuple, Any] = {}
"""Compiled kernels by all that they were specialised for: finding them so takes a third of the time of a launch."""
_PROGRAMS = 512
_MOST_SPLITS = 64
_MERGED = 8192


def cut_for(dtype: torch.dtype, widest: int) -> Cut:
    """The cut of a head of ``widest`` numbers."""
    if dtype == torch.float32:
        return Cut(block=32 if widest <= 64 else 16, stages=2)
    return Cut() if widest <= 128 else Cut(block=32, stages=2)


def splits_for(heads: int, keys: int, block: int) -> int:
    """Programs of each of ``heads`` key heads of all sequences: a power of two."""
    wanted = max(1, min(_MOST_SPLITS, _PROGRAMS // heads, cover(keys, 4 * block)))
    return 1 << (wanted.bit_length() - 1)


def attend_lists(
    lists: GroupLists,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_bits: torch.Tensor,
    key_bits: torch.Tensor,
    window: int,
    sinks: int,
    first: torch.Tensor | None,
    scores: Scores,
    return_lse: bool = False,
    *,
    append: bool = True,
    tokens: torch.Tensor | None = None,
    cut: Cut | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of the last few positions; arguments as in ``focus_attention``, already checked.

    Args:
        lists: of all keys but the new ones where they are appended, else of all keys.
        q: as there; q, k and v with a last step of 1.
        k: as there.
        v: as there.
        query_bits: as there.
        key_bits: as there; only those of the new tokens are read, unless keys are in several groups or there are
            several queries.
        window: as there.
        sinks: as there.
        first: (B,) first real key, or None.
        scores: factors of the scores.
        return_lse: as there.
        append: put the new tokens into the lists; there must be room for them.
        tokens: (1,) how many keys there are where ``k``, ``v`` and ``key_bits`` have room for more, on their device.
        cut: sizes, where not those of ``cut_for``.

    Returns:
        (B, Hq, Nq, Dv), and (B, Hq, Nq) natural-log log-sum-exp where asked for. NaN where the lists ran out of room
        or a key was in more groups than was said.
    """
    batch, heads, queries, dim = q.shape
    kv_heads, keys, wide = v.shape[1:]
    pool, table, lengths, used, arrived = lists.tensors
    cut = cut or cut_for(q.dtype, max(dim, wide))
    # A block lies in one page.
    block = min(cut.block, pool.shape[3])
    splits = cut.splits or splits_for(batch * kv_heads, keys, block)
    share = heads // kv_heads
    few = 1 << (share * queries - 1).bit_length()
    out = q.new_empty(batch, heads, queries, wide)
    parts = torch.empty(batch * kv_heads * splits * few * (padded(wide) + 2), dtype=torch.float32, device=q.device)
    lse = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device) if return_lse else None
    some_first = used if first is None else first
    some_tokens = used if tokens is None else tokens
    arguments = (
        q, k, v, query_bits, key_bits, some_first, some_tokens, pool, table, lengths, used, arrived, parts,
        out, out if lse is None else lse,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *query_bits.stride(), *key_bits.stride(),
        scores.unit, scores.cap_in, scores.cap_out, keys, window, sinks, pool.shape[2], table.shape[3],
    )  # fmt: skip
    grid = splits, kv_heads, batch
    key = (
        *arguments[15:30], q.shape, wide, q.dtype, k.dtype, v.dtype, some_first.dtype, some_tokens.dtype, q.device,
        table.shape[1:3], pool.shape[3], lists.held, scores.capped, scores.negative, first is None, tokens is None,
        append, return_lse, cut, splits,
    )  # fmt: skip
    aligned = (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16 == 0
    ready = _READY.get(key) if aligned else None
    if ready is not None:
        kernel, constants = ready
        kernel[grid](*arguments, *constants)
        return out, lse
    groups = table.shape[2]
    few_splits = padded(splits) if splits > 16 else 1 << (splits - 1).bit_length()
    constants = {
        "ROUTERS": table.shape[1], "SHARE": share, "QUERIES": queries, "GROUPS": groups, "GP": padded(groups),
        "HELD": lists.held, "D": dim, "DV": wide, "DP": padded(dim), "DVP": padded(wide),
        "NEGATIVE": scores.negative, "CAPPED": scores.capped, "PADDED": first is not None,
        "COUNTED": tokens is not None, "APPEND": append, "SUMS": return_lse, "DOT": dot_precision(q.dtype),
        "ROWS": padded(share * queries), "RP": few, "PAGE": pool.shape[3], "BLOCK": block, "SPLITS": splits,
        "SP": few_splits, "SB": max(1, min(few_splits, _MERGED // (few * padded(wide)))),
    }  # fmt: skip
    kernel = _attend[grid](*arguments, **constants, num_warps=cut.warps, num_stages=cut.stages)
    # Interpreted kernels are not compiled.
    if kernel is not None and aligned:
        _READY[key] = kernel, tuple(constants.values())
    return out, lse
