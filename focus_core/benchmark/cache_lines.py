"""Which variants remember something else than dense attention, and in which sizes: read from the registry, no torch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from focus_core import assets
from focus_core.benchmark.entries import BASELINE
from focus_core.errors import FocusError, InvalidInput
from focus_core.models.shapes import fits
from focus_core.variants import VARIANTS, Variant, make
from focus_core.variants.base import Shape

if TYPE_CHECKING:
    from focus_core.models.shapes import Shape as ModelShape

LENGTH = 1024
"""Tokens at which bytes a token are counted; no count depends on it beyond constants."""
MOST = 8
OTHER_CHOICES = 3
"""Rank of a line that differs in a choice which is not about what is kept."""
CACHE_FIELD = "cache"
"""A setting of this name says what is kept: its values are told apart even where they take the same bytes."""


def shape_for(model: ModelShape, itemsize: int, length: int = LENGTH, batch: int = 1) -> Shape:
    """One layer of the model, as a variant counts it."""
    latent = getattr(model, "latent", None)
    return Shape(batch, model.heads, model.kv_heads, model.head_dim, length, itemsize=itemsize, latent=latent)


def counted_bytes(variant: Variant, model: ModelShape, itemsize: int) -> float:
    """Cache bytes a token over all layers, from the settings alone."""
    return model.layers * variant.cost(shape_for(model, itemsize)).kv_bytes_per_token


def cache_lines(model_name: str, model: ModelShape, itemsize: int = 4) -> list[dict[str, Any]]:
    """Every registered variant whose counted cache differs from dense's, with the settings that change it.

    A variant comes with its defaults, or as each adapter of this model is served; then once for every value of a
    setting that changes the bytes: the choices of a choice, half and twice a number. Whether the model can take it is
    known when it has loaded.

    Args:
        model_name: for the adapters that belong to it.
        model: its shape.
        itemsize: bytes of a cached number.

    Returns:
        ``{variant, config, adapter, counted, rank}``; ``counted`` is bytes a token over all layers. Defaults come first
        (rank 0), then other things kept, other numbers, other choices; of each the small caches before the large ones.
    """
    dense = counted_bytes(make(BASELINE), model, itemsize)
    found: list[tuple[int, float, dict[str, Any]]] = []
    for name, cls in VARIANTS.items():
        seen: set[tuple] = set()
        for base, adapter in _bases(cls, model_name):
            for rank, variant in [(0, base), *_changed(base, set(_serve(adapter)))]:
                try:
                    size = counted_bytes(variant, model, itemsize)
                except FocusError:  # such as a latent that neither the model nor an adapter has
                    continue
                mark = (size, getattr(variant, CACHE_FIELD, None))
                as_large = size == dense and not hasattr(cls, CACHE_FIELD)
                if as_large or mark in seen or not variant.served:
                    continue
                seen.add(mark)
                line: dict[str, Any] = {"variant": name, "config": _differing(variant, adapter), "adapter": adapter}
                line |= {"counted": size, "rank": rank}
                found.append((rank, size, line))
    return [line for _, _, line in sorted(found, key=lambda one: one[:2])]


def usual(lines: list[dict[str, Any]], dense: float, most: int = MOST) -> list[dict[str, Any]]:
    """The lines that a run takes when none are named: those that save, each variant once before its other sizes.

    A variant that is about what is kept is among them where it saves nothing too, so that one sees why.
    """

    def wanted(line: dict[str, Any]) -> bool:
        about_caches = line["rank"] == 0 and hasattr(VARIANTS[line["variant"]], CACHE_FIELD)
        return about_caches or (line["counted"] < dense and line["rank"] < OTHER_CHOICES)

    return list(filter(wanted, lines))[:most]


def settings_of(line: dict[str, Any]) -> Variant:
    """The variant of a line with all its settings: its adapter's, then its own."""
    return make(line["variant"], {**_serve(line.get("adapter")), **line["config"]})


def _serve(adapter: str | None) -> dict[str, Any]:
    known = assets.adapters()
    return dict(known[adapter]["config"].get("serve") or {}) if adapter in known else {}


def _bases(cls: type[Variant], model_name: str) -> list[tuple[Variant, str | None]]:
    found: list[tuple[Variant, str | None]] = []
    if cls.adapter_kind is None or cls.adapter_optional:
        found.append((cls(), None))
    if cls.adapter_kind is not None:
        for name, entry in assets.adapters().items():
            document = entry["config"]
            if document.get("kind") == cls.adapter_kind and fits(document.get("model"), model_name):
                found.append((make(cls.name, document.get("serve") or {}), name))
    return found


def _changed(base: Variant, fixed: set[str]) -> list[tuple[int, Variant]]:
    """The variant with one setting changed, for every setting and value that it takes; with a rank, 1 first.

    What its adapter is served with (``fixed``) stays.
    """
    found = []
    for item in dataclasses.fields(base):
        if item.name in fixed:
            continue
        value, limits = getattr(base, item.name), item.metadata
        if choices := limits.get("choices"):
            values = [choice for choice in choices if choice != value]
            rank = 1 if item.name == CACHE_FIELD else OTHER_CHOICES
        elif isinstance(value, int) and not isinstance(value, bool):
            values, rank = [value // 2, value * 2], 2
        else:
            continue
        for other in values:
            try:
                found.append((rank, dataclasses.replace(base, **{item.name: other})))
            except InvalidInput:  # outside the setting's range, or at odds with another one
                continue
    return found


def _differing(variant: Variant, adapter: str | None) -> dict[str, Any]:
    """The settings beyond those that a request for this variant and adapter has by itself."""
    default = make(variant.name, _serve(adapter)).to_dict()
    return {name: value for name, value in variant.to_dict().items() if value != default[name]}
