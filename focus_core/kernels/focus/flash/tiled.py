"""The far pairs of queries that look into any groups: flash-attn-4 on tiles of queries, each over a group's first keys.

A tile's queries look into one group, and all of them see the keys that its first query sees: these keys, which are
nearly all, are flash-attn-4's, one sequence a tile and without a mask. The few further keys of the later queries of a
tile are Triton's, which goes on from flash-attn-4's result.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.flash.attend import attend_tiles
from focus_core.kernels.focus.triton.group_pass import Started, group_pass
from focus_core.kernels.focus.triton.plan import Plan
from focus_core.kernels.focus.triton.tiles import Scores, Tile, padded


@triton.jit(do_not_specialize=["query_room", "key_room"])
def _spread(
    Q, TO, START, USED, TILE, ENTRY, LIMIT, qb, qh, qt, query_room, key_room, kv_heads, routers,
    SHARE: tl.constexpr, SLOTS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(1) // kv_heads).to(tl.int64), (tl.program_id(1) % kv_heads).to(tl.int64)
    line = b * routers + h // (kv_heads // routers)
    at = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tile = TILE + (line * tl.num_programs(0) + tl.program_id(0)) * 4
    low, high, key_low = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    e = low + tl.arange(0, ROWS)
    real = e < high
    limit = tl.load(LIMIT + line * query_room + e, mask=real, other=2147483647)
    used = tl.where(low < high, tl.min(limit, 0), 0)
    tl.store(USED + at, used)
    tl.store(START + at, tl.program_id(1) * key_room + key_low)
    if used > 0:
        i = (tl.load(ENTRY + line * query_room + e, mask=real, other=0) // SLOTS).to(tl.int64)
        d = tl.arange(0, DP)[None, :]
        kept = real[:, None] & (d < D)
        row = at * ROWS + tl.arange(0, ROWS)
        for s in tl.static_range(SHARE):
            q = tl.load(Q + b * qb + (h * SHARE + s) * qh + i[:, None] * qt + d, mask=kept, other=0.0)
            tl.store(TO + (row * SHARE + s)[:, None] * D + d, q, mask=kept)


def tiled_pass(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: Plan,
    query_bits: torch.Tensor,
    key_bits: torch.Tensor,
    scores: Scores,
    tile: Tile,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query in each of its groups; arguments and result as those of ``group_pass``.

    Args:
        q: (B, Hq, Nq, D).
        keys: (B, Hkv, key_room, D), sorted.
        values: (B, Hkv, key_room, Dv), sorted.
        plan: where they stand.
        query_bits: (B, R, Nq) int64 sets.
        key_bits: (B, R, Nk) int64 sets.
        scores: factors of the scores, for the part that is Triton's.
        tile: sizes of that part.
        scale: factor of the scores.
        softcap: soft cap of the scores, or None.
    """
    batch, heads, _, dim = q.shape
    kv_heads, key_room, wide = values.shape[1:]
    share, tiles = heads // kv_heads, plan.tile.shape[1]
    whole = batch * kv_heads * tiles
    queries = q.new_empty(whole, tile.rows, share, dim)
    start = torch.empty(2, whole + 4, dtype=torch.int32, device=q.device)
    _spread[(tiles, batch * kv_heads)](
        q, queries, start[0], start[1], plan.tile, plan.entry, plan.limit, *q.stride()[:3],
        plan.entry.shape[1], key_room, kv_heads, query_bits.shape[1],
        SHARE=share, SLOTS=plan.slots, D=dim, DP=padded(dim), ROWS=tile.rows, num_warps=4,
    )  # fmt: skip
    rows = keys.view(-1, 1, dim), values.view(-1, 1, wide)
    started = Started(*attend_tiles(queries, *rows, start[0, : whole + 1], start[1, :whole], scale, softcap))
    # What comes next takes its place.
    del queries
    return group_pass(q, keys, values, plan, query_bits, key_bits, False, scores, tile, started)
