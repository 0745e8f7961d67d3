"""Which backend ``auto`` takes, and why, from what each would cost."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from focus_core.kernels.focus.decode import DECODE_QUERIES
from focus_core.kernels.focus.flash import flash_refusal, same_sets
from focus_core.kernels.focus.triton import triton_refusal
from focus_core.kernels.focus.triton.pieces import tiled_extra

_SAMPLE = 128
_MASKED_COST = 20.0
_KEPT_COST = 12.0
_MEMBER_COST = 1500.0
_KEPT_START = 3e6
"""Nanoseconds on one CPU core: a masked score; of the cpu backend, a score, a query in one of its groups (gathered,
computed and merged apart), and the planning."""
_GATHER_PAYS = 9 * 2048
"""Scores of a decode step from which gathering the kept keys is faster than reading all of them."""

_FLASH_PAYS = 1 << 16
"""Tokens from which the flash backend was faster on an H200 (data/results/bench-focus-h200.json)."""
_FLASH_SHARE = 4
"""Query heads of a key head from which it was faster where queries look into other groups."""
_EXTRA = 2.0
"""The most extra memory, over that of query, key, value and output."""


@dataclass(frozen=True)
class Choice:
    """The backend that ``auto`` takes.

    Attributes:
        backend: ``dense``, ``chunked``, ``cpu``, ``triton`` or ``flash``.
        reason: one sentence for a person.
        share: share of the causal pairs that the cpu backend would compute, estimated on a sample; None where
            nothing was estimated. It can pass 1: a pair that shares several groups is looked at in each.
    """

    backend: str
    reason: str
    share: float | None = None


def choose_backend(
    q: torch.Tensor,
    k: torch.Tensor,
    query_bits: torch.Tensor,
    key_bits: torch.Tensor,
    *,
    window: int,
    sinks: int = 0,
    members: tuple[int, int] | None = None,
    equal: bool = False,
) -> Choice:
    """The fastest exact backend for a call of ``focus_attention``; arguments as there.

    Returns:
        The backend with its reason. ``dense`` only where the call keeps every causal pair.
    """
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    if window >= keys or sinks >= keys:
        return Choice("dense", f"The window and the sinks cover all {keys} keys: this is dense attention.")
    if q.device.type != "cpu":
        why = triton_refusal(q, k, None, members)
        if queries > DECODE_QUERIES and members is not None and flash_refusal(q, k, None, members) is None:
            found = _with_flash(q, k, query_bits, key_bits, members, equal)
            if found is not None:
                return found
        if why is None:
            return Choice("triton", "On a GPU only the kept pairs are computed, by Triton kernels.")
        return Choice("chunked", f"{why} All pairs are computed, with a mask.")
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        return Choice("chunked", "Gradients are asked for: all pairs are computed, with a mask.")
    if queries <= DECODE_QUERIES:
        if batch * heads * queries * keys < _GATHER_PAYS:
            return Choice("chunked", f"Reading all {keys} keys with a mask is faster than gathering the kept ones.")
        return Choice("cpu", "For a few new tokens the kept keys are gathered.")
    shared = _shared_groups(query_bits, key_bits)
    if shared.numel() and bool((shared > 0).all()) and _all_share(query_bits, key_bits):
        return Choice("dense", "Every query shares a group with every key: this is dense attention.")
    causal = queries * (keys - (queries - 1) / 2)
    near = queries * min(keys, window + sinks + 63)
    far = float(shared.float().mean()) * max(causal - near, 0) * 1.2
    share = (near + far) / causal
    entries = queries * float(_set_bits(query_bits[:, :, :: max(1, queries // _SAMPLE)]).float().mean())
    kept_ns = _KEPT_START + batch * heads * (_KEPT_COST * (near + far) + _MEMBER_COST * entries)
    masked_ns = _MASKED_COST * batch * heads * causal * 1.1
    if kept_ns < masked_ns:
        return Choice("cpu", f"About {share:.0%} of the pairs need work: the rest is skipped.", share)
    if near > causal / 2:
        why = f"Window and sinks already cover most of the {keys} tokens"
    else:
        why = f"The groups keep too many pairs to skip the rest ({min(share, 1):.0%} of them need work)"
    return Choice("chunked", f"{why}: computing all pairs with a mask is faster.", share)


def _with_flash(q, k, query_bits, key_bits, members: tuple[int, int], equal: bool) -> Choice | None:
    """What the groups of prefill take where flash-attn-4 can serve them; None where it was not found faster."""
    queries, keys = q.shape[2], k.shape[2]
    if queries * keys < _FLASH_PAYS**2:
        return Choice("triton", f"Below {_FLASH_PAYS:,} tokens starting flash-attn-4 takes more time than it saves.")
    if members == (1, 1) and (equal or same_sets(query_bits, key_bits)):
        return Choice("flash", f"From {_FLASH_PAYS:,} tokens on flash-attn-4 is the faster one inside the groups.")
    extra = tiled_extra(q, k, members)
    if q.shape[1] // k.shape[1] < _FLASH_SHARE or extra > _EXTRA:
        return None
    return Choice("flash", f"flash-attn-4 serves the far keys of tiles of queries, with {extra:.1f} times the memory.")


def _shared_groups(query_bits: torch.Tensor, key_bits: torch.Tensor) -> torch.Tensor:
    """Number of groups that pairs of an even sample of tokens share."""
    queries = query_bits[:, :, :: max(1, query_bits.shape[2] // _SAMPLE)]
    keys = key_bits[:, :, :: max(1, key_bits.shape[2] // _SAMPLE)]
    return _set_bits(queries[..., :, None] & keys[..., None, :])


def _set_bits(sets: torch.Tensor) -> torch.Tensor:
    count = torch.zeros(sets.shape, dtype=torch.int32)
    while bool((sets != 0).any()):
        count += sets != 0
        sets = sets & (sets - 1)
    return count


def _all_share(query_bits: torch.Tensor, key_bits: torch.Tensor) -> bool:
    for queries, keys in zip(query_bits.flatten(0, 1), key_bits.flatten(0, 1), strict=True):
        wanted, offered = queries.unique(), keys.unique()
        if len(wanted) * len(offered) > 1 << 16 or bool(((wanted[:, None] & offered) == 0).any()):
            return False
    return True
