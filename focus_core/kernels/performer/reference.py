"""The specification of Performer's attention: all N x N estimated weights, summed feature by feature."""

from __future__ import annotations

import torch

from focus_core.kernels.checks import wide
from focus_core.kernels.performer.features import log_features


def performer_reference(q, k, v, projection, *, first_key, scale):
    """Estimated causal attention; arguments as in ``performer_attention``, already checked."""
    work = wide(q.dtype)
    batch, heads, queries, _ = q.shape
    kv_heads, keys = k.shape[1:3]
    share = heads // kv_heads
    a = log_features(q, projection, scale)[:, :, :, None]
    b = log_features(k, projection, scale).repeat_interleave(share, 1)[:, :, None]
    log_weights = torch.logsumexp(a + b, dim=-1)
    i = torch.arange(keys - queries, keys, device=q.device)[:, None]
    j = torch.arange(keys, device=q.device)[None, :]
    first = torch.zeros(batch, 1, 1, 1, device=q.device) if first_key is None else first_key[:, None, None, None]
    seen = (j <= i) & (j >= first.to(q.device))
    some = seen.any(-1, keepdim=True)
    weights = log_weights.masked_fill(~(seen | ~some), float("-inf")).softmax(-1)
    out = weights @ v.to(work).repeat_interleave(share, 1)
    return out.masked_fill(~some, 0).to(q.dtype)
