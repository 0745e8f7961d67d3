"""How far a variant's attention is from dense attention, as a loss beside the language model's (arXiv 2603.22300)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from focus_core.kernels.dense import dense_attention

if TYPE_CHECKING:
    from focus_core.variants.base import AttentionCall, Variant


class OutputError:
    """A recorder that sums the squared error of every layer's output against dense attention of the same q, k, v.

    The paper's term is ``lambda / H * sum over heads of |O~ - stopgrad(O)|^2`` without a value of lambda. Here it is
    divided by the mean square of O, so that its size depends neither on the length nor on the layer. The attention is
    computed once more for it, and the dense one besides.

    Args:
        mean: the mean of a scalar over the processes that share a batch.
    """

    def __init__(self, mean: Callable[[torch.Tensor], torch.Tensor] = lambda own: own) -> None:
        self.mean = mean
        self.reset()

    def reset(self) -> None:
        """Start a new optimizer step."""
        self._losses: list[torch.Tensor] = []
        self.seen: list[float] = []

    def record(self, call: AttentionCall, variant: Variant) -> None:
        """Add one layer's error; layers with their own window have none."""
        if call.sliding_window is not None:
            return
        options: dict[str, Any] = {"first_key": call.first_key, "scale": call.scale, "softcap": call.softcap}
        with torch.no_grad():
            dense = dense_attention(call.query, call.key, call.value, **options)
        size = self.mean(dense.float().square().mean()).clamp_min(1e-12)
        error = (variant.attend(call) - dense).float().square().mean() / size
        self._losses.append(error)

    def take_loss(self) -> torch.Tensor | None:
        """The mean over the layers since the last call; None when there was none."""
        losses, self._losses = self._losses, []
        if not losses:
            return None
        mean = torch.stack(losses).mean()
        self.seen.append(float(mean.detach()))
        return mean
