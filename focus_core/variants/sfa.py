"""SFA: queries and keys keep their largest features alone, and a cache holds the keys' codes (arXiv 2603.22300)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from focus_core.errors import InvalidInput
from focus_core.variants.base import AttentionCall, Cost, Knob, Shape, Support, Variant, option
from focus_core.variants.counting import near_pairs
from focus_core.variants.dense import near_pattern

if TYPE_CHECKING:
    import torch

    from focus_core.kernels.sfa import Codes
    from focus_core.models.facts import ModelFacts
    from focus_core.pattern import Pattern


@dataclass(frozen=True)
class FeatureCodes(Variant):
    """Base of the variants that attend with sparse queries and keys, whichever pairs they keep."""

    packs_keys: ClassVar[bool] = True
    knobs: ClassVar[tuple[Knob, ...]] = (Knob("features", 2, 256, step=2, moves="cache"),)

    features: int = option(16, "Features that a query or key keeps of its head's dimensions.", minimum=1, maximum=256)
    select: str = option(
        "features",
        "How they are chosen: features takes the largest by magnitude, after the rotation as the paper does; pairs "
        "takes the largest rotary pairs, a choice that the rotation and so the position does not change.",
        choices=("features", "pairs"),
    )
    sparse: str = option(
        "both", "What is made sparse: both queries and keys, or keys alone (same cache).", choices=("both", "keys")
    )
    straight_through: bool = option(
        False, "In training alone: let the gradient reach dropped features too; the paper gives them none."
    )

    def __post_init__(self) -> None:
        """Check the fields, and that pairs are whole."""
        super().__post_init__()
        if self.select == "pairs" and self.features % 2:
            raise InvalidInput(
                f"{self.name}.features is {self.features}, which is no number of whole pairs.",
                f"Use {self.features + 1}, or select=features.",
            )

    def supports(self, facts: ModelFacts) -> Support:
        """See Variant.supports."""
        held = super().supports(facts)
        if not held.ok:
            return held
        if self.features > facts.head_dim:
            return Support(False, f"its heads have {facts.head_dim} dimensions and features is {self.features}.")
        if self.select == "pairs" and facts.rotary != facts.head_dim:
            rotated = f"{facts.rotary} of {facts.head_dim}" if facts.rotary else "none"
            return Support(False, f"pairs are rotary pairs, and {rotated} of its dimensions rotate by halves.")
        return Support(True)

    def knob_range(self, knob: Knob, length: int, facts: ModelFacts) -> tuple[float, float]:
        """See Variant.knob_range; a head has so many dimensions."""
        low, high = super().knob_range(knob, length, facts)
        return low, min(high, facts.head_dim) if knob.field == "features" else high

    def pack_keys(self, key: torch.Tensor, layer: int, adapter: Any) -> torch.Tensor:
        """The new keys' codes as bytes; see Variant.pack_keys."""
        from focus_core.kernels.sfa import encode, pack

        return pack(encode(self._mapped(key, "key_map", layer, adapter), self.features, self.select))

    def _mapped(self, x: torch.Tensor, side: str, layer: int, adapter: Any) -> torch.Tensor:
        """Queries or keys in the space where features are chosen; it is their own unless an adapter says another."""
        return x

    def _query_and_keys(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor | Codes]:
        """Dense queries, and dense keys or, from a cache, their codes."""
        import torch

        from focus_core.kernels.sfa import unpack

        query = self._mapped(call.query, "query_map", call.layer, call.adapter)
        if call.key.dtype != torch.uint8:
            return query, self._mapped(call.key, "key_map", call.layer, call.adapter)
        return query, unpack(call.key, query.shape[-1], self.features, query.dtype, self.select)

    def sparse_query(self, query: torch.Tensor) -> torch.Tensor:
        """Queries with zeros in place of what they drop."""
        from focus_core.kernels.sfa import sparsify

        if self.sparse == "keys":
            return query
        return sparsify(query, self.features, self.select, leak=self.straight_through)

    def plain_call(self, call: AttentionCall) -> AttentionCall:
        """The same call with zeros in place of what query and keys drop."""
        from focus_core.kernels.sfa import Codes, sparsify

        query, keys = self._query_and_keys(call)
        if isinstance(keys, Codes):
            dense = keys.dense()
        else:
            dense = sparsify(keys, self.features, self.select, leak=self.straight_through)
        return dataclasses.replace(call, query=self.sparse_query(query), key=dense)

    def shared(self, shape: Shape) -> float:
        """Features that a query and a key share where supports are even: the products of one score."""
        kept = min(self.features, shape.head_dim)
        return kept if self.sparse == "keys" or self.select == "first" else kept**2 / shape.head_dim

    def _cost(self, shape: Shape, pairs: float, keys_read: int) -> Cost:
        """Cost of ``pairs`` a head: k^2/D of D products for a score where supports are even (Eq. 7), D for the value.

        Choosing the features is not counted, nor are operations that a backend spends on zeros.
        """
        from focus_core.kernels.sizes import code_bytes

        queries = shape.length if shape.queries is None else shape.queries
        kept = min(self.features, shape.head_dim)
        cached = code_bytes(kept, shape.itemsize, self.select) + shape.head_dim * shape.itemsize
        moved = 2 * queries * shape.heads * shape.head_dim * shape.itemsize + keys_read * shape.kv_heads * cached
        return Cost(
            flops=2.0 * shape.batch * shape.heads * pairs * (self.shared(shape) + shape.head_dim),
            bytes=float(shape.batch * moved),
            kv_bytes_per_token=float(shape.kv_heads * cached),
        )


@dataclass(frozen=True)
class Sfa(FeatureCodes):
    """Every causal pair, scored by the features that query and key share; with an adapter, after its maps."""

    name: ClassVar[str] = "sfa"
    summary: ClassVar[str] = "Every pair, scored by the few features that query and key share; the cache holds codes."
    adapter_kind: ClassVar[str | None] = "sfa"
    adapter_optional: ClassVar[bool] = True

    select: str = option(
        "features",
        "How they are chosen: features takes the largest by magnitude, after the rotation as the paper does; pairs "
        "takes the largest rotary pairs, a choice that the rotation and so the position does not change; first takes "
        "the same ones for every token, which is the short-embedding baseline and needs an adapter's maps.",
        choices=("features", "pairs", "first"),
    )
    no_overlap: str = option(
        "zero",
        "A pair without a shared feature: zero gives it the score 0, as the paper's algorithm does; exclude drops it.",
        choices=("zero", "exclude"),
    )

    def _mapped(self, x: torch.Tensor, side: str, layer: int, adapter: Any) -> torch.Tensor:
        # LoRA changes the projections themselves, and leaves features as they are.
        if getattr(adapter, "kind", None) != self.adapter_kind:
            if self.select == "first":
                raise InvalidInput(
                    "Short embeddings need an adapter's maps, which say what the first features are.",
                    "Give an adapter of kind sfa; `train --kind feature_maps` fits one.",
                )
            return x
        if self.select == "pairs":
            raise InvalidInput(
                "An adapter's maps mix rotary pairs, so pairs cannot be chosen after them.", "Use select=features."
            )
        return adapter.apply_map(x, side, layer)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        from focus_core.kernels.sfa import sfa_attention

        query, keys = self._query_and_keys(call)
        return sfa_attention(
            query,
            keys,
            call.value,
            features=self.features,
            sparse=self.sparse,
            select=self.select,
            no_overlap=self.no_overlap,
            leak=self.straight_through,
            first_key=call.first_key,
            scale=call.scale,
            softcap=call.softcap,
        )

    def pattern(self, call: AttentionCall) -> Pattern:
        """Every causal pair, or those that share a feature."""
        dense = near_pattern(call, window=call.key.shape[2])
        if self.no_overlap == "zero":
            return dense
        import torch

        from focus_core.kernels.sfa import Codes, encode
        from focus_core.pattern_features import FeaturePattern

        query, keys = self._query_and_keys(call)
        if not isinstance(keys, Codes):
            keys = encode(keys, self.features, self.select)
        wanted = torch.ones_like(query, dtype=torch.bool)
        if self.sparse == "both":
            wanted = encode(query, self.features, self.select).support()
        return FeaturePattern(wanted.cpu().numpy(), keys.support().cpu().numpy(), dense.first_key)

    def cost(self, shape: Shape) -> Cost:
        """See Variant.cost; that of every causal pair, as excluded ones are known by their scores alone."""
        return self._cost(shape, near_pairs(shape, shape.length), shape.length)
