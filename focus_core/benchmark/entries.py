"""The variants of one comparison: their settings, adapters, and whether the model can take them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from focus_core.errors import FocusError, InvalidInput
from focus_core.variants import CHANGES_MODEL, LORA, VARIANTS, Variant, make
from focus_core.variants.base import Cost, Shape

if TYPE_CHECKING:
    from focus_core.kernels.focus.choose import Choice
    from focus_core.models.facts import ModelFacts
    from focus_core.variants.base import AttentionCall

BASELINE = "dense"
MASKED = frozenset({"dense", "chunked", "reference", "soft"})
"""Backends that compute every pair and hide some: right, and no saving."""


@dataclass(frozen=True)
class Entry:
    """One line of a comparison.

    Attributes:
        key: identifies the line: variant, settings and adapter.
        label: what people read.
        variant: the config.
        adapter_name: as requested; None without one.
        adapter: the loaded module; None without one.
    """

    key: str
    label: str
    variant: Variant
    adapter_name: str | None = None
    adapter: Any = None

    @property
    def trained(self) -> int:
        """Parameters of the adapter."""
        return 0 if self.adapter is None else sum(p.numel() for p in self.adapter.parameters())

    def describe(self) -> dict[str, Any]:
        """The fields that every row of this line repeats."""
        return {
            "key": self.key,
            "label": self.label,
            "variant": self.variant.name,
            "config": self.variant.to_dict(),
            "adapter": self.adapter_name,
            "adapter_kind": getattr(self.adapter, "kind", None),
            "trained": self.trained,
            "computes_pairs": self.variant.computes_pairs,
            "served": self.variant.served,
            "leaks": self.variant.leaks,
        }


def label_of(variant: Variant, adapter_name: str | None = None) -> str:
    """A variant's name with the settings that differ from their defaults, and its adapter."""
    default = type(variant)().to_dict()
    changed = [f"{k} {v}" for k, v in variant.to_dict().items() if v != default[k]]
    return " · ".join([variant.name, *changed, *([adapter_name] if adapter_name else [])])


def key_of(variant: Variant, adapter_name: str | None) -> str:
    """The identity of a line."""
    return json.dumps([variant.name, variant.to_dict(), adapter_name], sort_keys=True)


def resolve(
    requests: list[dict[str, Any]], facts: ModelFacts, load_adapter: Callable[[str], Any]
) -> tuple[list[Entry], list[dict[str, str]]]:
    """Turn requests ``{variant, config, adapter, label}`` into lines; dense comes first, asked for or not.

    Args:
        requests: what was asked for; ``config``, ``adapter`` and ``label`` may be missing.
        facts: of the model.
        load_adapter: loads an adapter by its name; called once a name.

    Returns:
        The lines, and for each request that the model cannot take ``{label, reason, hint}``.

    Raises:
        InvalidInput: no request, or one that names no variant or setting of ours.
    """
    if not requests:
        raise InvalidInput("There is nothing to compare.", "Choose at least one variant.")
    lines: dict[str, Entry] = {}
    refused: list[dict[str, str]] = []
    known: dict[str, Any] = {}

    def adapter_of(name: str) -> Any:
        if name not in known:
            known[name] = load_adapter(name)
        return known[name]

    for request in [{"variant": BASELINE}, *requests]:
        name, adapter_name = request["variant"], request.get("adapter")
        cls = VARIANTS.get(name)
        settings = dict(request.get("config") or {})
        label = request.get("label") or " · ".join(filter(None, [name, adapter_name]))
        adapter = None
        if cls is not None and adapter_name is not None:
            try:
                adapter = adapter_of(adapter_name)
            except FocusError as error:
                refused.append({"label": label, "reason": error.message, "hint": error.hint})
                continue
            if adapter.kind not in CHANGES_MODEL and cls.adapter_kind is None:
                adapter = adapter_name = None
        if name == BASELINE and lines and adapter is None:
            continue
        if reason := _lacks(cls, adapter):
            hint = "Choose an adapter of this model, or a control that needs no training."
            refused.append({"label": label, "reason": f"{name} {reason}", "hint": hint})
            continue
        if adapter is not None and (
            adapter.kind not in CHANGES_MODEL or getattr(adapter.config, "through", None) == name
        ):
            settings = {**adapter.serve, **settings}
        variant = make(name, settings)
        label = request.get("label") or label_of(variant, adapter_name)
        support = variant.supports(facts)
        if not support.ok:
            refused.append({"label": label, "reason": support.reason, "hint": ""})
            continue
        key = key_of(variant, adapter_name)
        lines.setdefault(key, Entry(key, label, variant, adapter_name, adapter))
    return list(lines.values()), refused


def _lacks(cls: type[Variant] | None, adapter: Any) -> str:
    """Why a variant cannot run with this adapter or without one; empty when it can. LoRA goes where none is needed."""
    if (
        cls is None
        or cls.adapter_kind is None
        or (cls.adapter_optional and getattr(adapter, "kind", LORA) in CHANGES_MODEL)
    ):
        return ""
    if adapter is None:
        return "needs a trained adapter and none was chosen."
    if getattr(cls.read_adapter(adapter), "kind", None) != cls.adapter_kind:
        return f"needs an adapter of kind {cls.adapter_kind}, and this one is of kind {adapter.kind}."
    return ""


def backend_of(variant: Variant, call: AttentionCall) -> str:
    """What computes this call: ``sdpa`` for dense, ``soft`` for a gate over every pair, or the kernel's backend.

    ``auto`` is answered as ``focus_attention`` would; a variant without a choice is called by its own name.
    """
    if variant.name == BASELINE:
        return "sdpa"
    if not variant.served:
        return "soft"
    asked = getattr(variant, "backend", "auto")
    choice = grouped_choice(variant, call) if asked == "auto" else None
    return choice.backend if choice is not None else variant.name if asked == "auto" else asked


def grouped_choice(variant: Variant, call: AttentionCall) -> Choice | None:
    """What ``focus_attention`` takes for this call, and why; None for a variant that computes by other kernels."""
    from focus_core.kernels.focus import choose_backend
    from focus_core.variants.groups import GroupedVariant
    from focus_core.variants.window import Window

    if not isinstance(variant, (GroupedVariant, Window)):
        return None
    keys, queries = call.cached, call.fresh
    if keys is None:
        keys = call.query.new_zeros((call.key.shape[0], 1, call.key.shape[2])).long()
        queries = keys[:, :, keys.shape[2] - call.query.shape[2] :]
    # Query heads that share keys and have sets of their own take turns: one turn is asked for.
    queries = queries[:, :: max(1, queries.shape[1] // keys.shape[1])]
    return choose_backend(call.query, call.key, queries, keys, window=variant.window, sinks=variant.sinks)


def layer_shape(facts: ModelFacts, length: int, itemsize: int = 4, batch: int = 1) -> Shape:
    """One layer's prefill of ``batch`` sequences of ``length`` tokens, as variants count it."""
    return Shape(batch, facts.heads, facts.kv_heads, facts.head_dim, length, itemsize=itemsize, latent=facts.latent)


def counted(variant: Variant, facts: ModelFacts, length: int, itemsize: int) -> Cost:
    """Counted attention cost of one prefill of ``length`` tokens over all layers, native layers as they are.

    ``kv_bytes_per_token`` is likewise the sum over layers.
    """
    shape = layer_shape(facts, length, itemsize)
    parts = [
        (variant if own is None else make("window", {"window": own, "sinks": 0})).cost(shape) for own in facts.native
    ]
    return Cost(sum(p.flops for p in parts), sum(p.bytes for p in parts), sum(p.kv_bytes_per_token for p in parts))


def theory(
    entries: list[Entry], facts: ModelFacts, lengths: list[int], itemsize: int, linear: int
) -> list[dict[str, Any]]:
    """The counted curve of each served line, on a grid of lengths around the measured ones.

    Args:
        entries: the lines; the first is dense.
        facts: of the model.
        lengths: measured lengths.
        itemsize: bytes a cached number.
        linear: operations a token outside attention.

    Returns:
        ``{key, label, length, attention, model}``: operations as a share of dense's, of attention alone and of the
        whole model.
    """
    grid = set(lengths)
    step = max(64, min(lengths) // 2)
    while step <= 2 * max(lengths):
        grid.add(step)
        step = int(step * 2**0.5)
    rows = []
    for length in sorted(grid):
        dense = counted(entries[0].variant, facts, length, itemsize).flops
        for entry in entries:
            if not entry.variant.served:
                continue
            own = counted(entry.variant, facts, length, itemsize).flops
            rest = float(linear) * length
            rows.append(
                {
                    "key": entry.key,
                    "label": entry.label,
                    "length": length,
                    "attention": own / dense,
                    "model": (own + rest) / (dense + rest),
                }
            )
    return rows
