"""XAttention's kept blocks, chosen and scored by sparse features: fewer pairs, and fewer bytes for each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from focus_core.variants.base import AttentionCall, Cost, Knob, Prepared, Shape
from focus_core.variants.sfa import FeatureCodes
from focus_core.variants.xattention import XAttention

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class XAttentionSfa(FeatureCodes, XAttention):
    """Blocks are chosen from the same codes that attention reads: a cache that holds codes has nothing else."""

    name: ClassVar[str] = "xattention_sfa"
    summary: ClassVar[str] = "XAttention's blocks, chosen and scored by SFA's codes of queries and keys."
    knobs: ClassVar[tuple[Knob, ...]] = XAttention.knobs + FeatureCodes.knobs

    def prepare_heads(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        layer: int,
        adapter: Any,
        first_real: torch.Tensor | None,
    ) -> Prepared | None:
        """Keep the queries' codes for the block that follows; see ``XAttention.prepare_heads``."""
        from focus_core.kernels.sfa import encode, pack

        kept = super().prepare_heads(query, key, layer, adapter, first_real)
        if kept is None or self.sparse == "keys":
            return kept
        return Prepared(pack(encode(query.detach(), self.features, self.select)))

    def plain_call(self, call: AttentionCall) -> AttentionCall:
        """The same call with zeros in place of what queries, earlier ones included, and keys drop."""
        import torch

        from focus_core.kernels.sfa import unpack

        plain = super().plain_call(call)
        if call.cached is None or call.cached.dtype != torch.uint8:
            return plain
        earlier = unpack(call.cached, call.query.shape[-1], self.features, call.query.dtype, self.select)
        return dataclasses.replace(plain, cached=earlier.dense())

    def block_mask(self, call: AttentionCall) -> torch.Tensor:
        """See ``XAttention.block_mask``; from the codes."""
        return super().block_mask(self.plain_call(call))

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        from focus_core.kernels.block_sparse import block_sparse_attention
        from focus_core.kernels.dense import dense_attention

        plain = self.plain_call(call)
        common: dict[str, Any] = {"first_key": call.first_key, "scale": call.scale, "softcap": call.softcap}
        if self.dense_at(call.layer, call.query.shape[2]):
            return dense_attention(plain.query, plain.key, plain.value, **common)
        mask = super().block_mask(plain)
        return block_sparse_attention(plain.query, plain.key, plain.value, mask, block_size=self.block, **common)

    def cost(self, shape: Shape) -> Cost:
        """See ``XAttention.cost``; a score that is sampled or kept takes the products of two codes."""
        from focus_core.kernels.sizes import code_bytes

        cost = self._cost(shape, self.flat_pairs(shape), shape.length)
        sampled = 2.0 * shape.batch * shape.heads * self.shared(shape) * self.scored_pairs(shape)
        each = 0
        if self.voters == "before":
            kept = min(self.features, shape.head_dim)
            dense = self.sparse == "keys"
            each = shape.head_dim * shape.itemsize if dense else code_bytes(kept, shape.itemsize, self.select)
        return Cost(cost.flops + sampled, cost.bytes, cost.kv_bytes_per_token + shape.heads * each)
