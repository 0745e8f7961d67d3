"""Block scores by matrix products: a few strided rows at a time, never all scores of pairs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from focus_core.kernels.block_sparse.grid import Grid
from focus_core.kernels.checks import wide

_CELLS = 1 << 21
"""Scores that are held at a time, over all heads."""


def strided_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    grid: Grid,
    *,
    block: int,
    stride: int,
    offsets: list[int],
    causal: bool,
    scale: float,
    softcap: float | None,
    rows_at_once: int | None = None,
) -> torch.Tensor:
    """(Hq, rows, columns) of one sequence; arguments as in ``reference_scores``.

    ``stride`` rows laid side by side make one long row, in which a product of a query's and a key's sums the pairs
    that ``offsets`` puts at the same place.
    """
    work = wide(q.dtype)
    (heads, queries, dim), (kv_heads, keys) = q.shape, k.shape[:2]
    share, each = heads // kv_heads, block // stride
    # Blocks whose tokens are not all there are filled with zeros, which add nothing to a sum of products.
    before = grid.begin - grid.row * block
    q = _padded(q.to(work), before, grid.rows * block - before - queries)
    k = _padded(k.to(work), 0, grid.columns * block - keys)
    order = torch.tensor(offsets, device=q.device)
    q = q.reshape(heads, -1, stride, dim)[:, :, order].reshape(kv_heads, share, -1, stride * dim)
    k = k.reshape(kv_heads, -1, stride * dim).transpose(1, 2)
    total, width = q.shape[2], k.shape[2]
    pairs = _real_pairs(before, queries, keys, total, width, stride, order, work)
    first_row = grid.row * each
    step = rows_at_once or max(each, _CELLS // (heads * width) // each * each)
    scores = torch.zeros(heads, grid.rows, grid.columns, dtype=work, device=q.device)
    place = torch.arange(total, device=q.device)
    for low in range(0, total, step):
        high = min(low + step, total)
        # Later tiles than the last row's own are never seen: whole blocks of them are not computed.
        last = min(width, -(-(first_row + high) // each) * each) if causal else width
        rows = q[:, :, low:high].reshape(kv_heads, share * (high - low), -1)
        means = (rows @ k[:, :, :last]).view(heads, high - low, last)
        hidden = None
        if pairs is None:
            means *= scale / stride
        else:
            count = pairs(low, high, last)
            means *= scale / count.clamp_min(1)
            hidden = count == 0
        if softcap is not None:
            means = softcap * torch.tanh(means / softcap)
        if causal:
            later = torch.arange(last, device=q.device) > (place[low:high] + first_row)[:, None]
            hidden = later if hidden is None else hidden | later
        if hidden is not None:
            empty = hidden.all(-1)
            means.masked_fill_(hidden, float("-inf"))
            mass = means.softmax(-1)
            mass[:, empty] = 0.0
        else:
            mass = means.softmax(-1)
        mass = mass.view(heads, high - low, last // each, each).sum(-1)
        scores[:, :, : last // each].index_add_(1, place[low:high] // each, mass)
    return scores


def _padded(x: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """Rows of zeros round ``x``; itself, and no copy, where there are none."""
    return F.pad(x, (0, 0, before, after)) if before or after else x


def _real_pairs(before, queries, keys, rows, columns, stride, order, work):
    """How many sampled pairs of each tile are real, as a function of the rows; None where all are."""
    if before == 0 and queries == rows * stride and keys == columns * stride:
        return None
    place = torch.arange(rows * stride, device=order.device).view(rows, stride)[:, order]
    query = ((place >= before) & (place < before + queries)).to(work)
    key = (torch.arange(columns * stride, device=order.device).view(columns, stride) < keys).to(work)
    return lambda low, high, last: query[low:high] @ key[:last].T


def oracle_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    grid: Grid,
    *,
    block: int,
    causal: bool,
    scale: float,
    softcap: float | None,
    rows_at_once: int | None = None,
) -> torch.Tensor:
    """(Hq, rows, columns) true attention mass of each block; arguments as in ``reference_scores``."""
    work = wide(q.dtype)
    (heads, queries, _), (kv_heads, keys) = q.shape, k.shape[:2]
    share = heads // kv_heads
    scores = torch.zeros(heads, grid.rows, grid.columns, dtype=work, device=q.device)
    step = rows_at_once or max(1, _CELLS // (heads * keys))
    place = torch.arange(queries, device=q.device) + grid.begin
    k = k.to(work).transpose(1, 2)
    for low in range(0, queries, step):
        high = min(low + step, queries)
        last = min(keys, grid.begin + high) if causal else keys
        rows = q[:, low:high].to(work).reshape(kv_heads, share * (high - low), -1)
        pairs = (rows @ k[:, :, :last]).view(heads, high - low, last) * scale
        if softcap is not None:
            pairs = softcap * torch.tanh(pairs / softcap)
        if causal:
            pairs.masked_fill_(torch.arange(last, device=q.device) > place[low:high, None], float("-inf"))
        mass = F.pad(pairs.softmax(-1), (0, -last % block)).view(heads, high - low, -1, block).sum(-1)
        scores[:, :, : mass.shape[2]].index_add_(1, place[low:high] // block - grid.row, mass)
    return scores
