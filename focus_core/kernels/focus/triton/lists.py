"""Where the keys of each group lie, in lists that live beside a cache and are appended to in place.

A row (a sequence and a router) has a pool of pages. A group's list is the pages that its row of the table names, filled
in the order of time; page numbers count inside a row, so that the rows of a batch can be reordered like those of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.launch import ready
from focus_core.kernels.focus.triton.tiles import cover, padded

PAGE = 128
"""Positions of a page."""
_CHUNK = 1024
_TOO_MANY = tl.constexpr(1 << 30)


@triton.jit
def outside(sets, GROUPS: tl.constexpr):
    """Whether a set names a group past the last one."""
    if GROUPS < 64:
        return (sets >> GROUPS) != 0
    return sets != sets


@triton.jit
def append_tokens(
    KEY_SETS, step, POOL, TABLE, LENGTHS, USED, row, keys, pages, longest,
    NEW: tl.constexpr, GROUPS: tl.constexpr, GP: tl.constexpr, HELD: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Put the last NEW of ``keys`` tokens into the lists of one row; one program alone may do it.

    A row that cannot hold them, or a token in more groups than HELD, is marked in USED: its outputs become NaN.
    """
    g = tl.arange(0, GP)
    mine = g < GROUPS
    at = row * GROUPS + g
    length = tl.load(LENGTHS + at, mask=mine, other=0)
    used = tl.load(USED + row)
    page = tl.load(TABLE + at * longest + length // PAGE, mask=mine & (length % PAGE != 0), other=0)
    for n in tl.static_range(NEW):
        j = keys - NEW + n
        sets = tl.load(KEY_SETS + j.to(tl.int64) * step)
        has = (((sets >> g.to(tl.int64)) & 1) != 0) & mine
        opens = has & (length % PAGE == 0)
        page = tl.where(opens, used + tl.cumsum(opens.to(tl.int32), 0) - 1, page)
        fits = has & (page < pages) & (length // PAGE < longest)
        tl.store(TABLE + at * longest + length // PAGE, page, mask=fits & opens)
        tl.store(POOL + (row * pages + page) * PAGE + length % PAGE, j, mask=fits)
        length += has.to(tl.int32)
        used += tl.sum(opens.to(tl.int32), 0)
        bad = (tl.sum(has.to(tl.int32), 0) > HELD) | outside(sets, GROUPS)
        bad |= tl.sum((has & ~fits).to(tl.int32), 0) > 0
        used = tl.where(bad, _TOO_MANY, used)
    # Other warps may still be reading what is overwritten now.
    tl.debug_barrier()
    tl.store(LENGTHS + at, length, mask=mine)
    tl.store(USED + row, used)


@ready
@triton.jit(do_not_specialize=["keys"])
def _count(
    KEY_BITS, COUNTS, kbb, kbr, kbt, keys,
    GROUPS: tl.constexpr, HELD: tl.constexpr, ROUTERS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    j = chunk * CHUNK + tl.arange(0, CHUNK)
    at = KEY_BITS + row // ROUTERS * kbb + row % ROUTERS * kbr + j.to(tl.int64) * kbt
    sets = tl.load(at, mask=j < keys, other=0)
    to = COUNTS + (row * tl.num_programs(0) + chunk) * (GROUPS + 1)
    members = tl.zeros([CHUNK], tl.int32)
    for g in range(GROUPS):
        has = ((sets >> g) & 1).to(tl.int32)
        members += has
        tl.store(to + g, tl.sum(has, 0))
    bad = (members > HELD) | outside(sets, GROUPS)
    tl.store(to + GROUPS, tl.sum(bad.to(tl.int32), 0))


@ready
@triton.jit(do_not_specialize=["keys", "room"])
def _place(
    KEY_BITS, START, POOL, kbb, kbr, kbt, keys, room,
    GROUPS: tl.constexpr, ROUTERS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    j = chunk * CHUNK + tl.arange(0, CHUNK)
    at = KEY_BITS + row // ROUTERS * kbb + row % ROUTERS * kbr + j.to(tl.int64) * kbt
    sets = tl.load(at, mask=j < keys, other=0)
    start = START + (row * tl.num_programs(0) + chunk) * GROUPS
    for g in range(GROUPS):
        has = ((sets >> g) & 1).to(tl.int32)
        to = tl.load(start + g) + tl.cumsum(has, 0) - 1
        tl.store(POOL + row * room + to, j, mask=(has != 0) & (to < room))


@dataclass
class GroupLists:
    """The lists of all sequences and routers of one layer; every tensor has a sequence a row in front.

    Attributes:
        held: the most groups of one key.
        pool: (B, R, pages, PAGE) int32 positions; -1 where nothing was written.
        table: (B, R, K, longest) int32, the pages of each group's list.
        lengths: (B, R, K) int32.
        used: (B, R) int32 pages in use; more than there are where a list could not be kept.
        arrived: (B, Hkv + R) int32 zeros, which a decode step counts in.
    """

    held: int
    pool: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    used: torch.Tensor
    arrived: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of them, as the constructor takes them after ``held``."""
        return self.pool, self.table, self.lengths, self.used, self.arrived

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.table.shape[3] * self.pool.shape[3]

    def grown(self, tokens: int) -> GroupLists:
        """These lists, or a copy with more room where ``tokens`` do not fit."""
        if tokens <= self.capacity:
            return self
        batch, routers, groups, longest = self.table.shape
        page = self.pool.shape[3]
        wanted = cover(_room(tokens), page)
        pool = self.pool.new_full((batch, routers, wanted * self.held + groups, page), -1)
        pool[:, :, : self.pool.shape[2]] = self.pool
        table = self.table.new_zeros(batch, routers, groups, wanted)
        table[..., :longest] = self.table
        return GroupLists(self.held, pool, table, self.lengths, self.used, self.arrived)


def _room(tokens: int) -> int:
    """Tokens to make room for: an eighth more, so that growing is rare."""
    return tokens + max(1024, tokens // 8)


def build_lists(
    key_bits: torch.Tensor, tokens: int, groups: int, held: int, kv_heads: int, page: int = PAGE
) -> GroupLists:
    """Lists of the first ``tokens`` of the keys whose sets are given (B, R, Nk), with room for more.

    Two passes over the sets and nothing that waits for the GPU. A set of more than ``held`` groups, or one that names a
    group past ``groups``, makes every later output of its row NaN.
    """
    batch, routers = key_bits.shape[:2]
    device, chunks = key_bits.device, cover(max(tokens, 1), _CHUNK)
    longest = cover(_room(tokens), page)
    pages = longest * held + groups
    settings = {"GROUPS": groups, "ROUTERS": routers, "CHUNK": _CHUNK, "num_warps": 4}
    counts = torch.empty(batch, routers, chunks, groups + 1, dtype=torch.int32, device=device)
    _count[(chunks, batch * routers)](key_bits, counts, *key_bits.stride(), tokens, HELD=held, **settings)
    bad = counts[..., groups].sum(2) > 0
    counts = counts[..., :groups]
    before = counts.cumsum(2, dtype=torch.int32) - counts
    lengths = before[:, :, -1] + counts[:, :, -1]
    needed = (lengths + (page - 1)) // page
    first = needed.cumsum(2, dtype=torch.int32) - needed
    nth = torch.arange(longest, dtype=torch.int32, device=device)
    table = torch.where(nth < needed[..., None], first[..., None] + nth, 0)
    used = (first[..., -1] + needed[..., -1]).masked_fill(bad, _TOO_MANY.value)
    pool = torch.full((batch, routers, pages, page), -1, dtype=torch.int32, device=device)
    start = (before + first[:, :, None] * page).contiguous()
    _place[(chunks, batch * routers)](key_bits, start, pool, *key_bits.stride(), tokens, pages * page, **settings)
    arrived = torch.zeros(batch, kv_heads + routers, dtype=torch.int32, device=device)
    return GroupLists(held, pool, table, lengths.contiguous(), used, arrived)


@ready
@triton.jit(do_not_specialize=["keys", "pages", "longest"])
def _append(
    KEY_BITS, POOL, TABLE, LENGTHS, USED, kbb, kbr, kbt, keys, pages, longest,
    NEW: tl.constexpr, GROUPS: tl.constexpr, GP: tl.constexpr, HELD: tl.constexpr, ROUTERS: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    sets = KEY_BITS + row // ROUTERS * kbb + row % ROUTERS * kbr
    append_tokens(sets, kbt, POOL, TABLE, LENGTHS, USED, row, keys, pages, longest, NEW, GROUPS, GP, HELD, PAGE)


def append_lists(lists: GroupLists, key_bits: torch.Tensor, tokens: int, new: int) -> None:
    """Append the last ``new`` of ``tokens`` tokens in place; there must be room (``grown``)."""
    batch, routers, groups, longest = lists.table.shape
    _append[(batch * routers,)](
        key_bits, *lists.tensors[:4], *key_bits.stride(), tokens, lists.pool.shape[2], longest,
        NEW=new, GROUPS=groups, GP=padded(groups), HELD=lists.held, ROUTERS=routers, PAGE=lists.pool.shape[3],
        num_warps=1,
    )  # fmt: skip
