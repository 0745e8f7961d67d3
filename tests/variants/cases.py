"""Every registered variant in small: its settings, and an untrained adapter of the kind that it needs."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch

from focus_core.adapter import Adapter
from focus_core.models.facts import ModelFacts, attention_modules
from focus_core.models.projections import projections_of
from focus_core.routing.factorise import factorise
from focus_core.routing.feature_maps import FeatureMaps, FeatureMapsConfig
from focus_core.routing.kmeans import KMeansCentroids, KMeansConfig
from focus_core.routing.latent import LatentFactors
from focus_core.routing.online import RoutingCentroids, RoutingConfig
from focus_core.routing.router import Router, RouterConfig
from focus_core.routing.slim_forms import SlimForms, SlimFormsConfig
from focus_core.routing.temperature import FarTemperature, FarTemperatureConfig
from focus_core.routing.thresholds import Thresholds, ThresholdsConfig
from focus_core.variants import VARIANTS, Variant, make
from tests.tiny import VOCAB, tiny_model

GROUPS = 4
SMALL = {"window": 4, "sinks": 1, "groups": GROUPS, "block": 4, "stride": 4, "window_blocks": 2, "random_blocks": 2}
"""Set where a variant has such a field, so that most pairs of 40 tokens are far."""
FORMS = {
    "focus": [
        {},
        {"query_topk": 2},
        {"query_topk": 2, "key_topk": 2, "backend": "reference"},
        {"backend": "cpu"},
        {"gate": "soft", "query_topk": 2},
        {"gate": "straight_through", "temperature": 0.3},
        {"gate": "paper"},
    ],
    "random": [{}, {"query_topk": 2, "seed": 3}],
    "xattention": [
        {"block": 8, "stride": 4, "threshold": 0.5},
        {"block": 8, "stride": 8, "threshold": 0.3, "mode": "diagonal", "dense_layers": 1},
        {"block": 8, "stride": 4, "threshold": 0.5, "mode": "random"},
        {"block": 8, "stride": 4, "threshold": 0.5, "mode": "oracle"},
        {"block": 8, "stride": 4, "threshold": 0.3, "voters": "own"},
    ],
    "bigbird": [{}, {"backend": "cpu"}, {"backend": "reference"}, {"backend": "chunked", "seed": 3}],
    "performer": [{"features": 64}],
    "routing": [
        {},
        {"backend": "cpu"},
        {"local_heads": 0.5, "query_topk": 2, "backend": "reference"},
        {"form": "published"},
    ],
    "sfa": [
        {"features": 4},
        {"features": 4, "select": "pairs"},
        {"features": 4, "sparse": "keys", "straight_through": True},
        {"features": 4, "no_overlap": "exclude"},
        {"features": 4, "select": "first"},
    ],
    "slim": [
        {},
        {"order": "weights"},
        {"order": "values"},
        {"cache": "x"},
        {"cache": "x", "order": "values"},
        {"prompt": "rebuilt", "order": "weights"},
    ],
    "mla": [
        {"rank": 60, "rotary": 8},
        {"rank": 60, "rotary": 8, "form": "naive"},
        {"rank": 30, "rotary": 16, "form": "absorbed"},
    ],
    "focus_sfa": [{"features": 4}, {"features": 4, "select": "pairs", "sparse": "keys", "query_topk": 2}],
    "xattention_sfa": [
        {"features": 4, "block": 8, "stride": 4, "threshold": 0.5},
        {"features": 4, "select": "pairs", "sparse": "keys", "block": 8, "threshold": 0.3, "dense_layers": 1},
    ],
}
"""More than one form of a variant, where forms differ in what they compute."""
EXACT = {
    "xattention": {"threshold": 1.0},
    "bigbird": {"window_blocks": 10},
    "routing": {"local_heads": 0.0},
    "sfa": {"features": 16},
    "mla": {"rank": 48, "rotary": 16},
    "focus_sfa": {"features": 16},
    "xattention_sfa": {"features": 16, "threshold": 1.0},
}
"""Settings under which a variant drops nothing of the pairs that it keeps, for the tiny models' heads of 16."""


ESTIMATES = {"performer"}
"""Variants that no setting makes exact."""


def fields(name: str) -> set[str]:
    return {f.name for f in dataclasses.fields(VARIANTS[name])}


def small(name: str, form: dict[str, Any] | None = None) -> Variant:
    settings = {key: value for key, value in SMALL.items() if key in fields(name)}
    return make(name, settings | (form or {}))


ALL = {
    f"{name} {' '.join(f'{k}={v}' for k, v in form.items())}".strip(): small(name, form)
    for name in sorted(VARIANTS)
    for form in FORMS.get(name, [{}])
}


def _router(facts: ModelFacts, form: str) -> Router:
    config = RouterConfig(facts.layers, facts.hidden_size, GROUPS, dim=8, routers=facts.kv_heads, form=form)
    router = Router(config)
    if router.query_projection is not None:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            router.query_projection.copy_(torch.randn(router.query_projection.shape, generator=generator))
    return router


def _kmeans(facts: ModelFacts) -> KMeansCentroids:
    adapter = KMeansCentroids(KMeansConfig(facts.layers, facts.hidden_size, GROUPS))
    adapter.centroids.copy_(torch.randn(adapter.centroids.shape, generator=torch.Generator().manual_seed(0)))
    return adapter


def _temperature(facts: ModelFacts) -> FarTemperature:
    adapter = FarTemperature(FarTemperatureConfig(facts.layers))
    with torch.no_grad():
        adapter.log_factor.copy_(torch.linspace(0.5, -0.7, facts.layers))
    return adapter


def _feature_maps(facts: ModelFacts) -> FeatureMaps:
    """Maps that mix all features and leave every score as it was."""
    maps = FeatureMaps(FeatureMapsConfig(facts.layers, facts.heads, facts.kv_heads, facts.head_dim))
    generator = torch.Generator().manual_seed(2)
    mixed = torch.randn(maps.key_map.shape, generator=generator, dtype=torch.float64)
    mixed = torch.linalg.qr(mixed)[0] * torch.linspace(0.7, 1.4, facts.head_dim)
    with torch.no_grad():
        maps.key_map.copy_(mixed)
        maps.query_map.copy_(torch.linalg.inv(mixed).mT.repeat_interleave(facts.heads // facts.kv_heads, 1))
    return maps


def _routing(facts: ModelFacts) -> RoutingCentroids:
    return RoutingCentroids(RoutingConfig(facts.layers, facts.kv_heads, facts.head_dim, GROUPS))


@functools.cache
def _factors(rank: int, rotary: int) -> LatentFactors:
    ids = torch.randint(1, VOCAB, (4, 64), generator=torch.Generator().manual_seed(5))
    return factorise(model_for("mla"), ids, rank, rotary=rotary)


UNTRAINED = {
    "latent": lambda facts, variant: _factors(variant.rank, variant.rotary),
    "routing": lambda facts, variant: _routing(facts),
    "router": lambda facts, variant: _router(facts, "paper" if variant.leaks else "directed"),
    "kmeans": lambda facts, variant: _kmeans(facts),
    "temperature": lambda facts, variant: _temperature(facts),
    "thresholds": lambda facts, variant: Thresholds(ThresholdsConfig(facts.layers, facts.heads)),
    "sfa": lambda facts, variant: _feature_maps(facts),
    "slim": lambda facts, variant: SlimForms(SlimFormsConfig((["k", "dense", "x"] * facts.layers)[: facts.layers])),
}


def with_key_heads(family: str = "llama", dtype: torch.dtype = torch.float32, **overrides: Any) -> Any:
    """A tiny model with a key head for every query head, whose key projections an inverse loses no digits to."""
    model = tiny_model(family, kv_heads=9, dtype=torch.float64, **overrides)
    for module in attention_modules(model):
        weight = projections_of(module, 9, 16)[1].weight
        # A view of the model's own weights, or of a part of them.
        weight.copy_(torch.linalg.qr(weight)[0])
    return model.to(dtype)


MODELS = {"slim": with_key_heads}
"""Another tiny model for a variant that refuses 9 query heads on 3 KV heads."""


@functools.cache
def model_for(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The tiny model that a variant's forms are run on; 9 query heads on 3 KV heads, as SmolLM2 has, if it can."""
    return MODELS.get(name, tiny_model)(dtype=dtype)


def adapter_for(variant: Variant, facts: ModelFacts) -> Adapter | None:
    """A small untrained adapter; a new kind needs a line in UNTRAINED."""
    if variant.adapter_kind is None or (
        variant.name in ("xattention", "xattention_sfa")
        or (variant.name == "slim" and variant != make("slim"))
        or (variant.name == "mla" and not variant.rank)
        or (variant.name == "sfa" and (variant.select == "pairs" or variant.sparse == "keys"))
    ):
        return None
    return UNTRAINED[variant.adapter_kind](facts, variant).requires_grad_(False)
