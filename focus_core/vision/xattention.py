"""XAttention without causality on image tokens (arXiv 2503.16428): the small stand-in for its video case.

Blocks of tokens are scored by the sums along their antidiagonals, every ``stride`` tokens; a row of blocks keeps the
fewest blocks whose estimated mass reaches the threshold. Layers before ``warm_up`` stay dense; the paper's warm-up is
of denoising steps, which a classifier does not have. This is the selection's reference, not a fast kernel: it computes
all scores and hides what was not kept.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from focus_core.vision.config import AttentionConfig


def estimate(query: torch.Tensor, key: torch.Tensor, stride: int, block: int, scale: float) -> torch.Tensor:
    """The estimated attention mass of every block of keys for every block of queries.

    Args:
        query: [batch, heads, N, d].
        key: [batch, heads, N, d].
        stride: tokens along the antidiagonal.
        block: tokens a side of a block, a multiple of the stride.
        scale: factor of the scores.

    Returns:
        [batch, heads, blocks, blocks], in fp32 or the inputs' greater precision; each row sums to 1.
    """
    # Half precision would round the sums that are held against the threshold, and choose other blocks.
    query, key = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in (query, key))
    n = query.shape[2]
    rest = -n % block
    q, k = (F.pad(x, (0, 0, 0, rest)).unflatten(2, (-1, stride)) for x in (query, key))
    real = F.pad(query.new_ones(n), (0, rest)).view(-1, stride).sum(1)
    # The antidiagonal of a tile: query i meets key stride - 1 - i.
    tiles = q.flatten(3) @ k.flip(3).flatten(3).transpose(2, 3) * (scale / stride)
    weights = tiles.masked_fill(real == 0, float("-inf")).softmax(-1)
    per_query_block = weights.unflatten(2, (-1, block // stride)) * real.view(-1, block // stride, 1).gt(0)
    counted = real.gt(0).view(-1, block // stride).sum(1).view(-1, 1, 1)
    return per_query_block.unflatten(4, (-1, block // stride)).sum((3, 5)) / counted.squeeze(-1)


def keep(mass: torch.Tensor, threshold: float) -> torch.Tensor:
    """The fewest blocks of every row whose mass reaches the threshold; all at a threshold of 1. Same shape, bool."""
    if threshold >= 1.0:
        return torch.ones_like(mass, dtype=torch.bool)
    ordered, index = mass.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(mass, dtype=torch.bool).scatter(-1, index, before < threshold)


def kept_pairs(query: torch.Tensor, key: torch.Tensor, config: AttentionConfig, scale: float) -> torch.Tensor:
    """Which pairs of tokens stay, [batch, heads, N, N] bool; the class token is a token like the others.

    Of the last layer only the class token's row of blocks reaches the answer.
    """
    n = query.shape[2]
    chosen = keep(estimate(query, key, config.stride, config.block, scale), config.threshold)
    return chosen.repeat_interleave(config.block, 2).repeat_interleave(config.block, 3)[:, :, :n, :n]
