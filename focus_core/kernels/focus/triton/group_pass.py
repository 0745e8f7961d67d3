"""Far pairs: tiles of queries that look into one group, over the group's first keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from focus_core.kernels.focus.triton.launch import ready
from focus_core.kernels.focus.triton.plan import Plan
from focus_core.kernels.focus.triton.tiles import Scores, Tile, block_step, dot_precision, padded


@triton.jit
def _owned(query_sets, KEY_BITS, KEY_AT, at, there, step, lower):
    """(rows, keys) of a block: the two tokens share no lower group, which would own their pair."""
    j = tl.load(KEY_AT + at, mask=there, other=0).to(tl.int64)
    key_sets = tl.load(KEY_BITS + j * step, mask=there, other=0)
    return ((query_sets & lower)[:, None] & key_sets[None, :]) == 0


@triton.jit
def _rows(
    ROWS, origin, start, stop, D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
    NARROW: tl.constexpr, LAST: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """A block of sorted rows: by the GPU's copy engine, or row by row."""
    if COPIES:
        block = ROWS.load([(origin + start).to(tl.int32), 0])
    else:
        n, d = start + tl.arange(0, BLOCK), tl.arange(0, DP)
        at = ROWS + origin * D + n.to(tl.int64)[:, None] * D + d[None, :]
        if LAST:
            block = tl.load(at, mask=(n < stop)[:, None] & (d < D)[None, :], other=0.0)
        elif NARROW:
            block = tl.load(at, mask=(d < D)[None, :], other=0.0)
        else:
            block = tl.load(at)
    return block


@ready
@triton.jit(do_not_specialize=["queries", "key_room", "query_room"])
def _group_pass(
    Q, KEYS, VALUES, OUT, LSE, ENTRY, LIMIT, TILE, KEY_AT, KEY_BITS, QUERY_BITS, BEGUN, BEGUN_LSE,
    qb, qh, qt, kbb, kbr, kbt, qbb, qbr, qbt, unit, cap_in, cap_out, queries, key_room, query_room, heads, routers,
    SHARE: tl.constexpr, SLOTS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr,
    NEGATIVE: tl.constexpr, CAPPED: tl.constexpr, TWO_SIDED: tl.constexpr, STARTED: tl.constexpr, DOT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    line = (b * routers + h // (heads // routers)).to(tl.int64)
    tile = TILE + (line * tl.num_programs(0) + tl.program_id(0)) * 4
    low, high = tl.load(tile), tl.load(tile + 1)
    if low < high:
        key_low, group = tl.load(tile + 2), tl.load(tile + 3)
        e = low + tl.arange(0, ROWS)
        real = e < high
        entry = tl.load(ENTRY + line * query_room + e, mask=real, other=0)
        limit = tl.load(LIMIT + line * query_room + e, mask=real, other=0)
        i = (entry // SLOTS).to(tl.int64)
        d, dv = tl.arange(0, DP), tl.arange(0, DVP)
        at_q = Q + b.to(tl.int64) * qb + h.to(tl.int64) * qh + i[:, None] * qt + d[None, :]
        q = tl.load(at_q, mask=real[:, None] & (d < D)[None, :], other=0.0)
        if NEGATIVE:
            q = -q
        most = tl.max(limit, 0)
        least = tl.min(tl.where(real, limit, most), 0)
        origin = (b * (heads // SHARE) + h // SHARE).to(tl.int64) * key_room + key_low
        m = tl.full([ROWS], -1e30, tl.float32)
        l = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DVP], tl.float32)
        plain = 0
        if STARTED:
            plain = least
            if least > 0:
                r = tl.arange(0, ROWS)
                at = (b * (heads // SHARE) + h // SHARE).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
                m = tl.load(BEGUN_LSE + (at * SHARE + h % SHARE) * ROWS + r, mask=real, other=0.0) * 1.4426950408889634
                begun = BEGUN + ((at * ROWS + r) * SHARE + h % SHARE)[:, None] * DV + dv[None, :]
                acc = tl.load(begun, mask=real[:, None] & (dv < DV)[None, :], other=0.0).to(tl.float32)
                l = tl.full([ROWS], 1.0, tl.float32)
        elif not TWO_SIDED:
            plain = least // BLOCK * BLOCK
            for start in range(0, plain, BLOCK):
                k = _rows(KEYS, origin, start, most, D, DP, BLOCK, D < DP, False, COPIES)
                v = _rows(VALUES, origin, start, most, DV, DVP, BLOCK, DV < DVP, False, COPIES)
                m, l, acc = block_step(q, k, v, None, m, l, acc, unit, cap_in, cap_out, False, CAPPED, DOT)
        else:
            sets = QUERY_BITS + b.to(tl.int64) * qbb + (h // (heads // routers)).to(tl.int64) * qbr
            query_sets = tl.load(sets + i * qbt, mask=real, other=0)
            key_sets = KEY_BITS + b.to(tl.int64) * kbb + (h // (heads // routers)).to(tl.int64) * kbr
            lower = (tl.full([1], 1, tl.int64) << group.to(tl.int64)) - 1
        for start in range(plain, most, BLOCK):
            n = start + tl.arange(0, BLOCK)
            k = _rows(KEYS, origin, start, most, D, DP, BLOCK, True, True, COPIES)
            v = _rows(VALUES, origin, start, most, DV, DVP, BLOCK, True, True, COPIES)
            keep = n[None, :] < limit[:, None]
            if TWO_SIDED:
                keep &= _owned(query_sets, key_sets, KEY_AT + line * key_room + key_low, n, n < most, kbt, lower)
            m, l, acc = block_step(q, k, v, keep, m, l, acc, unit, cap_in, cap_out, True, CAPPED, DOT)
        some = l > 0
        whole = tl.where(some, l, 1.0)
        to = (tl.program_id(1).to(tl.int64) * queries * SLOTS) + entry
        tl.store(LSE + to, tl.where(some, m + tl.log2(whole), float("-inf")), mask=real)
        tl.store(
            OUT + to[:, None] * DV + dv[None, :],
            (acc / whole[:, None]).to(OUT.dtype.element_ty),
            mask=(real & some)[:, None] & (dv < DV)[None, :],
        )


class Started(NamedTuple):
    """What the keys that all queries of a tile see have given.

    Attributes:
        out: (B * Hkv * tiles, rows, Hq / Hkv, Dv).
        lse: (B * Hkv * tiles, Hq / Hkv, rows) natural-log log-sum-exp.
    """

    out: torch.Tensor
    lse: torch.Tensor


def copy_engine(*rows: torch.Tensor) -> bool:
    """Whether the GPU's copy engine can read such rows: it needs Hopper, and rows of a multiple of 16 bytes."""
    able = not rows[0].is_cuda or torch.cuda.get_device_capability(rows[0].device) >= (9, 0)
    return able and all(x.shape[3] * x.element_size() % 16 == 0 and x.numel() // x.shape[3] < 1 << 31 for x in rows)


def group_pass(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: Plan,
    query_bits: torch.Tensor,
    key_bits: torch.Tensor,
    two_sided: bool,
    scores: Scores,
    tile: Tile,
    started: Started | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query in each of its groups.

    Args:
        q: (B, Hq, Nq, D).
        keys: (B, Hkv, key_room, D), sorted.
        values: (B, Hkv, key_room, Dv), sorted.
        plan: where they stand.
        query_bits: (B, R, Nq) int64 sets.
        key_bits: (B, R, Nk) int64 sets.
        two_sided: a query and a key may share several groups.
        scores: factors of the scores.
        tile: sizes; ``tile.rows`` is that of the plan.
        started: the part of the keys that a tile's first query sees, where it is done; not with ``two_sided``.

    Returns:
        (B, Hq, Nq, slots, Dv), and the log-sum-exp in base 2 (B, Hq, Nq, slots): -inf where there is no far key, and
        nothing is written to the output there. Slots past a query's groups are not written at all.
    """
    batch, heads, queries, dim = q.shape
    wide = values.shape[3]
    out = q.new_empty(batch, heads, queries, plan.slots, wide)
    lse = torch.empty(batch, heads, queries, plan.slots, dtype=torch.float32, device=q.device)
    copies = tile.copies and copy_engine(keys, values)
    sources = (keys, values)
    if copies:
        sources = tuple(
            TensorDescriptor.from_tensor(x.view(-1, x.shape[3]), [tile.keys, padded(x.shape[3])]) for x in sources
        )
    _group_pass[(plan.tile.shape[1], batch * heads)](
        q, *sources, out, lse, plan.entry, plan.limit, plan.tile, plan.key_at, key_bits, query_bits,
        *((out, lse) if started is None else started), *q.stride()[:3], *key_bits.stride(), *query_bits.stride(),
        scores.unit, scores.cap_in, scores.cap_out, queries, keys.shape[2], plan.entry.shape[1], heads,
        query_bits.shape[1],
        SHARE=heads // keys.shape[1], SLOTS=plan.slots, D=dim, DV=wide, DP=padded(dim), DVP=padded(wide),
        NEGATIVE=scores.negative, CAPPED=scores.capped, TWO_SIDED=two_sided, STARTED=started is not None,
        DOT=dot_precision(q.dtype), ROWS=tile.rows, BLOCK=tile.keys, COPIES=copies, num_warps=tile.warps,
        num_stages=tile.stages,
    )  # fmt: skip
    return out, lse
