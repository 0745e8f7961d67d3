"""Control: dense attention with one learned factor a layer on far scores, and no groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from focus_core.variants.base import AttentionCall, Cost, Shape, Variant, option
from focus_core.variants.counting import cost_of, near_pairs
from focus_core.variants.dense import near_pattern

if TYPE_CHECKING:
    import torch

    from focus_core.pattern import GroupPattern


@dataclass(frozen=True)
class Temperature(Variant):
    """What the router's text teaches without any routing. It computes every pair."""

    name: ClassVar[str] = "temperature"
    summary: ClassVar[str] = "Control: dense, with one learned temperature a layer for far tokens."
    adapter_kind: ClassVar[str | None] = "temperature"
    pairs_by_settings: ClassVar[bool] = True

    window: int = option(128, "Nearest keys that keep their scores, the token itself included.", minimum=1)
    sinks: int = option(4, "First tokens that keep their scores.", minimum=0)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        from focus_core.kernels.focus.soft import soft_attention

        factor = call.adapter.factor(call.layer)
        return soft_attention(
            call.query,
            call.key,
            call.value,
            multiply=lambda rows: factor,
            window=self.window,
            sinks=self.sinks,
            first_key=call.first_key,
            scale=call.scale,
            softcap=call.softcap,
        )

    def pattern(self, call: AttentionCall) -> GroupPattern:
        """Every causal pair."""
        return near_pattern(call, window=call.key.shape[2])

    def cost(self, shape: Shape) -> Cost:
        """See Variant.cost."""
        return cost_of(shape, near_pairs(shape, shape.length), shape.length)
