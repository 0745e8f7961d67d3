"""Focus's attention for a few new queries: gather the keys that any of them keeps."""

from __future__ import annotations

from collections.abc import Callable

import torch

from focus_core.kernels.focus.blocks import block_attention
from focus_core.kernels.focus.rows import rows_of

DECODE_QUERIES = 8
"""Up to so many queries the kept keys are gathered instead of sorted."""


def focus_decode(
    q,
    k,
    v,
    query_bits,
    key_bits,
    *,
    window,
    sinks,
    first,
    scale,
    softcap,
    widen: Callable[[torch.Tensor], torch.Tensor] | None = None,
):
    """Attention of the last few queries, O(kept keys) apart from one look at every key's set.

    Arguments are those of ``focus_attention``. Where ``k`` (B, Hkv, Nk, ...) holds packed keys, ``widen`` makes dense
    ones of the gathered rows.

    Returns:
        (B, Hq, Nq, Dv) and (B, Hq, Nq) in fp32 (fp64 for fp64).
    """
    batch, heads, queries, _ = q.shape
    kv_heads, keys = k.shape[1:3]
    routers = key_bits.shape[1]
    i = torch.arange(keys - queries, keys)[:, None]
    j = torch.arange(keys)
    begin = torch.zeros(1, 1, 1, 1, dtype=torch.long) if first is None else first[:, None, None, None]
    keep = (query_bits[..., :, None] & key_bits[..., None, :]) != 0
    keep |= (i - j < window) | (j - begin < sinks)
    keep &= (j <= i) & (j >= begin)
    union = keep.any(2).view(batch * routers, keys)
    count = union.sum(1)
    longest = max(1, int(count.max()))
    row, at = union.nonzero(as_tuple=True)
    index = torch.zeros(batch * routers, longest, dtype=torch.long)
    index[row, torch.arange(len(row)) - (count.cumsum(0) - count)[row]] = at
    index = index.view(batch, routers, 1, longest)
    kept = keep.gather(3, index.expand(batch, routers, queries, longest))
    kept &= torch.arange(longest) < count.view(batch, routers, 1, 1)
    empty = ~kept.any(3, keepdim=True)
    mask = torch.zeros(kept.shape).masked_fill_(~(kept | empty), float("-inf"))

    share, each = heads // kv_heads, kv_heads // routers
    index = index.expand(batch, routers, each, longest).reshape(batch, kv_heads, longest)
    parts = []
    for rows in (rows_of(k), rows_of(v)):
        b, h = torch.arange(batch)[:, None, None], torch.arange(kv_heads)[:, None]
        parts.append(rows.take(b * rows.batch + h * rows.head + index * rows.token))
    # A mask row for every stacked query head of every key head.
    mask, empty = (x.repeat_interleave(each, 1).repeat(1, 1, share, 1) for x in (mask, empty))
    stacked = q.reshape(batch, kv_heads, share * queries, -1)
    kept_keys, kept_values = parts
    if widen is not None:
        kept_keys = widen(kept_keys)
    out, lse = block_attention(stacked, kept_keys, kept_values, mask, scale=scale, softcap=softcap)
    out, lse = out.masked_fill(empty, 0), lse.masked_fill(empty.squeeze(3), float("-inf"))
    return out.reshape(batch, heads, queries, -1), lse.reshape(batch, heads, queries)
