"""The specification of Focus's attention: plain PyTorch over the whole N x N score matrix."""

from __future__ import annotations

import torch

from focus_core.kernels.checks import wide


def focus_reference(q, k, v, query_bits, key_bits, *, window, sinks, first_key, scale, softcap, return_lse):
    """Focus's attention in fp32 (fp64 for fp64 input); arguments as in ``focus_attention``, already checked."""
    work = wide(q.dtype)
    heads, kv_heads = q.shape[1], k.shape[1]
    scores = scale * q.to(work) @ k.to(work).repeat_interleave(heads // kv_heads, dim=1).transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    mask = kept_mask(query_bits, key_bits, window=window, sinks=sinks, first_key=first_key)
    mask = mask.repeat_interleave(heads // mask.shape[1], dim=1)
    scores = scores.masked_fill(~mask, float("-inf"))
    empty = ~mask.any(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0), dim=-1).masked_fill(empty, 0)
    out = (weights @ v.to(work).repeat_interleave(heads // kv_heads, dim=1)).to(q.dtype)
    if not return_lse:
        return out
    lse = torch.logsumexp(scores.masked_fill(empty, 0), dim=-1)
    return out, lse.masked_fill(empty.squeeze(-1), float("-inf"))


def kept_mask(
    query_bits: torch.Tensor,
    key_bits: torch.Tensor,
    *,
    window: int,
    sinks: int = 0,
    first_key: torch.Tensor | None = None,
) -> torch.Tensor:
    """The kept pairs as one bool array (B, R, Nq, Nk); for short lengths only."""
    queries, keys = query_bits.shape[-1], key_bits.shape[-1]
    i = torch.arange(keys - queries, keys, device=key_bits.device)[:, None]
    j = torch.arange(keys, device=key_bits.device)[None, :]
    first = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=key_bits.device)
    if first_key is not None:
        first = first_key.to(key_bits.device, torch.long)[:, None, None, None]
    shared = (query_bits[..., :, None] & key_bits[..., None, :]) != 0
    return (j <= i) & (j >= first) & ((i - j < window) | (j - first < sinks) | shared)
