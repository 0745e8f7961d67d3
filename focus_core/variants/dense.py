"""Dense attention: every causal pair, as the model was trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from focus_core.pattern import GroupPattern
from focus_core.variants.base import AttentionCall, Cost, Shape, Variant
from focus_core.variants.counting import cost_of, latent_cost, near_pairs

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Dense(Variant):
    """All pairs; the baseline that every other variant is compared with."""

    name = "dense"
    summary = "Every token sees every earlier token, as the model was trained."
    pairs_by_settings: ClassVar[bool] = True
    serves_latent = True

    @property
    def serves_graphs(self) -> bool:
        """See Variant.serves_graphs."""
        return True

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        from focus_core.kernels.dense import dense_attention

        if call.steps is not None:
            from focus_core.kernels.dense_steps import dense_step

            return dense_step(call.query, call.key, call.value, call.steps, scale=call.scale, softcap=call.softcap)
        return dense_attention(
            call.query, call.key, call.value, first_key=call.first_key, scale=call.scale, softcap=call.softcap
        )

    def pattern(self, call: AttentionCall) -> GroupPattern:
        """See Variant.pattern."""
        return near_pattern(call, window=call.key.shape[2])

    def cost(self, shape: Shape) -> Cost:
        """See Variant.cost; a latent attention makes keys and values of all cached tokens at every call."""
        pairs = near_pairs(shape, shape.length)
        if shape.latent is not None:
            return latent_cost(shape, shape.latent, "naive", pairs)
        return cost_of(shape, pairs, shape.length)


def near_pattern(call: AttentionCall, window: int, sinks: int = 0) -> GroupPattern:
    """The pattern of a call that keeps a window and sinks alone."""
    batch, heads, queries, _ = call.query.shape
    first_key = None if call.first_key is None else call.first_key.cpu().numpy()
    return GroupPattern.without_groups(batch, queries, call.key.shape[2], heads, window, sinks, first_key)
