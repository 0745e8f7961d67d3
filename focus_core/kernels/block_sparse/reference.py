"""The specification of block-sparse attention: plain PyTorch over the whole score matrix."""

from __future__ import annotations

import torch

from focus_core.kernels.checks import wide


def block_sparse_reference(q, k, v, block_mask, *, block, causal, first, scale, softcap, return_lse):
    """Block-sparse attention in fp32 (fp64 for fp64 input); arguments as in ``block_sparse_attention``, checked."""
    work = wide(q.dtype)
    share = q.shape[1] // k.shape[1]
    scores = scale * q.to(work) @ k.to(work).repeat_interleave(share, dim=1).transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    keep = kept_pairs(block_mask, q.shape[2], k.shape[2], block=block, causal=causal, first=first)
    keep = keep.repeat_interleave(q.shape[1] // keep.shape[1], dim=1)
    empty = ~keep.any(-1, keepdim=True)
    scores = scores.masked_fill(~keep, float("-inf")).masked_fill(empty, 0)
    weights = torch.softmax(scores, -1).masked_fill(empty, 0)
    out = (weights @ v.to(work).repeat_interleave(share, dim=1)).to(q.dtype)
    lse = torch.logsumexp(scores, -1).masked_fill(empty.squeeze(-1), float("-inf"))
    return (out, lse) if return_lse else out


def kept_pairs(block_mask, queries: int, keys: int, *, block: int, causal: bool = True, first=None) -> torch.Tensor:
    """The kept pairs as one bool array (B, M, Nq, Nk); for short lengths only."""
    device = block_mask.device
    start = torch.zeros(len(block_mask), 1, dtype=torch.long) if first is None else first.to("cpu", torch.long)[:, None]
    i = (torch.arange(keys - queries, keys) - start).to(device)
    j = (torch.arange(keys) - start).to(device)
    row = i.clamp_min(0) // block
    row = row - ((keys - queries - start).clamp_min(0) // block).to(device)
    keep = torch.stack([m[:, r][:, :, c] for m, r, c in zip(block_mask, row, j.clamp_min(0) // block, strict=True)])
    real = (i[:, :, None] >= 0) & (j[:, None, :] >= 0)
    if causal:
        real &= j[:, None, :] <= i[:, :, None]
    return keep & real[:, None]
