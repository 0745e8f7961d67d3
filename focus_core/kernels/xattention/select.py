"""The cumulative cut: a row keeps its best blocks until they hold enough of its score."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from focus_core.errors import InvalidInput


@dataclass(frozen=True)
class Selection:
    """What a row of blocks keeps, and why.

    Attributes:
        mask: (B, H, rows, columns) bool.
        order: (B, H, rows, columns) int64: columns in the order in which they are taken, forced ones first; those that
            hold no pair come last.
        reached: (B, H, rows, columns) fp64: share of the row's score held after taking that many of ``order``.
        kept: (B, H, rows) int64: how many of ``order`` are taken.
        forced: (B, 1, rows, columns) bool: kept whatever their score.
    """

    mask: torch.Tensor
    order: torch.Tensor
    reached: torch.Tensor
    kept: torch.Tensor
    forced: torch.Tensor


def select_blocks(
    scores: torch.Tensor,
    possible: torch.Tensor,
    threshold: float | torch.Tensor,
    *,
    own: torch.Tensor | None = None,
) -> Selection:
    """Keep, for each head and row, the fewest blocks whose scores reach the threshold, forced ones included.

    The walk goes by descending score, equal scores by column; a block is taken where those before it hold less than
    ``threshold`` of the row's score, so the one that crosses it is in. Sums are in fp64. A threshold of 1 or more
    keeps every block, those included whose score rounds to 0.

    Args:
        scores: (B, H, rows, columns), at least 0.
        possible: (B, 1, rows, columns) bool: blocks that hold a pair.
        threshold: share of the score, for all heads or (H,) one a head.
        own: (B, rows) columns that are forced together with column 0; None (not causal) forces none.

    Raises:
        InvalidInput: a threshold that is negative, not a number, or not one a head.
    """
    heads, columns = scores.shape[1], scores.shape[3]
    wanted = shares(threshold, heads, scores.device)
    wanted = wanted.view(-1, 1, 1)
    if own is None:
        forced = torch.zeros_like(possible)
    else:
        column = torch.arange(columns, device=scores.device)
        forced = ((column == 0) | (column == own[:, None, :, None])) & possible
    # Forced blocks sort before all others and impossible ones after; scores are sums of a softmax, so never above rows.
    top = scores.double().amax(-1, keepdim=True) + 1.0
    rank = torch.where(forced, top, scores.double()).masked_fill(~possible, -1.0)
    order = rank.sort(dim=-1, descending=True, stable=True).indices
    real = possible.expand_as(scores).gather(-1, order)
    sums = scores.double().masked_fill(~possible, 0.0).gather(-1, order).cumsum(-1)
    total = sums[..., -1:]
    before = torch.cat([torch.zeros_like(total), sums[..., :-1]], -1)
    take = (before < wanted * total) | (wanted >= 1.0) | forced.expand_as(scores).gather(-1, order)
    take &= real
    mask = torch.zeros_like(take).scatter(-1, order, take)
    share = sums / total.clamp_min(torch.finfo(torch.float64).tiny)
    return Selection(mask, order, share, take.sum(-1), forced)


def shares(threshold: float | torch.Tensor, heads: int, device: torch.device) -> torch.Tensor:
    """The thresholds in fp64 on a device: () for all heads, or (heads,).

    Raises:
        InvalidInput: one that is negative, not a number, or not one a head.
    """
    if not isinstance(threshold, torch.Tensor) and threshold >= 0:
        # Made where it is needed: nothing is copied, and nothing waits.
        return torch.full((), float(threshold), dtype=torch.float64, device=device)
    wanted = torch.as_tensor(threshold, dtype=torch.float64)
    if wanted.shape not in ((), (heads,)):
        raise InvalidInput(f"Thresholds of shape {tuple(wanted.shape)} for {heads} heads.", "Give one, or one a head.")
    # To look at thresholds that a GPU holds would mean to wait for it: there they are taken as they are.
    if not wanted.is_cuda and not bool((wanted >= 0).all()):
        raise InvalidInput(f"threshold is {threshold}.", "It can be 0 or more; 1 keeps everything.")
    return wanted.to(device)
