"""Focus's kept pairs, scored by sparse features: fewer pairs, and fewer bytes and products for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from focus_core.variants.base import AttentionCall, Cost, Knob, Shape
from focus_core.variants.counting import near_pairs
from focus_core.variants.focus import Focus
from focus_core.variants.groups import SET_BYTES
from focus_core.variants.sfa import FeatureCodes

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FocusSfa(FeatureCodes, Focus):
    """The router reads the hidden state and the codes read query and key: neither knows of the other."""

    name: ClassVar[str] = "focus_sfa"
    summary: ClassVar[str] = "Focus's window, sinks and groups, with SFA's codes for queries and keys."
    knobs: ClassVar[tuple[Knob, ...]] = Focus.knobs + FeatureCodes.knobs

    @property
    def dense_within(self) -> int:
        """See Variant.dense_within: near pairs are scored by codes too."""
        return 0

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        import torch

        from focus_core.kernels.focus.decode import DECODE_QUERIES, focus_decode
        from focus_core.kernels.sfa import unpack

        query, few = call.query, call.query.shape[2] <= DECODE_QUERIES and call.query.device.type == "cpu"
        if call.key.dtype != torch.uint8 or not few or self.gate != "hard":
            return Focus.attend(self, self.plain_call(call))
        out, _ = focus_decode(
            self.sparse_query(query),
            call.key,
            call.value,
            call.fresh,
            call.cached,
            window=self.window,
            sinks=self.sinks,
            first=call.first_key,
            scale=call.scale,
            softcap=call.softcap,
            # The codes of the kept keys alone are read.
            widen=lambda rows: unpack(rows, query.shape[-1], self.features, query.dtype, self.select).dense(),
        )
        return out.to(query.dtype)

    def cost(self, shape: Shape) -> Cost:
        """See Variant.cost."""
        near, every = near_pairs(shape, self.window, self.sinks), near_pairs(shape, shape.length)
        pairs = near + (every - near) * self.share_of_far_pairs() if self.served else every
        cost = self._cost(shape, pairs, shape.length)
        return Cost(
            cost.flops, cost.bytes + shape.batch * shape.length * SET_BYTES, cost.kv_bytes_per_token + SET_BYTES
        )
