"""Control: groups drawn at random, so that what the learned ones add can be told from the shape of the mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from focus_core.variants.base import Prepared, option
from focus_core.variants.groups import GroupedVariant

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RandomGroups(GroupedVariant):
    """Each position joins groups by a hash of (seed, layer, position); queries and keys share them."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "Control: window and sinks, and far tokens that share a random group."
    pairs_by_settings: ClassVar[bool] = True

    seed: int = option(0, "Changes every draw.", minimum=0)

    def prepare(
        self, hidden: torch.Tensor, layer: int, positions: torch.Tensor, adapter: Any, first_key: torch.Tensor | None
    ) -> Prepared:
        """See Variant.prepare; the hidden state is not looked at."""
        from focus_core.routing.sets import random_groups

        def draw(k: int) -> torch.Tensor:
            return random_groups(positions, layer, 0, self.groups, k, self.seed)[:, None]

        return Prepared(draw(self.key_topk), draw(self.query_topk))
