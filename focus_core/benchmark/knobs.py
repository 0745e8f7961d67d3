"""What of a variant can be made equal to another's, and with how many runs of the model. Needs no torch."""

from __future__ import annotations

from focus_core.variants.base import Knob, Variant

QUANTITIES = ("pairs", "perplexity", "cache")
"""Share of causal pairs kept; change of perplexity against dense, as a share; bytes of cache a token, all layers."""
NEAR = 0.01
"""A search ends within this share of what was asked for; perplexity within half of this share of dense's."""
COUNTED_TRIES, MEASURED_TRIES = 24, 7
"""Most values of one knob that are tried, its two ends included."""


def knobs_for(variant: Variant, quantity: str) -> tuple[Knob, ...]:
    """The variant's knobs that move this quantity; every knob moves perplexity."""
    return tuple(k for k in variant.knobs if quantity == "perplexity" or k.moves == quantity)


def is_counted(variant: Variant, quantity: str) -> bool:
    """Whether the quantity follows from the variant's settings, with nothing run."""
    return quantity == "cache" or (quantity == "pairs" and variant.pairs_by_settings)


def tries_of(variant: Variant, quantity: str) -> int:
    """Most runs of the model that a search may take, for one window."""
    return 0 if is_counted(variant, quantity) else 1 + MEASURED_TRIES * len(knobs_for(variant, quantity))
