"""Dense attention of one new token over a cache with room, where the device says how many tokens there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from focus_core.errors import Unsupported
from focus_core.kernels.focus.triton import machine_refusal, triton_refusal

if TYPE_CHECKING:
    from focus_core.steps import Steps


def dense_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, steps: Steps, *, scale: float, softcap: float | None = None
) -> torch.Tensor:
    """Attention to every real key: the kernel of Focus's lists with all keys in the window and none in a list.

    Args:
        q: (B, Hq, 1, D).
        k: (B, Hkv, room, D), of which ``steps.tokens`` are there.
        v: (B, Hkv, room, Dv).
        steps: of the cache that ``k`` and ``v`` are of.
        scale: factor of the scores.
        softcap: soft cap of the scores; None for none.

    Returns:
        (B, Hq, 1, Dv).

    Raises:
        Unsupported: where the kernel does not serve the call, with the reason.
    """
    if (why := machine_refusal(q.device) or triton_refusal(q, k, v)) is not None:
        raise Unsupported(why)
    from focus_core.kernels.focus.triton.decode_lists import attend_lists
    from focus_core.kernels.focus.triton.lists import PAGE, GroupLists
    from focus_core.kernels.focus.triton.tiles import scores_of

    batch, kv_heads = k.shape[:2]
    # One set for all layers, which run one after the other; no group is looked into.
    name = "dense", batch, kv_heads, q.device
    if name not in steps.scratch:
        sizes = (batch, 1, 1, PAGE), (batch, 1, 1, 1), (batch, 1, 1), (batch, 1), (batch, kv_heads + 1)
        empty = GroupLists(1, *(torch.zeros(size, dtype=torch.int32, device=q.device) for size in sizes))
        steps.scratch[name] = empty, torch.zeros(batch, 1, 1, dtype=torch.int64, device=q.device)
    lists, sets = steps.scratch[name]
    q = q if q.stride(3) == 1 else q.contiguous()
    scores = scores_of(scale, softcap)
    return attend_lists(
        lists, q, k, v, sets, sets, steps.room, 0, steps.first, scores, append=False, tokens=steps.tokens
    )[0]
