"""The specification of MLA: keys and values of every head made in full, then plain softmax attention."""

from __future__ import annotations

import torch

from focus_core.kernels.checks import wide


def mla_reference(q, latent, k_rope, up_k, up_v, *, bias_k, bias_v, first_key, scale, softcap):
    """MLA in fp32 (fp64 for fp64), by its equations (arXiv 2405.04434, section 2.1): k = [W_UK c; k_R], v = W_UV c.

    Arguments as in ``mla_attention``, checked already.

    Returns:
        Output (B, H, Nq, Dv) and log-sum-exp (B, H, Nq).
    """
    work, heads = wide(q.dtype), q.shape[1]
    up_k, up_v, bias_k, bias_v = (
        None if x is None else x.to(work).repeat_interleave(heads // x.shape[0], 0)
        for x in (up_k, up_v, bias_k, bias_v)
    )
    rotated = k_rope.to(work).repeat_interleave(heads // k_rope.shape[1], 1)
    k = latent.to(work) @ up_k.transpose(-1, -2)
    v = latent.to(work) @ up_v.transpose(-1, -2)
    if bias_k is not None:
        k = k + bias_k[:, None]
    if bias_v is not None:
        v = v + bias_v[:, None]
    scores = scale * q.to(work) @ torch.cat([k, rotated], -1).transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    queries, keys = q.shape[2], latent.shape[2]
    i = torch.arange(keys - queries, keys, device=q.device)[:, None]
    j = torch.arange(keys, device=q.device)[None, :]
    mask = (j <= i).expand(scores.shape)
    if first_key is not None:
        mask = mask & (j >= first_key.to(q.device)[:, None, None, None])
    empty = ~mask.any(-1, keepdim=True)
    scores = scores.masked_fill(~mask, float("-inf")).masked_fill(empty, 0)
    out = torch.softmax(scores, -1).masked_fill(empty, 0) @ v
    lse = torch.logsumexp(scores, -1).masked_fill(empty.squeeze(-1), float("-inf"))
    return out.to(q.dtype), lse
