"""The whole of Focus's attention by Triton kernels: decode, or plan, gather, group pass and near pass."""

from __future__ import annotations

import torch

from focus_core.errors import Unsupported
from focus_core.kernels.focus.decode import DECODE_QUERIES
from focus_core.kernels.focus.triton.applies import triton_refusal
from focus_core.kernels.focus.triton.decode import decode
from focus_core.kernels.focus.triton.gather import gather_keys
from focus_core.kernels.focus.triton.group_pass import group_pass
from focus_core.kernels.focus.triton.near_pass import SlotParts, near_pass
from focus_core.kernels.focus.triton.plan import make_plan, most_members
from focus_core.kernels.focus.triton.tiles import fitted, group_tile, near_tile, scores_of, shared_memory

ROUND_SLOTS = 4
"""Groups of a query that one round serves: it bounds the memory for the parts that are merged."""


def focus_triton(
    q, k, v, query_bits, key_bits, *, window, sinks, first_key, scale, softcap, return_lse, members=None, groups=None
):
    """Focus's attention; arguments as in ``focus_attention``, already checked.

    ``groups`` is another pass for groups that share no pair, called as ``tiled_pass`` is, and how many groups of a
    query a round of it serves.

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
    out = q.new_empty(*q.shape[:3], v.shape[3])
    looked, held = members
    lse = None
    if return_lse or looked > (ROUND_SLOTS if groups is None else groups[1]):
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    room = shared_memory(q.device)
    far, near = (fitted(of(q.dtype, widest), q.dtype, widest, room) for of in (group_tile, near_tile))
    if looked == 0 or held == 0 or window + sinks >= keys:
        near_pass((q, k, v), out, lse, None, query_bits, first, window, sinks, scores, near)
        return (out, lse) if return_lse else out
    sorted_keys = None
    two_sided = looked > 1 and held > 1
    pass_groups, most = (None, ROUND_SLOTS) if groups is None or two_sided else groups
    for skip in range(0, looked, most):
        slots = min(most, looked - skip)
        plan = make_plan(query_bits, key_bits, first, window, sinks, members, skip, slots, far.rows)
        # The keys lie alike in every round.
        sorted_keys = sorted_keys or gather_keys(k, v, plan, key_bits.shape[1])
        if pass_groups is None:
            found = group_pass(q, *sorted_keys, plan, query_bits, key_bits, two_sided, scores, far)
        else:
            found = pass_groups(q, *sorted_keys, plan, query_bits, key_bits, scores, far, scale, softcap)
        parts = SlotParts(*found, plan.over, skip)
        near_pass((q, k, v), out, lse, parts, query_bits, first, window, sinks, scores, near)
    return (out, lse) if return_lse else out


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise Unsupported(reason, "backend='auto' works.")
