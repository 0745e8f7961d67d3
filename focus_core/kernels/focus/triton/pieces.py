"""How a call is served piece by piece and round by round: it bounds the memory for parts that are merged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

ROUND_SLOTS = 4
"""Groups of a query that one round serves."""
TILED_STANDING = 2
"""Groups of a query, over all heads, whose parts stand at a time where flash-attn-4 serves tiles; twice at most."""
_ROWS = 128
_GROUPS = 64


def pieces_of(heads: int, looked: int, standing: int | None) -> tuple[int, int]:
    """How many pieces serve the heads, and how many groups of a query a round.

    Args:
        heads: key heads of all sequences together.
        looked: the most groups of a query.
        standing: that of a ``FarPass``; None for the group pass, which serves all heads at once.
    """
    if standing is None:
        return 1, ROUND_SLOTS
    slots = max(1, min(looked, ROUND_SLOTS, standing * heads))
    return -(-slots // standing), slots


def views(call: tuple[Any, ...], parts: int) -> Iterator[tuple[Any, ...]]:
    """Views of sequences, or of heads of one sequence, whose outputs lie in a run; at least ``parts`` where it can."""
    q, k, v, query_bits, key_bits, first, out, lse = call
    batch, kv_heads = k.shape[:2]
    if parts == 1:
        yield call
        return
    rows = max(1, batch // parts)
    width = kv_heads if batch >= parts else max(1, kv_heads // -(-parts // batch))
    share = q.shape[1] // kv_heads
    for b in range(0, batch, rows):
        lines = slice(b, b + rows)
        for h in range(0, kv_heads, width):
            few, many = slice(h, h + width), slice(h * share, (h + width) * share)
            own = few if key_bits.shape[1] > 1 else slice(None)
            yield (
                q[lines, many], k[lines, few], v[lines, few], query_bits[lines, own], key_bits[lines, own],
                None if first is None else first[lines], out[lines, many], None if lse is None else lse[lines, many],
            )  # fmt: skip


def tiled_extra(q: torch.Tensor, k: torch.Tensor, members: tuple[int, int]) -> float:
    """Memory that flash-attn-4 on tiles takes, over that of query, key, value and output.

    Args:
        q: (B, Hq, Nq, D).
        k: (B, Hkv, Nk, D).
        members: the most groups of a query and of a key.
    """
    parts, slots = pieces_of(k.shape[0] * k.shape[1], members[0], TILED_STANDING)
    whole = slots * (1 + _GROUPS * _ROWS / (slots * q.shape[2]))
    return (2 * whole * q.numel() + 2 * members[1] * k.numel()) / parts / (2 * q.numel() + 2 * k.numel())
