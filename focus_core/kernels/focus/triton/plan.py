"""Which queries look into which keys: tokens sorted by group, key limits and tiles, without waiting for the GPU.

Two launches. The first counts the members of every group in every chunk of tokens; in the second each chunk adds up
the chunks before it, and so knows where its own members go. As in ``segments.py``, the keys of a group that a query
may see as far ones are the group's first ``limit``.
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
_TILES = 64


@triton.jit
def _members(bits, skip, count):
    """The sets without their ``skip`` lowest groups, and of these only the ``count`` lowest."""
    for _ in range(skip):
        bits = bits & (bits - 1)
    rest = bits
    for _ in range(count):
        rest = rest & (rest - 1)
    return bits & ~rest


@triton.jit
def _flags(bits):
    """(tokens, 64) int32: 1 where the token is in the group."""
    return ((bits[:, None] >> tl.arange(0, GROUPS).to(tl.int64)[None, :]) & 1).to(tl.int32)


@triton.jit
def _sums(COUNT, chunk, chunks, BY: tl.constexpr):
    """Members of every group in the chunks before ``chunk``, and in all."""
    g = tl.arange(0, GROUPS)
    before = tl.zeros([GROUPS], tl.int32)
    total = tl.zeros([GROUPS], tl.int32)
    for start in range(0, chunks, BY):
        c = start + tl.arange(0, BY)
        counts = tl.load(COUNT + c[:, None] * GROUPS + g[None, :], mask=(c < chunks)[:, None], other=0)
        total += tl.sum(counts, 0)
        before += tl.sum(tl.where((c < chunk)[:, None], counts, 0), 0)
    return before, total


@ready
@triton.jit(do_not_specialize=["keys", "queries", "key_chunks", "sinks", "skip", "taken", "query_members"])
def _count(
    KEY_BITS, QUERY_BITS, FIRST, COUNT, OVER, kb, kr, kt, qb, qr, qt,
    keys, queries, key_chunks, routers, sinks, skip, taken, query_members, key_members,
    PADDED: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    chunk, row = tl.program_id(0), tl.program_id(1)
    b, r = (row // routers).to(tl.int64), (row % routers).to(tl.int64)
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    total = tl.zeros([GROUPS], tl.int32)
    more = tl.zeros([BLOCK], tl.int32)
    for step in range(BLOCKS):
        if chunk < key_chunks:
            t = (chunk * BLOCKS + step) * BLOCK + tl.arange(0, BLOCK)
            there = (t < keys) & (t >= first + sinks)
            bits = tl.load(KEY_BITS + b * kb + r * kr + t.to(tl.int64) * kt, mask=there, other=0)
            kept, allowed = _members(bits, 0, key_members), _members(bits, 0, key_members)
        else:
            t = ((chunk - key_chunks) * BLOCKS + step) * BLOCK + tl.arange(0, BLOCK)
            there = (t < queries) & (t + (keys - queries) >= first)
            bits = tl.load(QUERY_BITS + b * qb + r * qr + t.to(tl.int64) * qt, mask=there, other=0)
            kept, allowed = _members(bits, skip, taken), _members(bits, 0, query_members)
        total += tl.sum(_flags(kept), 0)
        more += (bits != allowed).to(tl.int32)
    tl.store(COUNT + (row * tl.num_programs(0) + chunk) * GROUPS + tl.arange(0, GROUPS), total)
    tl.atomic_max(OVER, tl.max(more, 0))


@ready
@triton.jit(do_not_specialize=["keys", "queries", "key_chunks", "query_chunks", "sinks", "window", "skip", "taken",
                               "key_room", "query_room", "tiles"])  # fmt: skip
def _place(
    KEY_BITS, QUERY_BITS, FIRST, COUNT, KEY_AT, KEY_TOTAL, ENTRY, LIMIT, TILE, kb, kr, kt, qb, qr, qt,
    keys, queries, key_chunks, query_chunks, routers, sinks, window, skip, taken, key_members,
    key_room, query_room, tiles, SLOTS: tl.constexpr, ROWS: tl.constexpr,
    PADDED: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    at, row = tl.program_id(0), tl.program_id(1)
    b, r = (row // routers).to(tl.int64), (row % routers).to(tl.int64)
    row = row.to(tl.int64)
    g = tl.arange(0, GROUPS)
    first = 0
    if PADDED:
        first = tl.load(FIRST + b).to(tl.int32)
    key_count = COUNT + row * (key_chunks + query_chunks) * GROUPS
    query_count = key_count + key_chunks * GROUPS
    if at < key_chunks:
        before, total = _sums(key_count, at, key_chunks, 32)
        if at == 0:
            tl.store(KEY_TOTAL + row, tl.sum(total, 0))
        base = before + tl.cumsum(total, 0) - total
        for step in range(BLOCKS):
            t = (at * BLOCKS + step) * BLOCK + tl.arange(0, BLOCK)
            there = (t < keys) & (t >= first + sinks)
            bits = tl.load(KEY_BITS + b * kb + r * kr + t.to(tl.int64) * kt, mask=there, other=0)
            flags = _flags(_members(bits, 0, key_members))
            spot = base[None, :] + tl.cumsum(flags, 0) - flags
            tl.store(
                KEY_AT + row * key_room + spot,
                tl.broadcast_to(t[:, None], [BLOCK, GROUPS]),
                mask=(flags != 0) & (spot < key_room),
            )
            base += tl.sum(flags, 0)
    elif at < key_chunks + query_chunks:
        chunk = at - key_chunks
        before, total = _sums(query_count, chunk, query_chunks, 32)
        base = before + tl.cumsum(total, 0) - total
        # The first query of the chunk sees as far keys those before ``last`` + 1; each further query one more.
        last = chunk * BLOCKS * BLOCK + (keys - queries) - window
        whole = tl.maximum(last, 0) // (BLOCKS * BLOCK)
        seen, _ = _sums(key_count, whole, tl.minimum(whole, key_chunks), 32)
        for step in range(BLOCKS):
            t = (whole * BLOCKS + step) * BLOCK + tl.arange(0, BLOCK)
            there = (t < tl.minimum(last, keys)) & (t >= first + sinks)
            bits = tl.load(KEY_BITS + b * kb + r * kr + t.to(tl.int64) * kt, mask=there, other=0)
            seen += tl.sum(_flags(_members(bits, 0, key_members)), 0)
        for step in range(BLOCKS):
            t = (chunk * BLOCKS + step) * BLOCK + tl.arange(0, BLOCK)
            j = t + (keys - queries) - window
            there = (j < keys) & (j >= first + sinks)
            bits = tl.load(KEY_BITS + b * kb + r * kr + j.to(tl.int64) * kt, mask=there, other=0)
            olds = _flags(_members(bits, 0, key_members))
            limit = seen[None, :] + tl.cumsum(olds, 0)
            seen += tl.sum(olds, 0)
            there = (t < queries) & (t + (keys - queries) >= first)
            bits = tl.load(QUERY_BITS + b * qb + r * qr + t.to(tl.int64) * qt, mask=there, other=0)
            flags = _flags(_members(bits, skip, taken))
            spot = base[None, :] + tl.cumsum(flags, 0) - flags
            base += tl.sum(flags, 0)
            slot = tl.cumsum(flags, 1) - flags
            fits = (flags != 0) & (spot < query_room)
            tl.store(ENTRY + row * query_room + spot, t[:, None] * SLOTS + slot, mask=fits)
            tl.store(LIMIT + row * query_room + spot, limit, mask=fits)
    else:
        _, total = _sums(query_count, 0, query_chunks, 32)
        _, key_total = _sums(key_count, 0, key_chunks, 32)
        stop = tl.cumsum(total, 0)
        pieces = (total + ROWS - 1) // ROWS
        ends = tl.cumsum(pieces, 0)
        t = (at - key_chunks - query_chunks) * TILES + tl.arange(0, TILES)
        group = tl.sum((ends[None, :] <= t[:, None]).to(tl.int32), 1)
        mine = g[None, :] == group[:, None]
        nth = t - tl.sum(tl.where(mine, (ends - pieces)[None, :], 0), 1)
        low = tl.sum(tl.where(mine, (stop - total)[None, :], 0), 1) + nth * ROWS
        high = tl.minimum(low + ROWS, tl.sum(tl.where(mine, stop[None, :], 0), 1))
        key_low = tl.sum(tl.where(mine, (tl.cumsum(key_total, 0) - key_total)[None, :], 0), 1)
        # Late tiles see the most keys: they start first, so that no long one is left to the end.
        later = tl.sum(tl.maximum(pieces[None, :] - nth[:, None] - 1, 0), 1)
        beside = tl.sum(((pieces[None, :] > nth[:, None]) & (g[None, :] < group[:, None])).to(tl.int32), 1)
        used = t < tl.sum(pieces, 0)
        spot = TILE + (row * tiles + tl.where(used, later + beside, t)) * 4
        tl.store(spot, tl.where(used, low, 0), mask=t < tiles)
        tl.store(spot + 1, tl.where(used, high, 0), mask=t < tiles)
        tl.store(spot + 2, tl.where(used, key_low, 0), mask=t < tiles)
        tl.store(spot + 3, group, mask=t < tiles)


@ready
@triton.jit(do_not_specialize=["tokens"])
def _most(BITS, MOST, b, r, t, tokens, routers, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    spot = BITS + (row // routers) * b + (row % routers) * r + at.to(tl.int64) * t
    bits = tl.load(spot, mask=at < tokens, other=0)
    found = tl.zeros([BLOCK], tl.int32)
    for _ in range(GROUPS):
        found += (bits != 0).to(tl.int32)
        bits = bits & (bits - 1)
    tl.atomic_max(MOST, tl.max(found, 0))


def most_members(query_bits: torch.Tensor, key_bits: torch.Tensor) -> tuple[int, int]:
    """The most groups of a query and of a key; waits for the GPU."""
    most = torch.zeros(2, dtype=torch.int32, device=key_bits.device)
    for n, bits in enumerate((query_bits, key_bits)):
        batch, routers, tokens = bits.shape
        _most[(cover(tokens, 1024), batch * routers)](bits, most[n:], *bits.stride(), tokens, routers, BLOCK=1024)
    queries, keys = most.tolist()
    return queries, keys


@dataclass(frozen=True)
class Plan:
    """Sorted tokens of every (sequence, router) row, as the passes read them.

    Attributes:
        key_at: (rows, key_room) int32 positions of the keys, by group and time.
        key_total: (rows,) int32 entries of ``key_at`` in use.
        entry: (rows, query_room) int32 ``query * slots + slot``, by group and time; a query has a slot a group.
        limit: (rows, query_room) int32 how many keys of its group each entry sees as far ones.
        tile: (rows, tiles, 4) int32 first and last + 1 entry, first key entry, group; longest first, unused ones 0.
        over: (1,) int32 1 where a token had more groups than was said.
        slots: groups of a query in this round.
    """

    key_at: torch.Tensor
    key_total: torch.Tensor
    entry: torch.Tensor
    limit: torch.Tensor
    tile: torch.Tensor
    over: torch.Tensor
    slots: int


def make_plan(
    query_bits: torch.Tensor,
    key_bits: torch.Tensor,
    first: torch.Tensor | None,
    window: int,
    sinks: int,
    members: tuple[int, int],
    skip: int,
    slots: int,
    rows: int,
) -> Plan:
    """Sort the tokens of one round of groups.

    Args:
        query_bits: (B, R, Nq) int64 sets.
        key_bits: (B, R, Nk) int64 sets.
        first: (B,) first real key of each row, or None.
        window: keys nearest to the query that are not far.
        sinks: first real keys that are not far.
        members: the most groups of a query and of a key.
        skip: groups of each query that earlier rounds served.
        slots: groups of each query that this round serves.
        rows: queries of a tile.
    """
    batch, routers, queries = query_bits.shape
    keys = key_bits.shape[2]
    lines = batch * routers
    # Chunks as small as adding up all those before them allows.
    blocks = 2 if keys <= _LONG else 4 if keys <= 8 * _LONG else 8
    key_chunks, query_chunks = (cover(n, _BLOCK * blocks) for n in (keys, queries))
    key_room, query_room = keys * members[1], queries * slots
    tiles = query_room // rows + _GROUPS
    sizes = [
        lines * key_room, lines, lines * query_room, lines * query_room, lines * tiles * 4, 1,
        lines * (key_chunks + query_chunks) * _GROUPS,
    ]  # fmt: skip
    # One allocation; every part starts at 16 bytes.
    room = [-(-size // 4) * 4 for size in sizes]
    parts = torch.empty(sum(room), dtype=torch.int32, device=key_bits.device).split(room)
    key_at, key_total, entry, limit, tile, over, count = parts
    over.zero_()
    where = (key_bits, query_bits, key_bits if first is None else first, count)
    strides = (*key_bits.stride(), *query_bits.stride())
    sizes_of = {"PADDED": first is not None, "BLOCK": _BLOCK, "BLOCKS": blocks}
    _count[(key_chunks + query_chunks, lines)](
        *where,
        over,
        *strides,
        keys,
        queries,
        key_chunks,
        routers,
        sinks,
        skip,
        slots,
        *members,
        **sizes_of,
        num_warps=4,
    )
    _place[(key_chunks + query_chunks + cover(tiles, _TILES), lines)](
        *where, key_at, key_total, entry, limit, tile, *strides, keys, queries, key_chunks, query_chunks, routers,
        sinks, window, skip, slots, members[1], key_room, query_room, tiles,
        SLOTS=slots, ROWS=rows, TILES=_TILES, **sizes_of, num_warps=8,
    )  # fmt: skip
    return Plan(
        key_at[: lines * key_room].view(lines, key_room),
        key_total,
        entry[: lines * query_room].view(lines, query_room),
        limit[: lines * query_room].view(lines, query_room),
        tile[: lines * tiles * 4].view(lines, tiles, 4),
        over,
        slots,
    )
