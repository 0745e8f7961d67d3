"""Decoding by lists of each group's keys that stay beside a cache, where a GPU with Triton serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from focus_core.errors import Unsupported
from focus_core.kernels.focus.decode import DECODE_QUERIES
from focus_core.kernels.focus.triton import machine_refusal, triton_refusal

if TYPE_CHECKING:
    from focus_core.cache import Memo
    from focus_core.steps import Steps


def listed_attention(
    memo: Memo,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_bits: torch.Tensor,
    key_bits: torch.Tensor,
    *,
    groups: int,
    members: tuple[int, int],
    window: int,
    sinks: int,
    first_key: torch.Tensor | None = None,
    scale: float,
    softcap: float | None = None,
    steps: Steps | None = None,
) -> torch.Tensor | None:
    """A decode step of ``focus_attention``, with its arguments, that goes on from what ``memo`` keeps of earlier keys.

    The lists are made at the first step and appended to in place at the next ones; a memo that does not hold exactly
    the earlier keys (new, or dropped because the cache was cut) has them made anew. ``memo`` belongs to the cache that
    ``k``, ``v`` and ``key_bits`` come from; ``groups`` is K; ``members`` are the most groups of a query and of a key,
    and a key in more makes the output NaN. With ``steps``, ``k``, ``v`` and ``key_bits`` have room for more than there
    are, and so do the lists: the call launches alike at every step.

    Returns:
        (B, Hq, Nq, Dv); None where the kernels do not serve the call, or it is no decode step or keeps every key.

    Raises:
        Unsupported: with ``steps``, where the kernels do not serve the call.
    """
    new, keys = q.shape[2], k.shape[2]
    if steps is not None:
        return _step(memo, (q, k, v), query_bits, key_bits, groups, members, window, sinks, scale, softcap, steps)
    if machine_refusal(q.device) is not None:
        return None
    if new > DECODE_QUERIES or window >= keys or sinks >= keys or triton_refusal(q, k, v, members) is not None:
        memo.drop()
        return None
    from focus_core.kernels.focus.triton.decode_lists import attend_lists
    from focus_core.kernels.focus.triton.lists import GroupLists, build_lists
    from focus_core.kernels.focus.triton.tiles import scores_of

    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    kept, append, held = memo.take(keys), False, max(1, members[1])
    if kept is None:
        kept = memo.take(keys - new)
        append = kept is not None
    lists = build_lists(key_bits, keys, groups, held, k.shape[1]) if kept is None else GroupLists(held, *kept)
    if append:
        lists = lists.grown(keys)
    first = None if first_key is None else first_key.to(q.device)
    out, _ = attend_lists(
        lists, q, k, v, query_bits, key_bits, window, sinks, first, scores_of(scale, softcap), append=append
    )
    memo.keep(lists.tensors, keys)
    return out


def _step(memo, qkv, query_bits, key_bits, groups, members, window, sinks, scale, softcap, steps: Steps):
    """A step that a CUDA graph can hold: the number of tokens is read on the device."""
    q, k, v = qkv
    if (why := machine_refusal(q.device) or triton_refusal(q, k, v, members)) is not None:
        raise Unsupported(why)
    from focus_core.kernels.focus.triton.decode_lists import attend_lists
    from focus_core.kernels.focus.triton.lists import GroupLists, build_lists
    from focus_core.kernels.focus.triton.tiles import scores_of

    held = max(1, members[1])
    # Lists with room belong to the steps: the launches keep them. Before the first step there may be older ones.
    kept = memo.take(steps.room)
    if kept is None:
        kept = memo.take(steps.count)
        lists = (
            build_lists(key_bits, steps.count, groups, held, k.shape[1]) if kept is None else GroupLists(held, *kept)
        )
        memo.keep(lists.grown(steps.room).tensors, steps.room)
    lists = GroupLists(held, *memo.tensors)
    q = q if q.stride(3) == 1 else q.contiguous()
    scores = scores_of(scale, softcap)
    window, sinks = min(window, steps.room), min(sinks, steps.room)
    return attend_lists(lists, q, k, v, query_bits, key_bits, window, sinks, steps.first, scores, tokens=steps.tokens)[
        0
    ]
