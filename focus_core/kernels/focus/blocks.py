"""Attention of one batch of equal-size blocks with its log-sum-exp: the unit of work of the cpu backend."""

from __future__ import annotations

from functools import lru_cache

import torch

from focus_core.kernels.checks import wide

BLOCK_SCORES = 1 << 21
"""The most scores of one call, over all its blocks and heads: its arrays stay near the cores."""


def piece_budget(scores: int) -> int:
    """Scores that one piece of work should take, for threads to share a small job evenly too."""
    return min(BLOCK_SCORES, max(scores // 4, BLOCK_SCORES // 16))


def block_attention(q, k, v, mask, *, scale: float, softcap: float | None = None):
    """Attention of each block of queries to its own keys.

    Args:
        q: (n, h, rows, D).
        k: (n, h, keys, D).
        v: (n, h, keys, Dv).
        mask: additive fp32 mask that broadcasts to (n, h, rows, keys), 0 or -inf; every row keeps a key.
        scale: factor of the scores.
        softcap: soft cap of the scores, before the mask.

    Returns:
        (n, h, rows, Dv) and the natural-log log-sum-exp (n, h, rows), both in fp32 or fp64.
    """
    work = wide(q.dtype)
    if softcap is None and q.shape[3] == v.shape[3] and fused_works(q.dtype):
        mask = mask.to(q.dtype).expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        out, lse = _fused(q, k, v, mask, scale)
        return out.to(work), lse.to(work)
    scores = (q.to(work) @ k.to(work).transpose(-1, -2)).mul_(scale)
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    scores += mask
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    return torch.exp(scores.sub_(lse)) @ v.to(work), lse.squeeze(-1)


def _fused(q, k, v, mask, scale):
    # Unlike torch's public function, this one takes the numbers of a row to lie side by side without looking.
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask, scale=scale)


@lru_cache(maxsize=8)
def fused_works(dtype: torch.dtype) -> bool:
    """Whether torch's private fused operation exists here and gives the output and natural log-sum-exp we expect."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 1, n, 16, generator=generator).to(dtype) for n in (40, 24, 24))
    mask = torch.zeros(40, 24).masked_fill(torch.arange(24) > torch.arange(40)[:, None], float("-inf"))
    scores = q.double() @ k.double().transpose(-1, -2) * 0.3 + mask
    try:
        out, lse = _fused(q, k, v, mask.to(dtype).expand(2, 1, 40, 24), 0.3)
    except (AttributeError, RuntimeError, TypeError):
        return False
    slack = 2e-2 if dtype.itemsize < 4 else 1e-4
    near = (out.double() - torch.softmax(scores, -1) @ v.double()).abs().max() < slack
    return bool(near and (lse.double() - scores.logsumexp(-1)).abs().max() < slack)
