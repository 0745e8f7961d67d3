"""The near pairs of Focus's attention (window and sinks), in blocks of queries in time order."""

from __future__ import annotations

from functools import partial

import torch

from focus_core.kernels.focus.blocks import block_attention, piece_budget
from focus_core.kernels.focus.rows import Rows
from focus_core.kernels.focus.work import run_all


def merge_near(
    rows: tuple[Rows, Rows, Rows],
    out: torch.Tensor,
    lse: torch.Tensor,
    kv_shape: tuple[int, int],
    window: int,
    sinks: int,
    first: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> None:
    """Merge window and sinks into the far result, in place.

    Args:
        rows: query, key and value as rows.
        out: (B, Nq, Hq, D) far output, 0 where a query has no far key.
        lse: (B, Nq, Hq) far log-sum-exp, -inf where a query has no far key.
        kv_shape: (Hkv, Nk).
        window: keys nearest to the query, itself included.
        sinks: first real keys; those inside a query's window count once.
        first: (B,) first real key of each row, or None.
        scale: factor of the scores.
        softcap: soft cap of the scores, or None.
    """
    batch, queries, heads, _ = out.shape
    keys = kv_shape[1]
    size = min(256, max(64, window // 2 // 64 * 64))
    span = sinks + size + window - 1
    count = -(-queries // size)
    cells = size * heads * span
    each = max(1, piece_budget(cells * count) // cells)
    offset = keys - queries
    plain = _mask(torch.zeros(1, 1, dtype=torch.long), -keys, size, window, sinks, keys)

    def piece(b: int, begin: int, start: int, stop: int, edge: int) -> None:
        block = torch.arange(start, stop)[:, None]
        i0 = block * size + offset
        mask = plain if start >= edge else _mask(i0, begin, size, window, sinks, keys)
        _merge(rows, out[b], lse[b], b, block, i0, mask, begin, size, window, sinks, kv_shape, scale, softcap)

    pieces = []
    for b in range(batch):
        begin = 0 if first is None else int(first[b])
        # From here on a block sees every sink apart from its window, so all its masks are alike.
        edge = min(count, max(0, -(-(begin + sinks + window - 1 - offset) // size)))
        for low, high in ((0, edge), (edge, count)):
            cuts = range(low, high, each)
            pieces += [partial(piece, b, begin, start, min(start + each, high), edge) for start in cuts]
    run_all(pieces)


def _mask(i0: torch.Tensor, begin: int, size: int, window: int, sinks: int, keys: int) -> torch.Tensor:
    """Additive mask (n, 1, size, keys) of blocks: sinks, then the window of queries from position ``i0`` (n, 1)."""
    i = i0[:, :, None] + torch.arange(size)[:, None]
    j = i0[:, :, None] - (window - 1) + torch.arange(size + window - 1)
    near = (j <= i) & (i - j < window) & (j >= begin)
    sink = begin + torch.arange(sinks) <= i - window
    keep = torch.cat([sink, near], -1)
    keep |= ~keep.any(-1, keepdim=True)
    return torch.zeros(keep.shape).masked_fill_(~keep, float("-inf"))[:, None]


def _merge(rows, out, lse, b, block, i0, mask, begin, size, window, sinks, kv_shape, scale, softcap):
    q, k, v = rows
    queries, heads, _ = out.shape
    kv_heads, keys = kv_shape
    share, n = heads // kv_heads, len(block)
    j = torch.cat(
        [(begin + torch.arange(sinks)).expand(n, sinks), i0 - (window - 1) + torch.arange(size + window - 1)], 1
    )
    j = j.clamp(min(begin, keys - 1), keys - 1)[:, None]
    i = (block * size + torch.arange(size)).clamp_max(queries - 1)[:, None]
    kv_head, head = torch.arange(kv_heads)[:, None], torch.arange(heads)[:, None]
    part, part_lse = block_attention(
        q.take(b * q.batch + head * q.head + i * q.token).view(n, kv_heads, share * size, -1),
        k.take(b * k.batch + kv_head * k.head + j * k.token),
        v.take(b * v.batch + kv_head * v.head + j * v.token),
        mask.repeat(1, 1, share, 1),
        scale=scale,
        softcap=softcap,
    )
    low = int(block[0]) * size
    high = min(low + n * size, queries)
    part = part.reshape(n, kv_heads, share, size, -1).permute(0, 3, 1, 2, 4).reshape(n * size, heads, -1)[: high - low]
    part_lse = part_lse.reshape(n, heads, size).transpose(1, 2).reshape(n * size, heads)[: high - low]
    before = lse[low:high]
    out[low:high].lerp_(part, torch.sigmoid(part_lse - before)[..., None])
    lse[low:high] = torch.logaddexp(before, part_lse)
