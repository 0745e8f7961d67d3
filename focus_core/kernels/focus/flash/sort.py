"""Tokens sorted by group where each is in one group at most, without waiting for the GPU.

Two launches: the first counts the members of every group in every chunk of tokens, the second adds up the chunks before
its own and so knows where its tokens go. Tokens without a group go to the end of their line.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.launch import ready
from focus_core.kernels.focus.triton.tiles import cover

GROUPS = tl.constexpr(64)
_GROUPS = 64
_BLOCK = 64
_LONG = 1 << 15


@triton.jit
def _flags(bits):
    """(tokens, 64) int32: 1 at the lowest group of each token."""
    lowest = bits & -bits
    return ((lowest[:, None] >> tl.arange(0, GROUPS).to(tl.int64)[None, :]) & 1).to(tl.int32)


@ready
@triton.jit(do_not_specialize=["keys", "queries", "start"])
def _count(
    KEY_BITS, QUERY_BITS, FIRST, COUNT, WRONG, kb, kr, kt, qb, qr, qt, keys, queries, start, routers,
    PADDED: tl.constexpr, SAME: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    chunk, row = tl.program_id(0), tl.program_id(1)
    b, r = (row // routers).to(tl.int64), (row % routers).to(tl.int64)
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    total = tl.zeros([GROUPS], tl.int32)
    wrong = tl.zeros([BLOCK], tl.int32)
    for step in range(BLOCKS):
        t = start + (chunk * BLOCKS + step) * BLOCK + tl.arange(0, BLOCK)
        there = (t < keys) & (t >= first)
        bits = tl.load(KEY_BITS + b * kb + r * kr + t.to(tl.int64) * kt, mask=there, other=0)
        total += tl.sum(_flags(bits), 0)
        wrong |= ((bits & (bits - 1)) != 0).to(tl.int32)
        if not SAME:
            n = t - (keys - queries)
            theirs = tl.load(QUERY_BITS + b * qb + r * qr + n.to(tl.int64) * qt, mask=there & (n >= 0), other=0)
            wrong |= ((n >= 0) & (theirs != bits)).to(tl.int32)
    at = row.to(tl.int64) * tl.num_programs(0) + chunk
    tl.store(COUNT + at * GROUPS + tl.arange(0, GROUPS), total)
    tl.store(WRONG + at, tl.max(wrong, 0))


@ready
@triton.jit(do_not_specialize=["keys", "start", "chunks"])
def _place(
    KEY_BITS, FIRST, COUNT, WRONG, SPOT, GROUP, CUTS, USED, OVER, kb, kr, kt, keys, start, chunks, routers,
    PADDED: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BY: tl.constexpr,
):  # fmt: skip
    chunk, row = tl.program_id(0), tl.program_id(1)
    b, r = (row // routers).to(tl.int64), (row % routers).to(tl.int64)
    line = row.to(tl.int64)
    tokens = keys - start
    g = tl.arange(0, GROUPS)
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    before = tl.zeros([GROUPS], tl.int32)
    total = tl.zeros([GROUPS], tl.int32)
    for low in range(0, chunks, BY):
        c = low + tl.arange(0, BY)
        counts = tl.load(
            COUNT + (line * chunks + c)[:, None] * GROUPS + g[None, :], mask=(c < chunks)[:, None], other=0
        )
        total += tl.sum(counts, 0)
        before += tl.sum(tl.where((c < chunk)[:, None], counts, 0), 0)
    used = tl.sum(total, 0)
    cuts = tl.cumsum(total, 0) - total
    if chunk == 0:
        wrong = tl.zeros([BY], tl.int32)
        for low in range(0, chunks, BY):
            c = low + tl.arange(0, BY)
            wrong |= tl.load(WRONG + line * chunks + c, mask=c < chunks, other=0)
        tl.store(OVER + line, tl.max(wrong, 0))
        tl.store(CUTS + line * GROUPS + g, row * tokens + cuts)
        tl.store(USED + line * GROUPS + g, total)
        if row == tl.num_programs(1) - 1:
            tl.store(CUTS + (line + 1) * GROUPS, row * tokens + used)
    base = cuts + before
    others = used + chunk * BLOCKS * BLOCK - tl.sum(before, 0)
    for step in range(BLOCKS):
        n = (chunk * BLOCKS + step) * BLOCK + tl.arange(0, BLOCK)
        t = start + n
        there = (t < keys) & (t >= first)
        bits = tl.load(KEY_BITS + b * kb + r * kr + t.to(tl.int64) * kt, mask=there, other=0)
        flags = _flags(bits)
        ranked = base[None, :] + tl.cumsum(flags, 0) - flags
        base += tl.sum(flags, 0)
        none = (bits == 0).to(tl.int32)
        spot = tl.where(bits == 0, others + tl.cumsum(none, 0) - none, tl.sum(flags * ranked, 1))
        others += tl.sum(none, 0)
        tl.store(SPOT + line * tokens + n, row * tokens + spot, mask=t < keys)
        tl.store(GROUP + line * tokens + n, tl.where(bits == 0, -2, tl.sum(flags * g[None, :], 1)), mask=t < keys)


@dataclass(frozen=True)
class Sorted:
    """The tokens of every line (sequence, router) by group and time.

    Attributes:
        spot: (lines, tokens) int32 row of each token among ``lines * tokens`` rows, those of a line in a run.
        group: (lines, tokens) int32 group of each token, -2 where it has none.
        cuts: (lines * 64 + 1,) int32 first row of each group of each line; last, the end of the last line's last group.
        used: (lines * 64,) int32 tokens of each group.
        over: (lines,) int32 1 where a token is in several groups, or a query's set is not its key's.
    """

    spot: torch.Tensor
    group: torch.Tensor
    cuts: torch.Tensor
    used: torch.Tensor
    over: torch.Tensor


def sort_tokens(
    query_bits: torch.Tensor, key_bits: torch.Tensor, first: torch.Tensor | None, start: int, same: bool
) -> Sorted:
    """Sort the tokens from position ``start`` on.

    Args:
        query_bits: (B, R, Nq) int64 sets of the last Nq tokens; only checked against ``key_bits``.
        key_bits: (B, R, Nk) int64 sets of one group at most.
        first: (B,) first real key of each row, or None; padded tokens count as having no group.
        start: first token.
        same: the sets of the queries lie where those of the keys do: there is nothing to check.
    """
    batch, routers, keys = key_bits.shape
    lines, tokens = batch * routers, keys - start
    blocks = 2 if tokens <= _LONG else 4 if tokens <= 8 * _LONG else 8
    chunks = cover(tokens, _BLOCK * blocks)
    sizes = [lines * tokens, lines * tokens, lines * _GROUPS + 1, lines * _GROUPS, lines, lines * chunks * _GROUPS]
    sizes.append(lines * chunks)
    # One allocation; every part starts at 16 bytes.
    room = [-(-size // 4) * 4 for size in sizes]
    spot, group, cuts, used, over, count, wrong = torch.empty(
        sum(room), dtype=torch.int32, device=key_bits.device
    ).split(room)
    padding = key_bits if first is None else first
    sizes_of = {"PADDED": first is not None, "BLOCK": _BLOCK, "BLOCKS": blocks}
    _count[(chunks, lines)](
        key_bits, query_bits, padding, count, wrong, *key_bits.stride(), *query_bits.stride(),
        keys, query_bits.shape[2], start, routers, SAME=same, **sizes_of, num_warps=4,
    )  # fmt: skip
    _place[(chunks, lines)](
        key_bits, padding, count, wrong, spot, group, cuts, used, over, *key_bits.stride(),
        keys, start, chunks, routers, BY=32, **sizes_of, num_warps=4,
    )  # fmt: skip
    return Sorted(
        spot[: lines * tokens].view(lines, tokens),
        group[: lines * tokens].view(lines, tokens),
        cuts[: lines * _GROUPS + 1],
        used[: lines * _GROUPS],
        over[:lines],
    )
