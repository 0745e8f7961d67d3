"""The whole of the flash backend.

Where queries look into the group they are in: sort, scatter, flash-attn-4 within the groups, and the near pass with the
merge. Where they look elsewhere, Triton's passes with flash-attn-4 for most of the far pairs (``tiled``).
"""

from __future__ import annotations

import torch

from focus_core.errors import Unsupported
from focus_core.kernels.focus.decode import DECODE_QUERIES
from focus_core.kernels.focus.flash.applies import call_refusal, same_memory, same_sets
from focus_core.kernels.focus.flash.attend import attend_groups
from focus_core.kernels.focus.flash.scatter import scatter_tokens
from focus_core.kernels.focus.flash.sort import sort_tokens
from focus_core.kernels.focus.flash.tiled import tiled_pass
from focus_core.kernels.focus.triton.applies import triton_refusal
from focus_core.kernels.focus.triton.near_pass import SortedPart, near_pass
from focus_core.kernels.focus.triton.pieces import TILED_STANDING
from focus_core.kernels.focus.triton.plan import most_members
from focus_core.kernels.focus.triton.run import FarPass, focus_triton
from focus_core.kernels.focus.triton.tiles import begun_tile, fitted, near_tile, scores_of, shared_memory


def focus_flash(
    q, k, v, query_bits, key_bits, *, window, sinks, first_key, scale, softcap, return_lse, members=None, equal=False
):
    """Focus's attention; arguments as in ``focus_attention``, already checked.

    Raises:
        Unsupported: where the backend does not serve the call, with the reason.
    """
    _refuse(triton_refusal(q, k, v, members) or call_refusal(q, k, v, members, scale))
    if members is None:
        members = most_members(query_bits, key_bits)
        _refuse(call_refusal(q, k, v, members, scale))
    inside = members == (1, 1) and (equal or same_sets(query_bits, key_bits))
    if not inside or q.shape[2] <= DECODE_QUERIES or window + sinks >= k.shape[2]:
        # Decoding, and calls without a far key, are Triton's.
        return focus_triton(
            q, k, v, query_bits, key_bits, window=window, sinks=sinks, first_key=first_key, scale=scale,
            softcap=softcap, return_lse=return_lse, members=members,
            far=FarPass(tiled_pass, begun_tile, TILED_STANDING),
        )  # fmt: skip
    same = same_memory(query_bits, key_bits)
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    first = None if first_key is None else first_key.to(q.device, torch.int32)
    queries, keys, routers = q.shape[2], k.shape[2], key_bits.shape[1]
    far = sort_tokens(query_bits, key_bits, first, 0, same)
    near = far if queries == keys else sort_tokens(query_bits, key_bits, first, keys - queries, same)
    rows = scatter_tokens(q, k, v, (near.spot, far.spot), far.group, routers)
    # With one line the last segment ends where the tokens without a group start; several lines have such gaps.
    used = None if k.shape[0] * routers == 1 else (near.used, far.used)
    part, part_lse = attend_groups(*rows, (near.cuts, far.cuts), used, scale, softcap)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
    widest = max(q.shape[3], v.shape[3])
    tile = fitted(near_tile(q.dtype, widest), q.dtype, widest, shared_memory(q.device))
    parts = SortedPart(part, part_lse, near.spot, far.group, far.over)
    near_pass((q, k, v), out, lse, parts, query_bits, first, window, sinks, scores_of(scale, softcap), tile)
    return (out, lse) if return_lse else out


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise Unsupported(reason, "backend='auto' works.")
