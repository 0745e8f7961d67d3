"""What training a whole model from nothing is asked to do; nothing here needs torch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from focus_core.errors import InvalidInput, Unsupported
from focus_core.training.settings import TrainSettings
from focus_core.variants import Variant
from focus_core.variants.base import option

_FLOOR = 0.02
"""Share of the peak rate that is left at the end."""
_ANNEALED = "straight_through_from temperature_start temperature_end"
_SHARED = "steps context batch accumulate seed validate_every validation_windows"


@dataclass(frozen=True)
class ScratchSettings:
    """A whole run. Defaults are one recipe for every variant, so that the attention alone differs.

    Every field says what it is in its help, which ``pretrain --help`` prints.
    """

    steps: int = option(600, "optimizer steps")
    context: int = option(1024, "tokens a window")
    batch: int = option(32, "windows a forward pass")
    accumulate: int = option(1, "forward passes a step")
    learning_rate: float = option(2e-3, "AdamW's peak rate of the model's weights")
    router_rate: float = option(1e-2, "that of a router, which is trained beside them")
    warmup: int = option(60, "steps of linear warm-up, then cosine")
    weight_decay: float = option(0.1, "of matrices; a router has none")
    clip: float = option(1.0, "limit of the gradient's norm")
    straight_through_from: float = option(
        0.5, "focus: share of the steps after which the forward pass is the served mask itself; 1 = never"
    )
    temperature_start: float = option(0.3, "focus: temperature of the soft memberships at the start")
    temperature_end: float = option(0.05, "focus: that at the end, reached geometrically")
    validate_every: int = option(100, "steps between measurements of the served perplexity")
    validation_windows: int = option(32, "windows of each measurement")
    checkpoint_every: int = option(200, "steps between checkpoints; a killed run loses at most these")
    seed: int = option(0, "of the initial weights, of the windows drawn and of dropout")

    def __post_init__(self) -> None:
        """Refuse what could not train, before any work."""
        positive = (
            "steps context batch accumulate learning_rate router_rate clip validate_every validation_windows "
            "checkpoint_every temperature_start temperature_end"
        )
        for name in positive.split():
            if not getattr(self, name) > 0:
                raise InvalidInput(f"Training setting {name} is {getattr(self, name)}.", "It must be more than 0.")
        for name in ("warmup", "weight_decay", "seed"):
            if not getattr(self, name) >= 0:
                raise InvalidInput(f"Training setting {name} is {getattr(self, name)}.", "It can be 0 or more.")
        if self.context < 2:
            raise InvalidInput(f"A window of {self.context} token has nothing to predict.", "Use 2 or more.")

    @property
    def tokens(self) -> int:
        """Tokens that the whole run reads."""
        return self.steps * self.batch * self.accumulate * self.context

    def rate_at(self, step: int) -> float:
        """Share of the peak rate: linear warm-up, then a cosine to a fiftieth."""
        ramp = min(1.0, (step + 1) / max(1, self.warmup))
        return ramp * (_FLOOR + (1 - _FLOOR) * (0.5 + 0.5 * math.cos(math.pi * step / self.steps)))


def adapter_kind(variant: Variant) -> str | None:
    """Kind of the adapter that a run through this variant makes beside the model's weights; None for none.

    Raises:
        Unsupported: the variant needs an adapter that is fitted to a trained model.
    """
    kind = type(variant).adapter_kind
    if kind == "sfa":
        # Features are chosen from what the projections give; short embeddings need maps that say which come first.
        return kind if variant.to_dict()["select"] == "first" else None
    if kind in (None, "router"):
        return kind
    raise Unsupported(
        f"{variant.name} needs an adapter of kind {kind}, which is fitted to a trained model.",
        "From nothing, variants without an adapter, focus and sfa can be trained.",
    )


def schedule(variant: Variant, settings: ScratchSettings) -> TrainSettings | None:
    """The soft gates and balance of Focus's router, step by step; None for what has none.

    Raises:
        InvalidInput: the gate is not the one that is served.
    """
    if adapter_kind(variant) != "router":
        return None
    if not variant.served:
        raise InvalidInput(
            f"{variant.name} is trained towards its served mask, and gate is {variant.to_dict()['gate']}.",
            "Leave out gate; --straight-through-from 1 keeps the soft gate to the end.",
        )
    own = variant.to_dict()
    given: dict[str, Any] = {name: own[name] for name in ("groups", "query_topk", "key_topk", "window", "sinks")}
    given |= {name: getattr(settings, name) for name in (*_ANNEALED.split(), *_SHARED.split())}
    return TrainSettings(kind="router", **given)


def settings_of(variant: Variant, settings: ScratchSettings) -> dict[str, Any]:
    """What tells one run from another, as plain values."""
    return dataclasses.asdict(settings) | {"variant": variant.name, "config": variant.to_dict()}
