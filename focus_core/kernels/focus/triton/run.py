"""The whole of Focus's attention by Triton kernels: decode, or plan, gather, group pass and near pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from focus_core.errors import Unsupported
from focus_core.kernels.focus.decode import DECODE_QUERIES
from focus_core.kernels.focus.triton.applies import triton_refusal
from focus_core.kernels.focus.triton.decode import decode
from focus_core.kernels.focus.triton.gather import gather_keys
from focus_core.kernels.focus.triton.group_pass import group_pass
from focus_core.kernels.focus.triton.near_pass import SlotParts, near_pass
from focus_core.kernels.focus.triton.pieces import pieces_of, views
from focus_core.kernels.focus.triton.plan import make_plan, most_members
from focus_core.kernels.focus.triton.tiles import Tile, fitted, group_tile, near_tile, scores_of, shared_memory


class FarPass(NamedTuple):
    """Another pass for groups that share no pair.

    Attributes:
        run: called as ``tiled_pass`` is.
        tile: its sizes by type and widest head.
        standing: groups of a query, over all heads, whose parts stand at a time: heads are served in pieces.
    """

    run: Callable[..., Any]
    tile: Callable[[torch.dtype, int], Tile]
    standing: int


def focus_triton(
    q, k, v, query_bits, key_bits, *, window, sinks, first_key, scale, softcap, return_lse, members=None, far=None
):
    """Focus's attention; arguments as in ``focus_attention``, already checked.

    ``far`` is a ``FarPass`` instead of the group pass, or None.

    Raises:
        Unsupported: where the kernels do not serve the call, with the reason.
    """
    _refuse(triton_refusal(q, k, v, members))
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    keys, widest = k.shape[2], max(q.shape[3], v.shape[3])
    window, sinks = min(window, keys), min(sinks, keys)
    first = None if first_key is None else first_key.to(q.device, torch.int32)
    scores = scores_of(scale, softcap)
    if q.shape[2] <= DECODE_QUERIES:
        out, lse = decode(q, k, v, query_bits, key_bits, window, sinks, first, scores, return_lse)
        return (out, lse) if return_lse else out
    if members is None:
        members = most_members(query_bits, key_bits)
        _refuse(triton_refusal(q, k, v, members))
    looked, held = members
    two_sided = looked > 1 and held > 1
    if two_sided:
        far = None
    parts, slots = pieces_of(k.shape[0] * k.shape[1], looked, None if far is None else far.standing)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    lse = None
    if return_lse or looked > slots:
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    room = shared_memory(q.device)
    kind = q.dtype, widest
    near = fitted(near_tile(*kind), *kind, room)
    if looked == 0 or held == 0 or window + sinks >= keys:
        near_pass((q, k, v), out, lse, None, query_bits, first, window, sinks, scores, near)
        return (out, lse) if return_lse else out
    tile = fitted((group_tile if far is None else far.tile)(*kind), *kind, room)

    def serve(q, k, v, query_bits, key_bits, first, out, lse):
        sorted_keys = None
        for skip in range(0, looked, slots):
            plan = make_plan(
                query_bits, key_bits, first, window, sinks, members, skip, min(slots, looked - skip), tile.rows
            )
            # The keys lie alike in every round.
            sorted_keys = sorted_keys or gather_keys(k, v, plan, key_bits.shape[1])
            if far is None:
                found = group_pass(q, *sorted_keys, plan, query_bits, key_bits, two_sided, scores, tile)
            else:
                found = far.run(q, *sorted_keys, plan, query_bits, key_bits, scores, tile, scale, softcap)
            merged = SlotParts(*found, plan.over, skip)
            near_pass((q, k, v), out, lse, merged, query_bits, first, window, sinks, scores, near)
            # The next round's take this memory.
            del found, merged, plan

    for piece in views((q, k, v, query_bits, key_bits, first, out, lse), parts):
        serve(*piece)
    return (out, lse) if return_lse else out


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise Unsupported(reason, "backend='auto' works.")
