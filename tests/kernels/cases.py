"""Inputs shared by the attention tests."""

from __future__ import annotations

import math

import torch


def random_sets(shape: tuple[int, ...], groups: int, members: int, seed: int = 0) -> torch.Tensor:
    """int64 sets of ``members`` distinct groups out of ``groups``."""
    generator = torch.Generator().manual_seed(seed)
    sets = torch.zeros(shape, dtype=torch.int64)
    order = torch.rand(*shape, groups, generator=generator).argsort(-1)
    for slot in range(members):
        sets |= torch.ones((), dtype=torch.int64) << order[..., slot]
    return sets


def make(
    batch=1,
    heads=9,
    kv_heads=3,
    queries=None,
    keys=100,
    dim=64,
    routers=None,
    groups=16,
    query_groups=1,
    key_groups=1,
    dtype=torch.float32,
    seed=0,
):
    """q, k, v, query_bits, key_bits of one call; queries are the last ones of a full sequence of the same seed."""
    generator = torch.Generator().manual_seed(seed)
    routers = kv_heads if routers is None else routers
    queries = keys if queries is None else queries
    q = torch.randn(batch, heads, keys, dim, generator=generator)[:, :, keys - queries :].to(dtype)
    k = torch.randn(batch, kv_heads, keys, dim, generator=generator).to(dtype)
    v = torch.randn(batch, kv_heads, keys, dim, generator=generator).to(dtype)
    query_bits = random_sets((batch, routers, keys), groups, query_groups, seed + 1)[:, :, keys - queries :]
    key_bits = random_sets((batch, routers, keys), groups, key_groups, seed + 2)
    return q, k, v, query_bits, key_bits


def brute_force(q, k, v, query_bits, key_bits, *, window, sinks=0, first_key=None, scale=None, softcap=None):
    """The contract of focus_attention spelt out pair by pair in Python numbers; for tiny inputs."""
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1:3]
    routers = key_bits.shape[1]
    out = torch.zeros(batch, heads, queries, v.shape[3], dtype=torch.float64)
    lse = torch.full((batch, heads, queries), -math.inf, dtype=torch.float64)
    kept = torch.zeros(batch, heads, queries, keys, dtype=torch.bool)
    scale = dim**-0.5 if scale is None else scale
    for b in range(batch):
        first = 0 if first_key is None else int(first_key[b])
        for h in range(heads):
            kv, r = h // (heads // kv_heads), h // (heads // routers)
            for n in range(queries):
                i = keys - queries + n
                scores, values = [], []
                for j in range(first, i + 1):
                    # Python's integers have no sign bit to trip over: compare the sets as 64 flags.
                    wanted, offered = (int(x) % (1 << 64) for x in (query_bits[b, r, n], key_bits[b, r, j]))
                    if not (i - j < window or j - first < sinks or wanted & offered):
                        continue
                    s = scale * float(q[b, h, n].double() @ k[b, kv, j].double())
                    scores.append(s if softcap is None else softcap * math.tanh(s / softcap))
                    values.append(v[b, kv, j].double())
                    kept[b, h, n, j] = True
                if scores:
                    top = max(scores)
                    weights = [math.exp(s - top) for s in scores]
                    lse[b, h, n] = top + math.log(sum(weights))
                    out[b, h, n] = sum(w * x for w, x in zip(weights, values, strict=True)) / sum(weights)
    return out, lse, kept


def varlen_attention(q, k, v, cuts, used, scale, softcap):
    """What flash-attn-4 is asked for, in plain PyTorch: a segment's last tokens attend causally over the segment.

    Rows of no segment are NaN here: nothing may read them.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    out = torch.full((*q.shape[:2], v.shape[2]), math.nan, dtype=q.dtype)
    lse = torch.full((heads, q.shape[0]), math.nan)
    for at in range(len(cuts[0]) - 1):
        bounds = []
        for side in range(2):
            low = int(cuts[side][at])
            high = int(cuts[side][at + 1]) if used is None else low + int(used[side][at])
            bounds.append(slice(low, high))
        x = q[bounds[0]].float().transpose(0, 1)
        y, z = (t[bounds[1]].float().transpose(0, 1).repeat_interleave(heads // kv_heads, 0) for t in (k, v))
        scores = scale * x @ y.transpose(1, 2)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        n, m = scores.shape[1:]
        scores = scores.masked_fill(torch.arange(m) > torch.arange(m - n, m)[:, None], -math.inf)
        out[bounds[0]] = (scores.softmax(-1) @ z).transpose(0, 1).to(q.dtype)
        lse[:, bounds[0]] = scores.logsumexp(-1)
    return out, lse


def tiled_attention(q, k, v, start, used, scale, softcap):
    """Likewise for tiles of queries, each over a run of keys; NaN where there are none."""
    out = torch.full((*q.shape[:3], v.shape[2]), math.nan, dtype=q.dtype)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), math.nan)
    for at, count in enumerate(used.tolist()):
        if count:
            rows = slice(int(start[at]), int(start[at]) + count)
            scores = scale * q[at].float().transpose(0, 1) @ k[rows, 0].float().T
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            out[at] = (scores.softmax(-1) @ v[rows, 0].float()).transpose(0, 1).to(q.dtype)
            lse[at] = scores.logsumexp(-1)
    return out, lse
