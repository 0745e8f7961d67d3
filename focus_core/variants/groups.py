"""What the grouped variants share: window, sinks, and far pairs kept where query and key share a group."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, ClassVar

from focus_core.errors import InvalidInput
from focus_core.variants.base import AttentionCall, Cost, Knob, Shape, Variant, option
from focus_core.variants.counting import cost_of, near_pairs

if TYPE_CHECKING:
    import torch

    from focus_core.models.facts import ModelFacts
    from focus_core.pattern import GroupPattern

SET_BYTES = 8


@dataclass(frozen=True)
class GroupedVariant(Variant):
    """Base of the variants whose ``prepare`` yields int64 sets: ``cached`` (B, R, N) of keys, ``fresh`` of queries."""

    knobs: ClassVar[tuple[Knob, ...]] = (Knob("query_topk", 1, 64), Knob("window", 1))
    editable: ClassVar[bool] = True
    """Whether a person may move tokens from group to group: where one router serves keys and queries alike."""
    keeps_memo: ClassVar[bool] = True
    """On a GPU: where each group's keys lie."""

    groups: int = option(16, "K, the number of groups far tokens are divided into.", minimum=1, maximum=64)
    query_topk: int = option(1, "Groups a query looks into: the 4 of q4k1.", minimum=1, maximum=64)
    key_topk: int = option(1, "Groups a key belongs to: the 1 of q4k1.", minimum=1, maximum=64)
    window: int = option(128, "Nearest keys that every query sees, itself included.", minimum=1)
    sinks: int = option(4, "First tokens that every query sees.", minimum=0)
    backend: str = option(
        "auto",
        "What computes it; auto takes the fastest exact one: where few pairs are dropped that masks all of them.",
        choices=("auto", "reference", "chunked", "cpu", "triton", "flash"),
    )

    def __post_init__(self) -> None:
        """Check the fields, and the memberships against the groups."""
        super().__post_init__()
        for name in ("query_topk", "key_topk"):
            if getattr(self, name) > self.groups:
                raise InvalidInput(
                    f"{self.name}.{name} is {getattr(self, name)}, and there are {self.groups} groups.",
                    f"It can be 1 to {self.groups}.",
                )

    @property
    def serves_graphs(self) -> bool:
        """See Variant.serves_graphs."""
        return self.served and self.backend == "auto"

    def members(self, call: AttentionCall) -> tuple[int, int]:
        """The most groups of a query and of a key of this call."""
        return self.query_topk, self.key_topk

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        from focus_core.kernels.focus import focus_attention
        from focus_core.kernels.focus.listed import listed_attention

        if call.memo is not None and call.cached is not None and self.backend == "auto":
            out = listed_attention(
                call.memo,
                call.query,
                call.key,
                call.value,
                call.fresh,
                call.cached,
                groups=self.groups,
                members=self.members(call),
                window=self.window,
                sinks=self.sinks,
                first_key=call.first_key,
                scale=call.scale,
                softcap=call.softcap,
                steps=call.steps,
            )
            if out is not None:
                return out
        return focus_attention(
            call.query,
            call.key,
            call.value,
            call.fresh,
            call.cached,
            window=self.window,
            sinks=self.sinks,
            first_key=call.first_key,
            scale=call.scale,
            softcap=call.softcap,
            backend=self.backend,
            members=self.members(call),
        )

    def pattern(self, call: AttentionCall) -> GroupPattern:
        """See Variant.pattern."""
        from focus_core.pattern import GroupPattern

        assert call.cached is not None, "prepare gives every token its set"
        first = None if call.first_key is None else call.first_key.cpu().numpy()
        bits = call.fresh.cpu().numpy(), call.cached.cpu().numpy()
        return GroupPattern(*bits, call.query.shape[1], self.window, self.sinks, first)

    def knob_range(self, knob: Knob, length: int, facts: ModelFacts) -> tuple[float, float]:
        """See Variant.knob_range; a query looks into as many groups as there are."""
        low, high = super().knob_range(knob, length, facts)
        return low, self.groups if knob.field == "query_topk" else high

    def share_of_far_pairs(self) -> float:
        """Chance that a query and a key share a group when both draw evenly."""
        return 1 - comb(self.groups - self.query_topk, self.key_topk) / comb(self.groups, self.key_topk)

    def cost(self, shape: Shape) -> Cost:
        """See Variant.cost; far pairs are those of balanced groups."""
        near, every = near_pairs(shape, self.window, self.sinks), near_pairs(shape, shape.length)
        cost = cost_of(shape, near + (every - near) * self.share_of_far_pairs(), shape.length)
        return Cost(
            cost.flops,
            cost.bytes + shape.batch * shape.length * SET_BYTES,
            cost.kv_bytes_per_token + SET_BYTES,
        )
