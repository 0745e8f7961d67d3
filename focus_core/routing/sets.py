"""Group sets as int64 bit masks: bit c is set when the token belongs to group c (at most 64 groups)."""

from __future__ import annotations

import torch

MAX_GROUPS = 64


def top_groups(logits: torch.Tensor, k: int) -> torch.Tensor:
    """The sets of the ``k`` largest logits: (..., K) -> (...) int64. Bit 63 makes a set negative."""
    chosen = logits.topk(min(k, logits.shape[-1]), dim=-1).indices
    return (torch.ones_like(chosen) << chosen).sum(-1)


def top_groups_each(logits: torch.Tensor, looks: torch.Tensor, most: int) -> torch.Tensor:
    """The sets of as many of the largest logits as each router looks for.

    Args:
        logits: (B, R, N, K).
        looks: (R,), or (B, R) where sequences differ: 0 is the empty set, K all groups.
        most: no entry of ``looks`` is above it.

    Returns:
        (B, R, N) int64.
    """
    chosen = logits.topk(min(most, logits.shape[-1]), dim=-1).indices
    counted = torch.arange(chosen.shape[-1], device=chosen.device) < looks[..., None, None]
    return (counted.to(chosen.dtype) << chosen).sum(-1)


def members(sets: torch.Tensor, groups: int) -> torch.Tensor:
    """The sets spelled out: (...) int64 -> (..., groups) bool."""
    return (sets[..., None] >> torch.arange(groups, device=sets.device) & 1).bool()


def random_groups(positions: torch.Tensor, layer: int, router: int, groups: int, k: int, seed: int) -> torch.Tensor:
    """Sets of ``k`` groups drawn from a hash of (seed, layer, router, position): frozen and causal.

    Args:
        positions: (B, N) int64, real tokens from 0.
        layer: index of the layer.
        router: index of the router within the layer.
        groups: number of groups.
        k: groups a token joins.
        seed: changes every draw.

    Returns:
        (B, N) int64 sets.
    """
    salt = (seed * 1_000_003 + layer * 8_191 + router * 131) & 0x7FFF_FFFF
    group = torch.arange(groups, device=positions.device)
    x = (positions[..., None] * 0x9E37_79B1 + (group + 1) * 0x85EB_CA77 + salt * 0xC2B2_AE3D) & 0xFFFF_FFFF
    for shift, factor in ((16, 0x21F0_AAAD), (15, 0x735A_2D97)):
        x = ((x ^ (x >> shift)) * factor) & 0xFFFF_FFFF
    return top_groups((x ^ (x >> 15)).double(), k)
