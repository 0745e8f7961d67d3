"""SFA without an N x N array: dense tiles of the codes for many queries, the codes alone for a few."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from focus_core.kernels.checks import wide
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.masked import causal_tile, masked_attention
from focus_core.kernels.sfa.codes import Codes

DECODE_QUERIES = 8
"""Up to so many queries the codes are read as they lie; for more, filling in their zeros pays."""


def sfa_scattered(q, k, v, query_support, key_support, *, exclude, first_key, scale, softcap, return_lse):
    """SFA by dense attention over codes with their zeros filled in: exact, and no operation of a score is saved.

    Matrix units have no use for scattered zeros, so for long prompts this is the fast exact way; what SFA saves is
    the cache. Arguments: ``q`` and ``k`` sparse already (zeros off their support), the rest as in ``sfa_reference``.
    """
    options = {"scale": scale, "softcap": softcap, "return_lse": return_lse}
    if not exclude:
        return dense_attention(q, k, v, first_key=first_key, **options)
    share, queries, keys = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    # Whether a pair is kept differs from query head to query head.
    k, v, key_support = (x.repeat_interleave(share, dim=1) for x in (k, v, key_support))
    wanted, offered = query_support.to(torch.float32), key_support.to(torch.float32)

    def keep(start: int, stop: int, last: int) -> torch.Tensor:
        causal = causal_tile(start, stop, last, keys, queries, first_key, q.device)[2]
        return causal & ((wanted[:, :, start:stop] @ offered[:, :, :last].transpose(-1, -2)) > 0)

    return masked_attention(q, k, v, keep, **options)


def sfa_from_codes(q, codes: Codes, v, query_support, *, exclude, first_key, scale, softcap, return_lse):
    """SFA for a few queries, reading the keys' codes alone: ``s_j = sum over t of q[ids[j, t]] * values[j, t]``.

    Every key's code is read once for all query heads that share it. ``q`` is sparse already, or dense where only keys
    are sparse; ``query_support`` is read only with ``exclude``; the rest is as in ``sfa_attention``, checked already.
    """
    work = wide(q.dtype)
    batch, heads, queries, dim = q.shape
    kv_heads, keys = v.shape[1:3]
    share = heads // kv_heads
    stacked = q.reshape(batch, kv_heads, share * queries, dim).to(work)
    # Half the bytes of the usual numbers of rows, and all of them are read.
    features, values = codes.features(torch.int32), codes.values.to(work)
    if codes.select == "first":
        scores = (stacked[..., : values.shape[-1]] @ values.transpose(-1, -2)).mul_(scale)
    else:
        scores = _dots(stacked, features, values).mul_(scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(keys - queries, keys, device=q.device).repeat(share)[:, None]
    j = torch.arange(keys, device=q.device)[None, :]
    kept = (j <= i)[None, None]
    if first_key is not None:
        kept = kept & (j >= first_key.to(q.device)[:, None, None, None])
    if exclude:
        support = query_support.reshape(batch, kv_heads, share * queries, dim).to(work)
        kept = kept & (_dots(support, features, torch.ones_like(values)) > 0)
    scores.masked_fill_(~kept, float("-inf"))
    empty = ~kept.any(-1, keepdim=True)
    lse = torch.logsumexp(scores.masked_fill_(empty, 0), -1, keepdim=True)
    weights = torch.exp(scores - lse).masked_fill_(empty, 0)
    # In the values' own type: a wide copy of V would be read and written instead of V.
    out = (weights.to(v.dtype) @ v).to(q.dtype).reshape(batch, heads, queries, -1)
    if not return_lse:
        return out
    return out, lse.masked_fill(empty, float("-inf")).reshape(batch, heads, queries)


def _dots(rows: torch.Tensor, features: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """(B, H, R, Nk) products of dense rows (B, H, R, D) with codes (B, H, Nk, k)."""
    batch, heads, count, dim = rows.shape
    keys, kept = features.shape[2:]
    # One bag a key over a table with a line a (row, head, feature): gathered, weighted and summed in one pass.
    line = torch.arange(batch * heads, dtype=features.dtype, device=rows.device).view(batch, heads, 1, 1) * dim
    bags = (features + line).view(-1, kept)
    table = rows.transpose(-1, -2).reshape(-1, count)
    found = F.embedding_bag(bags, table, mode="sum", per_sample_weights=values.reshape(-1, kept))
    return found.view(batch, heads, keys, count).transpose(-1, -2).contiguous()
