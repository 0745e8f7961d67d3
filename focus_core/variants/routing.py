"""Routing Transformer as a retrofit: far pairs whose query and key lie in one k-means cluster (arXiv 2003.05997)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from focus_core.errors import InvalidInput, Unsupported
from focus_core.variants.base import AttentionCall, Cost, Prepared, Shape, option
from focus_core.variants.counting import cost_of, near_pairs
from focus_core.variants.groups import SET_BYTES, GroupedVariant

if TYPE_CHECKING:
    import torch

    from focus_core.pattern import GroupPattern


@dataclass(frozen=True)
class Routing(GroupedVariant):
    """Clusters of each head's queries and keys, by centroids that online k-means found.

    In the paper queries are keys, and each cluster takes the tokens nearest to it, an equal share of the text
    (``published``): which those are depends on later tokens, so it is not served. Served, each token joins its nearest
    cluster by itself. A pretrained model's queries are not its keys: both are routed by the same centroids, each
    around its own mean.
    """

    name: ClassVar[str] = "routing"
    summary: ClassVar[str] = "Routing Transformer: window and sinks, and far keys in the query's k-means cluster."
    adapter_kind: ClassVar[str | None] = "routing"
    editable: ClassVar[bool] = False

    form: str = option(
        "token",
        "token is what decoding runs: each joins its nearest cluster; published gives each cluster an equal share of "
        "the text, which lets later tokens change earlier outputs.",
        choices=("token", "published"),
    )
    local_heads: float = option(
        0.0, "Share of the heads that keep window and sinks alone; the paper's is 0.5.", minimum=0.0, maximum=1.0
    )

    @property
    def served(self) -> bool:
        """True for clusters that each token joins by itself."""
        return self.form == "token"

    @property
    def leaks(self) -> bool:
        """True for clusters that choose among all tokens."""
        return self.form == "published"

    def prepare_heads(
        self, query: torch.Tensor, key: torch.Tensor, layer: int, adapter: Any, first_real: torch.Tensor | None
    ) -> Prepared:
        """Keys (B, Hkv, N) and queries (B, Hq, N); see Variant.prepare_heads."""
        from focus_core.routing.sets import top_groups

        if adapter.config.groups != self.groups:
            raise InvalidInput(
                f"The adapter has {adapter.config.groups} clusters and the setting groups is {self.groups}.",
                f"Set groups to {adapter.config.groups}.",
            )
        keys, queries = adapter.logits(layer, key, "keys"), adapter.logits(layer, query, "queries")
        if self.form == "published":
            from focus_core.routing.online import nearest_share

            return Prepared(nearest_share(keys, first_real), nearest_share(queries, first_real))
        return Prepared(top_groups(keys, self.key_topk), top_groups(queries, self.query_topk))

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        import torch

        from focus_core.kernels.focus import focus_attention

        if self.form == "published" and call.query.shape[2] != call.key.shape[2]:
            raise Unsupported(
                "The published clusters choose among all tokens and cannot decode with a cache.",
                "Use the form token, or run without a cache.",
            )
        kv_heads = call.key.shape[1]
        share = call.query.shape[1] // kv_heads
        assert call.cached is not None, "prepare_heads gives every token its set"
        keys = call.cached.expand(-1, kv_heads, -1)
        queries = self._queries(call).unflatten(1, (kv_heads, share))
        heads = call.query.unflatten(1, (kv_heads, share))
        # Query heads that share keys have sets of their own: each takes its turn, and keys are not copied.
        outputs = [
            focus_attention(
                heads[:, :, turn],
                call.key,
                call.value,
                queries[:, :, turn],
                keys,
                window=self.window,
                sinks=self.sinks,
                first_key=call.first_key,
                scale=call.scale,
                softcap=call.softcap,
                backend=self.backend,
            )
            for turn in range(share)
        ]
        return torch.stack(outputs, 2).flatten(1, 2)

    def pattern(self, call: AttentionCall) -> GroupPattern:
        """See Variant.pattern."""
        from focus_core.pattern import GroupPattern

        assert call.cached is not None, "prepare_heads gives every token its set"
        heads = call.query.shape[1]
        first = None if call.first_key is None else call.first_key.cpu().numpy()
        keys = call.cached.repeat_interleave(heads // call.cached.shape[1], 1)
        bits = self._queries(call).cpu().numpy(), keys.cpu().numpy()
        return GroupPattern(*bits, heads, self.window, self.sinks, first)

    def _queries(self, call: AttentionCall) -> torch.Tensor:
        """(B, Hq, Nq) sets of every query head; those of a local head are empty."""
        import torch

        heads = call.query.shape[1]
        sets = call.fresh.repeat_interleave(heads // call.fresh.shape[1], 1)
        local = torch.arange(heads, device=sets.device) < self._local(heads)
        return sets.masked_fill(local[:, None], 0)

    def _local(self, heads: int) -> int:
        return round(self.local_heads * heads)

    def cost(self, shape: Shape) -> Cost:
        """See Variant.cost; far pairs are those of balanced clusters. Routing itself is not counted, as in focus."""
        near, every = near_pairs(shape, self.window, self.sinks), near_pairs(shape, shape.length)
        routed = 1 - self._local(shape.heads) / shape.heads
        cost = cost_of(shape, near + (every - near) * self.share_of_far_pairs() * routed, shape.length)
        sets = shape.batch * shape.length * shape.kv_heads * SET_BYTES
        return Cost(cost.flops, cost.bytes + sets, cost.kv_bytes_per_token + shape.kv_heads * SET_BYTES)
