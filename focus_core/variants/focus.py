"""Focus: far tokens see each other when a learned router puts them into the same group (arXiv 2604.03260)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from focus_core.errors import InvalidInput, Unsupported
from focus_core.variants.base import AttentionCall, Cost, Prepared, RoutingSpace, Shape, option
from focus_core.variants.counting import cost_of, near_pairs
from focus_core.variants.dense import near_pattern
from focus_core.variants.groups import GroupedVariant

if TYPE_CHECKING:
    import torch

    from focus_core.pattern import GroupPattern

GATES = ("hard", "soft", "straight_through", "paper")
LOOKS = ("adapter", "uniform")


@dataclass(frozen=True)
class Focus(GroupedVariant):
    """The served mask (``hard``) and the soft forms that train it or that the paper reports."""

    name: ClassVar[str] = "focus"
    summary: ClassVar[str] = "Window and sinks, and far tokens that share a learned group."
    adapter_kind: ClassVar[str | None] = "router"

    gate: str = option(
        "hard",
        "hard is what decoding runs; soft and straight_through train it and compute every pair; "
        "paper is the published soft gate, which lets later tokens change earlier outputs.",
        choices=GATES,
    )
    temperature: float = option(0.1, "Softness of the soft gates' memberships.", minimum=1e-4, maximum=10.0)
    looks: str = option(
        "adapter",
        "Groups a query looks into: adapter takes the adapter's own number for each router, where it has a table of "
        "them and query_topk is that table's rounded mean; uniform, and any other query_topk, is query_topk for all.",
        choices=LOOKS,
    )

    @property
    def served(self) -> bool:
        """True for the hard gate alone."""
        return self.gate == "hard"

    @property
    def leaks(self) -> bool:
        """True for the paper's gate: its Sinkhorn runs over the whole sequence."""
        return self.gate == "paper"

    def prepare(
        self, hidden: torch.Tensor, layer: int, positions: torch.Tensor, adapter: Any, first_key: torch.Tensor | None
    ) -> Prepared:
        """Route each token by itself; see Variant.prepare."""
        from focus_core.routing import router as routing

        if adapter.config.groups != self.groups:
            raise InvalidInput(
                f"The adapter has {adapter.config.groups} groups and the setting groups is {self.groups}.",
                f"Set groups to {adapter.config.groups}.",
            )
        own = adapter.looks_of(layer) if self.has_looks(adapter) else None
        if self.gate == "hard":
            return Prepared(*adapter.sets(layer, hidden, self.key_topk, own or self.query_topk))
        key_logits, query_logits = adapter.logits(layer, hidden)
        if self.gate == "paper":
            shares = routing.sinkhorn_over_sequence(key_logits / routing.PAPER_TEMPERATURE, first_key)
            return Prepared(shares, shares)
        soften = routing.soft_members if self.gate == "soft" else routing.straight_through_members
        if own is None:
            wanted = soften(query_logits, self.query_topk, self.temperature)
        else:
            wanted = routing.members_each(soften, query_logits, own, self.temperature)
        return Prepared(soften(key_logits, self.key_topk, self.temperature), wanted)

    def has_looks(self, adapter: Any) -> bool:
        """Whether the adapter's own table says how many groups a query looks into, and not ``query_topk``.

        Where sets are given instead of routed there is no adapter.
        """
        if adapter is None or self.looks != "adapter":
            return False
        return adapter.config.looks is not None and self.query_topk == adapter.config.usual_looks

    def members(self, call: AttentionCall) -> tuple[int, int]:
        """See GroupedVariant.members."""
        own = call.adapter.looks_of(call.layer) if self.has_looks(call.adapter) else None
        return self.query_topk if own is None else own.most, self.key_topk

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        if self.gate == "hard":
            return super().attend(call)
        from focus_core.kernels.focus import soft

        if self.gate == "paper":
            if call.query.shape[2] != call.key.shape[2]:
                raise Unsupported(
                    "The paper's gate assigns groups over the whole sequence and cannot decode with a cache.",
                    "Use the hard gate, or run without a cache.",
                )
            sharpness = call.adapter.sharpness
            if sharpness is None:
                raise Unsupported(
                    "The paper's gate needs an adapter trained in the paper's form.", "Use the soft or the hard gate."
                )
            gates = {"multiply": soft.paper_gate(call.cached, sharpness[call.layer])}
        else:
            floor = soft.FLOOR if self.gate == "soft" else soft.STRAIGHT_THROUGH_FLOOR
            gates = {"add": soft.log_agreement_gate(call.fresh, call.cached, self.key_topk, floor)}
        return soft.soft_attention(
            call.query,
            call.key,
            call.value,
            **gates,
            window=self.window,
            sinks=self.sinks,
            first_key=call.first_key,
            scale=call.scale,
            softcap=call.softcap,
            backend="auto" if self.backend == "auto" else "chunked",
        )

    def pattern(self, call: AttentionCall) -> GroupPattern:
        """The served sets; a soft gate computes every pair, so its pattern is dense."""
        return super().pattern(call) if self.served else near_pattern(call, window=call.key.shape[2])

    def routing_space(self, call: AttentionCall) -> RoutingSpace:
        """See Variant.routing_space."""
        keys, queries, centroids = call.adapter.points(call.layer, call.hidden)
        return RoutingSpace(keys, None if queries is keys else queries, centroids)

    def routing_width(self, config: Any) -> int:
        """See Variant.routing_width."""
        return config.routers * config.dim * (2 if config.form == "directed" else 1)

    def cost(self, shape: Shape) -> Cost:
        """See Variant.cost; a soft gate computes every pair."""
        return super().cost(shape) if self.served else cost_of(shape, near_pairs(shape, shape.length), shape.length)
