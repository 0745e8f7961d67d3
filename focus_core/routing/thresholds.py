"""XAttention's thresholds, one a head, fitted so that every head keeps the same share of its dense attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from focus_core.adapter import Adapter
from focus_core.errors import Cancelled, InvalidInput

if TYPE_CHECKING:
    from focus_core.variants.base import AttentionCall, Variant

GRID = (0.0, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0)
"""Thresholds that are tried, from the fewest blocks to all."""


@dataclass(frozen=True)
class ThresholdsConfig:
    """Shape of the thresholds: ``layers`` x ``heads``."""

    layers: int
    heads: int


class Thresholds(Adapter):
    """``thresholds`` (L, Hq): share of a row's sampled attention that the kept blocks hold."""

    kind = "thresholds"
    config_class = ThresholdsConfig

    def __init__(self, config: ThresholdsConfig) -> None:
        super().__init__(config)
        self.thresholds = nn.Parameter(torch.full((config.layers, config.heads), 0.9), requires_grad=False)


def kept_mass(oracle: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(B, H) share of the dense attention that lies in kept blocks.

    Args:
        oracle: (B, H, rows, columns) true mass of each block (``xattention_scores`` of mode ``oracle``).
        mask: (B, H, rows, columns) bool.
    """
    held = oracle.double()
    return (held * mask).sum((2, 3)) / held.sum((2, 3)).clamp_min(1e-30)


class RecallCurves:
    """Recorder of a dense pass: dense attention kept, and blocks kept, at every threshold of ``GRID``.

    Attributes:
        recall: (L, G, Hq) sums over sequences of the share of dense mass kept.
        blocks: (L, G, Hq) sums over sequences of the share of possible blocks kept.
        seen: (L,) how many sequences.
    """

    def __init__(self, variant: Any, layers: int, heads: int, tell: Callable[[], None] | None = None) -> None:
        self.variant, self._tell = variant, tell
        self.recall = torch.zeros(layers, len(GRID), heads, dtype=torch.float64)
        self.blocks = torch.zeros_like(self.recall)
        self.seen = torch.zeros(layers, dtype=torch.long)

    def record(self, call: AttentionCall, variant: Variant) -> None:
        """Score one layer's blocks once and cut them at every threshold."""
        from focus_core.kernels.xattention import select_blocks, xattention_scores

        if self._tell is not None:
            self._tell()
        own = self.variant
        if call.sliding_window is not None or call.layer < own.dense_layers:
            return
        common = {
            "block_size": own.block,
            "stride": own.stride,
            "first_key": call.first_key,
            "scale": call.scale,
            "softcap": call.softcap,
        }
        found = xattention_scores(call.query, call.key, mode=own.mode, seed=own.seed, **common)
        oracle = xattention_scores(call.query, call.key, mode="oracle", **common).scores
        possible = found.possible.sum((2, 3)).clamp_min(1).double()
        for n, threshold in enumerate(GRID):
            mask = select_blocks(found.scores, found.possible, threshold, own=found.own).mask
            if own.voters == "before":
                mask = voted_before(mask, found.own)
            self.recall[call.layer, n] += kept_mass(oracle, mask).sum(0).cpu()
            self.blocks[call.layer, n] += (mask.sum((2, 3)) / possible).sum(0).cpu()
        self.seen[call.layer] += call.query.shape[0]


def voted_before(mask: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """What rows keep when the row before each chooses for it (see ``causal_block_mask``), from whole-text masks."""
    moved = torch.zeros_like(mask)
    moved[:, :, 1:] = mask[:, :, :-1]
    column = torch.arange(mask.shape[3], device=mask.device)
    return moved | (column == own[:, None, :, None])


def fit_thresholds(
    model: nn.Module,
    windows: torch.Tensor,
    variant: Any,
    *,
    recall: float = 0.95,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Thresholds:
    """Find each head's smallest threshold that keeps a wanted share of its dense attention.

    The scores are of a dense pass, so layers do not see what earlier ones dropped.

    Args:
        model: the pretrained model.
        windows: (W, N) token ids, read one at a time.
        variant: the XAttention settings that the thresholds are for; its own threshold is not used.
        recall: share of the dense attention mass that every head keeps, mean over the windows.
        progress: told the fraction done.
        cancel: asked at every layer.

    Returns:
        The adapter of the variant ``xattention``. Its record has the recall reached and the blocks kept, by layer and
        by head (None for layers that are not fitted).

    Raises:
        InvalidInput: a share that is not between 0 and 1, or windows of fewer than three blocks.
    """
    from focus_core.models.facts import facts_of
    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    if not 0 < recall <= 1:
        raise InvalidInput(f"recall is {recall}.", "It can be more than 0 and at most 1.")
    if windows.shape[1] < 3 * variant.block:
        raise InvalidInput(
            f"A window has {windows.shape[1]} tokens, {windows.shape[1] // variant.block} blocks of {variant.block}.",
            "Two blocks are always kept: give windows of at least three, better of many.",
        )
    facts, calls = facts_of(model), 0
    total = len(windows) * facts.layers

    def tell() -> None:
        nonlocal calls
        if cancel is not None and cancel():
            raise Cancelled
        if progress is not None:
            progress(calls / total, f"Dense attention of layer {calls % facts.layers + 1} of {facts.layers}")
        calls += 1

    curves = RecallCurves(variant, facts.layers, facts.heads, tell)
    with torch.no_grad(), retrofit(model, make("dense"), recorder=curves):
        for window in windows:
            model(input_ids=window[None].to(next(model.parameters()).device), use_cache=False)
    return _fitted(curves, variant, recall, windows)


def _fitted(curves: RecallCurves, variant: Any, recall: float, windows: torch.Tensor) -> Thresholds:
    layers, _, heads = curves.recall.shape
    seen = curves.seen.clamp_min(1)[:, None, None]
    reached, blocks = curves.recall / seen, curves.blocks / seen
    # Everything is kept at the last threshold, so that some threshold always reaches the wanted share.
    enough = reached >= recall - 1e-9
    enough[:, -1] = True
    at = enough.int().argmax(1)
    adapter = Thresholds(ThresholdsConfig(layers, heads))
    grid = torch.tensor(GRID)
    adapter.thresholds.copy_(grid[at].where(curves.seen[:, None] > 0, torch.tensor(1.0)))

    def chosen(table: torch.Tensor) -> list[list[float] | None]:
        found = table.gather(1, at[:, None])[:, 0]
        return [[round(float(x), 4) for x in row] if n else None for row, n in zip(found, curves.seen, strict=True)]

    def by_layer(rows: list[list[float] | None]) -> list[float | None]:
        return [None if row is None else round(sum(row) / len(row), 4) for row in rows]

    adapter.serve = served_with(variant)
    recalls, kept = chosen(reached), chosen(blocks)
    adapter.record = {
        "method": "smallest threshold a head that keeps the wanted share of dense attention",
        "recall": recall,
        "windows": len(windows),
        "context": windows.shape[1],
        "recall_by_layer": by_layer(recalls),
        "blocks_by_layer": by_layer(kept),
        "recall_by_head": recalls,
        "blocks_by_head": kept,
        "mean_threshold": round(float(adapter.thresholds.mean()), 4),
    }
    return adapter


def served_with(variant: Any) -> dict[str, Any]:
    """The settings that thresholds are for."""
    return {name: getattr(variant, name) for name in ("stride", "block", "voters", "mode", "dense_layers")}
