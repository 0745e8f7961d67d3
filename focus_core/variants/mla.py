"""MLA: keys and values are linear in a small latent, which is all that a cache holds (arXiv 2405.04434)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from focus_core.errors import InvalidInput
from focus_core.variants.base import AttentionCall, Cost, NewTokens, Packed, Shape, Support, Variant, option
from focus_core.variants.counting import latent_cost, near_pairs
from focus_core.variants.dense import near_pattern

if TYPE_CHECKING:
    import torch
    from torch import nn

    from focus_core.models.facts import ModelFacts
    from focus_core.pattern import Pattern
    from focus_core.routing.latent import LatentFactors


@dataclass(frozen=True)
class Mla(Variant):
    """A model's own latent attention, or one that an adapter's factors make of its keys and values."""

    name: ClassVar[str] = "mla"
    summary: ClassVar[str] = "Every pair; keys and values are made from a small latent, which is all that is cached."
    adapter_kind: ClassVar[str | None] = "latent"
    adapter_optional: ClassVar[bool] = True
    serves_latent: ClassVar[bool] = True

    rank: int = option(
        0, "Numbers of the latent that an adapter's factors make; 0 takes the model's own latent attention.", minimum=0
    )
    rotary: int = option(
        0, "Numbers of each KV head's key that stay rotated and are cached beside that latent.", minimum=0
    )
    form: str = option(
        "auto",
        "naive makes keys and values, absorbed folds their weights into queries and outputs; the same numbers up to "
        "rounding. auto takes the one with fewer operations: naive for a prompt, absorbed for a token.",
        choices=("auto", "naive", "absorbed"),
    )

    @property
    def packs_keys(self) -> bool:  # type: ignore[override]
        """A model's own latent attention caches its latent by itself."""
        return self.rank > 0

    def supports(self, facts: ModelFacts) -> Support:
        """See Variant.supports."""
        if facts.latent is not None:
            if self.rank or self.rotary:
                return Support(False, f"it has a latent of {facts.latent.rank} of its own; leave rank and rotary at 0.")
            return Support(True)
        if not self.rank:
            return Support(False, "it has no latent attention of its own; an adapter makes one (train --kind factors).")
        if facts.qk_norm:
            return Support(False, "it normalises its keys after their projection, which no latent can stand for.")
        if self.rotary > facts.rotary:
            return Support(False, f"{facts.rotary} dimensions of its heads rotate, and rotary is {self.rotary}.")
        return Support(True)

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        """A model's own latent attention hands over what its cache holds, and makes no keys and values of it."""
        if self.rank:
            yield
            return
        from focus_core.models.facts import attention_modules

        modules: list[Any] = attention_modules(model)
        try:
            for module in modules:
                module.expand_kv = _as_cached
            yield
        finally:
            for module in modules:
                module.__dict__.pop("expand_kv", None)

    def derive(self, model: nn.Module, module: nn.Module, layer: int, adapter: Any) -> Any:
        """The model's own W_UK and W_UV, or the projection of queries, whose rotation is dropped in part."""
        from focus_core.models.facts import latent_sizes

        sizes = latent_sizes(module)
        if sizes is not None:
            made = module.kv_b_proj.weight.view(-1, sizes.nope + sizes.value, sizes.rank)
            return {"up_k": made[:, : sizes.nope], "up_v": made[:, sizes.nope :]}
        from focus_core.models.projections import projections_of

        return projections_of(module, adapter.config.heads, adapter.config.head_dim)[0]

    def pack(self, new: NewTokens) -> Packed:
        """The rotated numbers that are kept of each key, and the latent in place of the values."""
        factors = self._factors(new.adapter)
        return Packed(factors.rotated_part(new.key, new.layer), factors.latent(new.hidden, new.layer))

    def _factors(self, adapter: Any) -> LatentFactors:
        if getattr(adapter, "kind", None) != self.adapter_kind:
            raise InvalidInput(
                f"A latent of {self.rank} needs an adapter's factors.",
                "Give an adapter of kind latent; `train --kind factors` makes one.",
            )
        for name in ("rank", "rotary"):
            has, asked = getattr(adapter.config, name), getattr(self, name)
            if has != asked:
                raise InvalidInput(
                    f"The adapter's {name} is {has} and the setting is {asked}.", f"Set {name} to {has}."
                )
        return adapter

    def _parts(self, call: AttentionCall) -> dict[str, torch.Tensor]:
        """What ``mla_attention`` takes of a call."""
        import torch

        if not self.rank:
            return {"q": call.query, "latent": call.value, "k_rope": call.key, **call.derived}
        factors, layer = self._factors(call.adapter), call.layer
        query = call.query
        if factors.drops_rotation:
            query = call.derived(call.hidden).unflatten(-1, (query.shape[1], -1)).transpose(1, 2)
        parts = [factors.other_part(query, layer), factors.rotated_part(call.query, layer)]
        held = {"latent": call.value, "k_rope": call.key}
        if call.new_key is None:
            held = {"latent": factors.latent(call.hidden, layer), "k_rope": factors.rotated_part(call.key, layer)}
        return {"q": torch.cat(parts, -1), **held, **factors.weights(layer, query.dtype)}

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        from focus_core.kernels.mla import mla_attention

        options: dict[str, Any] = {"first_key": call.first_key, "scale": call.scale, "softcap": call.softcap}
        return mla_attention(**self._parts(call), **options, form=self.form)

    def plain_call(self, call: AttentionCall) -> AttentionCall:
        """The call with the keys and values that the latent stands for."""
        from focus_core.kernels.mla import keys_and_values

        parts = self._parts(call)
        query = parts.pop("q")
        key, value = keys_and_values(**parts)
        return dataclasses.replace(call, query=query, key=key, value=value)

    def pattern(self, call: AttentionCall) -> Pattern:
        """Every causal pair."""
        return near_pattern(call, window=call.key.shape[2])

    def cost(self, shape: Shape) -> Cost:
        """See Variant.cost; of attention over what the cache holds, in the form that is chosen."""
        from focus_core.kernels.sizes import absorbs
        from focus_core.models.facts import Latent

        sizes, shared = shape.latent, {"up_heads": shape.heads, "rope_heads": 1}
        if sizes is None:
            if not self.rank:
                raise InvalidInput("There is no latent whose cost could be counted.", "Set rank, as an adapter has it.")
            sizes = Latent(self.rank, self.rotary, shape.head_dim - self.rotary, shape.head_dim)
            shared = {"up_heads": shape.kv_heads, "rope_heads": shape.kv_heads}
        form, queries = self.form, shape.length if shape.queries is None else shape.queries
        if form == "auto":
            folds = absorbs(
                queries=queries, keys=shape.length, heads=shape.heads, up_heads=shared["up_heads"], **vars(sizes)
            )
            form = "absorbed" if folds else "naive"
        return latent_cost(shape, sizes, form, near_pairs(shape, shape.length), **shared)


def _as_cached(latent: torch.Tensor, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In place of a model's ``expand_kv``: what its cache holds, the rotated key in place of keys, then the latent."""
    return rotated, latent
