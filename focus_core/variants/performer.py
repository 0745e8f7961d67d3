"""Performer: softmax attention estimated by random features, in time linear in the text (arXiv 2009.14794)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from focus_core.variants.base import AttentionCall, Cost, Knob, Shape, Support, Variant, option
from focus_core.variants.dense import near_pattern

if TYPE_CHECKING:
    import torch

    from focus_core.models.facts import ModelFacts
    from focus_core.pattern import GroupPattern

_STATE_BYTES = 4


@dataclass(frozen=True)
class Performer(Variant):
    """No pair is dropped and none is computed exactly: no setting makes it dense, more features come nearer.

    The features are drawn once a layer and stay as they are; the published training draws them anew from time to time.
    Decoding goes on from sums of constant size. Keys and values stay in the model's cache all the same, which a model
    made for Performer would not need.
    """

    name: ClassVar[str] = "performer"
    summary: ClassVar[str] = "Every pair, its weight estimated by random features: time linear in the text."
    keeps_memo: ClassVar[bool] = True
    knobs: ClassVar[tuple[Knob, ...]] = (Knob("features", 16, 2048, moves=""),)
    computes_pairs: ClassVar[bool] = False

    features: int = option(
        256, "Random features a head: more of them estimate better and cost more.", minimum=1, maximum=16384
    )
    seed: int = option(0, "Changes every draw.", minimum=0)

    def supports(self, facts: ModelFacts) -> Support:
        """Scores must be plain products."""
        held = super().supports(facts)
        if not held.ok:
            return held
        if facts.softcap is not None:
            return Support(
                False, f"its scores have a soft cap of {facts.softcap:g}, which no product of features estimates."
            )
        return Support(True)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        from focus_core.kernels.performer import Prefix, orthogonal_projection, performer_attention

        keys = call.key.shape[2]
        kept = None if call.memo is None else call.memo.take(keys - call.query.shape[2])
        projection = orthogonal_projection(
            self.features, call.query.shape[3], seed=self.seed, layer=call.layer, device=call.query.device
        )
        out, after = performer_attention(
            call.query,
            call.key,
            call.value,
            projection,
            first_key=call.first_key,
            scale=call.scale,
            prefix=None if kept is None else Prefix(*kept),
            return_prefix=True,
        )
        if call.memo is not None:
            call.memo.keep((after.sums, after.peak), keys)
        return out

    def pattern(self, call: AttentionCall) -> GroupPattern:
        """Every causal pair: each has a weight, though none is computed exactly."""
        return near_pattern(call, window=call.key.shape[2])

    def cost(self, shape: Shape) -> Cost:
        """Products of matrices: features, sums of the keys, reading them, and the pairs inside chunks of 64 tokens."""
        from focus_core.variants.counting import chunk_pairs

        queries = shape.length if shape.queries is None else shape.queries
        features, width = self.features, shape.head_dim + 1
        project = queries * shape.head_dim * (shape.heads + shape.kv_heads)
        sums = queries * width * (shape.heads + shape.kv_heads)
        inside = chunk_pairs(queries) * shape.heads
        state = shape.kv_heads * features * (width + 1) * _STATE_BYTES
        moved = 2 * queries * (shape.heads + shape.kv_heads) * shape.head_dim * shape.itemsize
        return Cost(
            flops=2.0 * shape.batch * (features * (project + sums + inside) + inside * width),
            bytes=float(shape.batch * (moved + 2 * state)),
            kv_bytes_per_token=2.0 * shape.kv_heads * shape.head_dim * shape.itemsize,
        )
