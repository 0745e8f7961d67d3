"""Slim attention from a cache of rotated keys: rotations are undone only where a weight is worth it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.checks import check_first_key, scale_of, wide


@dataclass(frozen=True)
class FromRotated:
    """Result of ``slim_from_rotated``.

    Attributes:
        output: (B, H, Nq, D).
        undone: (B,) share of the real cached rows whose rotation was undone.
        mass: (B, H, Nq) share of the attention that was kept.
    """

    output: torch.Tensor
    undone: torch.Tensor
    mass: torch.Tensor


def slim_from_rotated(
    q: torch.Tensor,
    keys: torch.Tensor,
    value_weight: torch.Tensor,
    undo: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    cutoff: float,
    first_key: torch.Tensor | None = None,
    scale: float | None = None,
) -> FromRotated:
    """Causal attention for a few queries over rotated keys, which are un-rotated only where they weigh enough.

    A value needs the keys of all heads, so a row is un-rotated when any head or query gives it at least ``cutoff``.
    Pairs below the cutoff are dropped and the rest keep their weights, as in the paper (section 2.2).

    Args:
        q: (B, H, Nq, D), rotated; the last Nq of the Nk positions.
        keys: (B, H, Nk, D), rotated, without a bias.
        value_weight: (H * D, H * Dv), ``W_K^-1 W_V``.
        undo: un-rotates keys (1, H, n, D) of the cached tokens (n,) numbered from 0.
        cutoff: smallest weight that counts; 0 keeps everything.
        first_key: (B,) first real key of a left-padded row; None when no row is padded.
        scale: factor of the scores; ``1 / sqrt(D)`` when None.
    """
    if not 0 <= cutoff < 1:
        raise InvalidInput(f"cutoff is {cutoff}.", "It can be 0 to less than 1.")
    check_first_key(first_key, q.shape[0])
    batch, heads, queries, _ = q.shape
    count, work = keys.shape[2], wide(q.dtype)
    j = torch.arange(count, device=q.device)
    seen = j <= torch.arange(count - queries, count, device=q.device)[:, None]
    outputs, undone, masses = [], [], []
    for row in range(batch):
        first = 0 if first_key is None else int(first_key[row])
        scores = (q[row].to(work) @ keys[row].to(work).transpose(-1, -2)) * scale_of(q, scale)
        scores = scores.masked_fill(~(seen & (j >= first)), float("-inf"))
        weights = torch.softmax(scores, -1).nan_to_num(0.0)
        weights = weights.masked_fill(weights < cutoff, 0.0)
        wanted = (weights > 0).any(0).any(0).nonzero()[:, 0]
        raw = undo(keys[row : row + 1, :, wanted], wanted)[0].transpose(0, 1).flatten(1)
        sums = weights[..., wanted] @ raw.to(work)
        outputs.append(sums @ value_weight.to(work).unflatten(1, (heads, -1)).transpose(0, 1))
        undone.append(len(wanted) / max(1, count - first))
        masses.append(weights.sum(-1))
    return FromRotated(torch.stack(outputs).to(q.dtype), torch.tensor(undone), torch.stack(masses))
