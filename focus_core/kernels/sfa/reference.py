"""The specification of SFA: plain PyTorch over the whole N x N score matrix."""

from __future__ import annotations

import torch

from focus_core.kernels.checks import wide


def sfa_reference(q, k, v, query_support, key_support, *, exclude, first_key, scale, softcap):
    """SFA in fp32 (fp64 for fp64 input).

    ``s_ij = scale * sum over u in S_i and S_j of q_iu k_ju``: a pair without a shared feature has score 0, and is NOT
    masked unless ``exclude`` (arXiv 2603.22300 writes it both ways; its Algorithm 1 and its counts keep it).

    ``q`` and ``k`` are dense; ``query_support`` (B, Hq, Nq, D) and ``key_support`` (B, Hkv, Nk, D) are bool, the
    features of each query and of each key. The rest is as in ``sfa_attention``, checked already.

    Returns:
        Output (B, Hq, Nq, Dv) and log-sum-exp (B, Hq, Nq).
    """
    work, share = wide(q.dtype), q.shape[1] // k.shape[1]
    k, v, key_support = (x.repeat_interleave(share, dim=1) for x in (k, v, key_support))
    queries, keys = q.shape[2], k.shape[2]
    scores = scale * (q.to(work) * query_support) @ (k.to(work) * key_support).transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(keys - queries, keys, device=q.device)[:, None]
    j = torch.arange(keys, device=q.device)[None, :]
    mask = (j <= i).expand(scores.shape)
    if first_key is not None:
        mask = mask & (j >= first_key.to(q.device)[:, None, None, None])
    if exclude:
        mask = mask & ((query_support.to(work) @ key_support.to(work).transpose(-1, -2)) > 0)
    empty = ~mask.any(-1, keepdim=True)
    scores = scores.masked_fill(~mask, float("-inf")).masked_fill(empty, 0)
    out = torch.softmax(scores, -1).masked_fill(empty, 0) @ v.to(work)
    lse = torch.logsumexp(scores, -1).masked_fill(empty.squeeze(-1), float("-inf"))
    return out.to(q.dtype), lse
