"""MLA's two forms, neither with an N x N array: keys and values made (naive), or the latent read as it lies."""

from __future__ import annotations

import torch

from focus_core.kernels.checks import wide
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.masked import causal_tile

_STRIPE_SCORES = 1 << 24


def keys_and_values(latent, k_rope, up_k, up_v, *, bias_k=None, bias_v=None) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys (B, Hu, Nk, Dn + Dr) and values (B, Hu, Nk, Dv) that a latent stands for; see ``mla_attention``."""
    k, v = latent @ up_k.transpose(-1, -2), latent @ up_v.transpose(-1, -2)
    if bias_k is not None:
        k = k + bias_k[:, None]
    if bias_v is not None:
        v = v + bias_v[:, None]
    return torch.cat([k, k_rope.repeat_interleave(up_k.shape[0] // k_rope.shape[1], 1)], -1), v


def mla_naive(q, latent, k_rope, up_k, up_v, *, bias_k, bias_v, first_key, scale, softcap, return_lse):
    """Keys and values of all heads are made, then attended to densely: the fewest operations for many queries."""
    k, v = keys_and_values(latent, k_rope, up_k, up_v, bias_k=bias_k, bias_v=bias_v)
    return dense_attention(q, k, v, first_key=first_key, scale=scale, softcap=softcap, return_lse=return_lse)


def mla_absorbed(q, latent, k_rope, up_k, up_v, *, bias_k, bias_v, first_key, scale, softcap, return_lse):
    """W_UK is folded into the queries and W_UV into the outputs; no key or value of a head is ever made.

    A key's bias adds the same number to all scores of a query, and a value's bias adds itself to its output, as the
    weights sum to 1.
    """
    work, (batch, heads, queries, _) = wide(q.dtype), q.shape
    keys, rank, nope = latent.shape[2], latent.shape[3], up_k.shape[1]
    folded = _by_head(q[..., :nope].to(work), up_k.to(work))
    rotated = q[..., nope:].to(work)
    shift = None if bias_k is None else _by_head(q[..., :nope].to(work), bias_k.to(work)[..., None])
    outputs, sums = [], []
    rows = max(1, min(queries, _STRIPE_SCORES // (batch * heads * keys), max(128, -(-queries // 8))))
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        last = keys - queries + stop
        held = latent[:, 0, :last].to(work)
        scores = (folded[:, :, start:stop].reshape(batch, -1, rank) @ held.transpose(-1, -2)).view(
            batch, heads, stop - start, last
        )
        if rotated.shape[-1]:
            shared = k_rope[:, :, :last].to(work)
            stacked = rotated[:, :, start:stop].reshape(batch, shared.shape[1], -1, rotated.shape[-1])
            scores = scores + (stacked @ shared.transpose(-1, -2)).view_as(scores)
        if shift is not None:
            scores = scores + shift[:, :, start:stop]
        scores = scores * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        kept = causal_tile(start, stop, last, keys, queries, first_key, q.device)[2]
        some = kept.any(-1, keepdim=True)
        scores = scores.masked_fill(~(kept | ~some), float("-inf"))
        lse = torch.logsumexp(scores, -1, keepdim=True)
        weights = torch.exp(scores - lse).masked_fill(~some, 0)
        mixed = (weights.view(batch, -1, last) @ held).view(batch, heads, stop - start, rank)
        out = _by_head(mixed, up_v.to(work).transpose(-1, -2))
        if bias_v is not None:
            out = out + bias_v.to(work).repeat_interleave(heads // bias_v.shape[0], 0)[:, None] * some
        outputs.append(out.to(q.dtype))
        sums.append(lse.masked_fill(~some, float("-inf")).squeeze(-1))
    out = torch.cat(outputs, 2)
    return (out, torch.cat(sums, 2)) if return_lse else out


def _by_head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(B, H, N, i) times one matrix (i, o) a head or group of heads, (Hu, i, o)."""
    batch, heads, tokens, size = x.shape
    grouped = x.reshape(batch, weight.shape[0], heads * tokens // weight.shape[0], size)
    return (grouped @ weight).reshape(batch, heads, tokens, -1)
