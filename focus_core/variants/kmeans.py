"""Control: groups from k-means of the hidden states, untrained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from focus_core.errors import InvalidInput
from focus_core.variants.base import Prepared
from focus_core.variants.groups import GroupedVariant

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class KMeansGroups(GroupedVariant):
    """Each token joins the nearest centroids of its layer."""

    name: ClassVar[str] = "kmeans"
    summary: ClassVar[str] = "Control: window and sinks, and far tokens in the same k-means cluster."
    adapter_kind: ClassVar[str | None] = "kmeans"

    def prepare(
        self, hidden: torch.Tensor, layer: int, positions: torch.Tensor, adapter: Any, first_key: torch.Tensor | None
    ) -> Prepared:
        """See Variant.prepare."""
        from focus_core.routing.sets import top_groups

        if adapter.config.groups != self.groups:
            raise InvalidInput(
                f"The adapter has {adapter.config.groups} centroids and the setting groups is {self.groups}.",
                f"Set groups to {adapter.config.groups}.",
            )
        logits = adapter.logits(layer, hidden)
        return Prepared(top_groups(logits, self.key_topk), top_groups(logits, self.query_topk))
