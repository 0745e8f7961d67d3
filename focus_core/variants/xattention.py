"""XAttention: blocks of pairs chosen by the antidiagonal sums of their scores (arXiv 2503.16428)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from focus_core.errors import InvalidInput
from focus_core.variants.base import AttentionCall, Cost, Knob, Prepared, Shape, Variant, option
from focus_core.variants.counting import cost_of, near_pairs

if TYPE_CHECKING:
    import torch

    from focus_core.pattern_blocks import BlockPattern


@dataclass(frozen=True)
class XAttention(Variant):
    """Whole blocks, chosen anew for every head and text from the scores of a few pairs.

    By default a block's tokens keep what the queries of the block before it chose: no later token can change that, so
    decoding runs the very same function. The published form, where a block's own queries choose, is ``voters="own"``.
    """

    name: ClassVar[str] = "xattention"
    summary: ClassVar[str] = "The blocks of pairs that hold most attention, found from a few of their scores."
    adapter_kind: ClassVar[str | None] = "thresholds"
    adapter_optional: ClassVar[bool] = True
    keeps_memo: ClassVar[bool] = True
    knobs: ClassVar[tuple[Knob, ...]] = (Knob("threshold", 0.0, 1.0),)

    threshold: float = option(
        0.9,
        "Share of a row's sampled attention that the kept blocks hold; 1 keeps everything. An adapter with a threshold "
        "for every head replaces it.",
        minimum=0.0,
        maximum=1.0,
    )
    stride: int = option(
        16,
        "Every stride-th diagonal of scores is sampled: 4, 8 or 16; larger is faster and coarser.",
        minimum=4,
        maximum=16,
    )
    block: int = option(128, "Tokens a side of a block: a power of two from 4 to 128.", minimum=4, maximum=128)
    voters: str = option(
        "before",
        "Whose queries choose a block's keys: before are those of the block before it, and decoding runs the same; own "
        "are the block's own, as published: later tokens of a block change what its earlier ones see, and decoding, "
        "token by token, is dense.",
        choices=("before", "own"),
    )
    mode: str = option(
        "antidiagonal",
        "Which scores are sampled: antidiagonal (the paper's), diagonal and random for comparison; oracle computes "
        "every score to find the best blocks, which costs as much as dense attention.",
        choices=("antidiagonal", "diagonal", "random", "oracle"),
    )
    dense_layers: int = option(0, "First layers that stay dense; the published code leaves 3.", minimum=0)
    seed: int = option(0, "Of the random mode.", minimum=0)

    def __post_init__(self) -> None:
        """Check the fields, and that strides divide blocks."""
        super().__post_init__()
        for name in ("stride", "block"):
            value = getattr(self, name)
            if value & (value - 1):
                raise InvalidInput(f"{self.name}.{name} is {value}.", "It can be a power of two.")
        if self.stride > self.block:
            raise InvalidInput(
                f"{self.name}.stride is {self.stride}, and a block has {self.block} tokens.",
                f"It can be 4 to {self.block}.",
            )

    @property
    def served(self) -> bool:
        """True where no later token can change what a query keeps: decoding runs the same function."""
        return self.voters == "before"

    @property
    def leaks(self) -> bool:
        """True for the published form: what a query keeps depends on the rest of its block."""
        return self.voters == "own"

    def dense_at(self, layer: int, queries: int) -> bool:
        """Whether a call keeps every pair: in a layer that is left dense, and where the published form decodes."""
        return layer < self.dense_layers or (self.voters == "own" and queries == 1)

    def prepare_heads(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        layer: int,
        adapter: Any,
        first_real: torch.Tensor | None,
    ) -> Prepared | None:
        """Keep the queries: those of a block that is over choose for the next one, also while decoding."""
        return Prepared(query) if self.voters == "before" and layer >= self.dense_layers else None

    def block_mask(self, call: AttentionCall) -> torch.Tensor:
        """(B, Hq, rows, columns) bool: the blocks that this call keeps; see ``block_sparse_attention``."""
        import torch

        from focus_core.kernels.block_sparse.grid import mask_shape
        from focus_core.kernels.xattention import causal_block_mask, xattention_block_mask

        batch, heads, count, _ = call.query.shape
        if self.dense_at(call.layer, count):
            shape = mask_shape(batch, count, call.key.shape[2], self.block, call.first_key)
            return torch.ones(batch, heads, *shape, dtype=torch.bool, device=call.query.device)
        if (known := self._remembered(call)) is not None:
            return known
        thresholds: float | torch.Tensor = self.threshold
        if call.adapter is not None:
            thresholds = call.adapter.thresholds[call.layer]
        settings: dict[str, Any] = {
            "block_size": self.block,
            "stride": self.stride,
            "threshold": thresholds,
            "mode": self.mode,
            "seed": self.seed,
            "first_key": call.first_key,
            "scale": call.scale,
            "softcap": call.softcap,
        }
        with torch.no_grad():
            if self.voters == "own":
                return xattention_block_mask(call.query, call.key, **settings)
            queries = call.query if call.cached is None else call.cached
            mask = causal_block_mask(queries, call.key, count, **settings)
        self._remember(call, mask)
        return mask

    def _rows(self, call: AttentionCall) -> list[tuple[int, int]]:
        """For every sequence, the block of its last query, and which row of this call's mask that is; -1 without."""
        from focus_core.kernels.block_sparse.grid import grids

        batch, _, count, _ = call.query.shape
        every = grids(batch, count, call.key.shape[2], self.block, call.first_key)
        return [(g.row + g.rows - 1, g.rows - 1) if g.rows else (-1, -1) for g in every]

    def _remember(self, call: AttentionCall, mask: torch.Tensor) -> None:
        """Keep the last row of a mask: the tokens that follow in its block keep the same blocks."""
        import torch

        if call.memo is None:
            return
        rows = self._rows(call)
        last = torch.stack([mask[b, :, max(0, row)] for b, (_, row) in enumerate(rows)])
        blocks = torch.tensor([block for block, _ in rows], device=mask.device)
        call.memo.keep((last, blocks), call.key.shape[2])

    def _remembered(self, call: AttentionCall) -> torch.Tensor | None:
        """The mask of one more token, where no sequence has begun another block since it was chosen."""
        keys = call.key.shape[2]
        if call.memo is None or self.voters == "own" or call.query.shape[2] > 1:
            return None
        # The token's own call may have been asked for its pattern already.
        found = call.memo.take(keys) or call.memo.take(keys - 1)
        if found is None:
            return None
        last, blocks = found
        rows = [block for block, _ in self._rows(call)]
        if blocks.tolist() != rows or min(rows) < 0:
            return None
        call.memo.keep(found, keys)
        return last[:, :, None]

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        from focus_core.kernels.block_sparse import block_sparse_attention
        from focus_core.kernels.dense import dense_attention

        common: dict[str, Any] = {"first_key": call.first_key, "scale": call.scale, "softcap": call.softcap}
        if self.dense_at(call.layer, call.query.shape[2]):
            return dense_attention(call.query, call.key, call.value, **common)
        mask = self.block_mask(call)
        return block_sparse_attention(call.query, call.key, call.value, mask, block_size=self.block, **common)

    def pattern(self, call: AttentionCall) -> BlockPattern:
        """See Variant.pattern."""
        from focus_core.pattern_blocks import BlockPattern

        kept = self.block_mask(call).cpu().numpy()
        first = None if call.first_key is None else call.first_key.cpu().numpy()
        heads, queries = call.query.shape[1:3]
        return BlockPattern(kept, self.block, heads, queries, call.key.shape[2], first_key=first)

    def cost(self, shape: Shape) -> Cost:
        """Counted for scores without any structure, the most that can be kept; scoring included.

        Real attention is far from flat: what a text keeps is measured, not counted.
        """
        cost = cost_of(shape, self.flat_pairs(shape), shape.length)
        queries_kept = shape.heads * shape.head_dim * shape.itemsize if self.voters == "before" else 0
        return Cost(
            cost.flops + 2.0 * shape.batch * shape.heads * shape.head_dim * self.scored_pairs(shape),
            cost.bytes,
            cost.kv_bytes_per_token + queries_kept,
        )

    def scored_pairs(self, shape: Shape) -> float:
        """Scores that a head and row computes to choose; a decoded token's share of its block's choice."""
        if self.voters == "own" and shape.queries == 1:
            return 0
        return near_pairs(shape, shape.length) / (1 if self.mode == "oracle" else self.stride)

    def flat_pairs(self, shape: Shape) -> int:
        """Pairs that a head and row keeps where all scores are equal."""
        begin = 0 if shape.queries is None else shape.length - shape.queries
        if self.voters == "own" and shape.queries == 1:
            return shape.length
        pairs = 0
        for row in range(begin // self.block, -(-shape.length // self.block)):
            start, stop = max(begin, row * self.block), min(shape.length, (row + 1) * self.block)
            earlier = self._flat_blocks(row) - 1 if self.voters == "own" else self._flat_blocks(row - 1)
            dropped = (row - earlier) * self.block
            pairs += (start + 1 + stop) * (stop - start) // 2 - dropped * (stop - start)
        return pairs

    def _flat_blocks(self, row: int) -> int:
        """Blocks that a row chooses, its own included, where all scores are equal."""
        if row < 1 or self.threshold >= 1:
            return row + 1
        tiles = self.block if self.mode == "oracle" else self.block // self.stride
        seen = [row * tiles + t + 1 for t in range(tiles)]
        one = sum(tiles / n for n in seen)
        missing = self.threshold * tiles - one - sum((t + 1) / n for t, n in enumerate(seen))
        return 2 + min(row - 1, max(0, math.ceil(missing / one - 1e-9)))
