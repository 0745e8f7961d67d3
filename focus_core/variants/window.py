"""A sliding window and a few first tokens: the plain baseline that grouping has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from focus_core.pattern import GroupPattern
from focus_core.variants.base import AttentionCall, Cost, Knob, Shape, Variant, option
from focus_core.variants.counting import cost_of, near_pairs
from focus_core.variants.dense import near_pattern

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Window(Variant):
    """The nearest ``window`` tokens and the first ``sinks``."""

    name = "window"
    summary = "Every token sees the nearest tokens and the first few, and nothing in between."
    knobs: ClassVar[tuple[Knob, ...]] = (Knob("window", 1),)
    pairs_by_settings: ClassVar[bool] = True

    window: int = option(128, "Nearest tokens that are always seen, the token itself included.", minimum=1)
    sinks: int = option(4, "First tokens that every token sees.", minimum=0)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        from focus_core.kernels.focus import focus_attention

        batch, _, keys, _ = call.key.shape
        empty = call.query.new_zeros((batch, 1, keys)).long()
        return focus_attention(
            call.query,
            call.key,
            call.value,
            empty[:, :, keys - call.query.shape[2] :],
            empty,
            window=self.window,
            sinks=self.sinks,
            first_key=call.first_key,
            scale=call.scale,
            softcap=call.softcap,
            members=(0, 0),
        )

    def pattern(self, call: AttentionCall) -> GroupPattern:
        """See Variant.pattern."""
        return near_pattern(call, self.window, self.sinks)

    def cost(self, shape: Shape) -> Cost:
        """See Variant.cost."""
        queries = shape.length if shape.queries is None else shape.queries
        read = min(shape.length, queries - 1 + self.window + self.sinks)
        return cost_of(shape, near_pairs(shape, self.window, self.sinks), read)
