"""BigBird as a retrofit: blocks of a window, of the first tokens, and random ones (arXiv 2007.14062)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from focus_core.variants.base import AttentionCall, Cost, Knob, Shape, Variant, option
from focus_core.variants.counting import cost_of

if TYPE_CHECKING:
    import torch

    from focus_core.models.facts import ModelFacts
    from focus_core.pattern_blocks import BlockPattern


@dataclass(frozen=True)
class BigBird(Variant):
    """An encoder's method made causal: window and random blocks lie behind the query, and only first blocks are global.

    Random blocks are drawn from a hash of (seed, layer, head, row, column), so that they do not depend on the text,
    its length, or how it is cut into calls.
    """

    name: ClassVar[str] = "bigbird"
    summary: ClassVar[str] = "BigBird: blocks of the nearest tokens, the first ones, and a few at random."
    knobs: ClassVar[tuple[Knob, ...]] = (Knob("random_blocks", 0), Knob("window_blocks", 1))
    pairs_by_settings: ClassVar[bool] = True

    block: int = option(64, "Tokens a side of a block.", minimum=1, maximum=1024)
    window_blocks: int = option(3, "Nearest blocks that every query sees, its own included.", minimum=1)
    global_blocks: int = option(1, "First blocks that every query sees.", minimum=0)
    random_blocks: int = option(3, "Blocks in between that a row of queries draws at random, in every head.", minimum=0)
    seed: int = option(0, "Changes every draw.", minimum=0)
    backend: str = option(
        "auto",
        "What computes it; auto takes the fastest exact one.",
        choices=("auto", "reference", "chunked", "cpu", "triton", "flash"),
    )

    @property
    def window(self) -> int:
        """Tokens that, with the first ones, keep every pair: the random blocks of a short text are all there is."""
        return (self.window_blocks + self.random_blocks) * self.block

    @property
    def sinks(self) -> int:
        """Tokens of the global blocks."""
        return self.global_blocks * self.block

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        from focus_core.kernels.block_sparse import block_sparse_attention

        return block_sparse_attention(
            call.query,
            call.key,
            call.value,
            self._blocks(call),
            block_size=self.block,
            first_key=call.first_key,
            scale=call.scale,
            softcap=call.softcap,
            backend=self.backend,
        )

    def pattern(self, call: AttentionCall) -> BlockPattern:
        """See Variant.pattern."""
        from focus_core.pattern_blocks import BlockPattern

        first = None if call.first_key is None else call.first_key.cpu().numpy()
        heads, queries = call.query.shape[1:3]
        kept = self._blocks(call).cpu().numpy()
        return BlockPattern(kept, self.block, heads, queries, call.key.shape[2], first_key=first)

    def _blocks(self, call: AttentionCall) -> torch.Tensor:
        """(B, Hq, rows, columns) kept blocks, counted from the first real key of each row."""
        import torch

        from focus_core.kernels.block_sparse.grid import mask_shape

        batch, heads, queries, _ = call.query.shape
        keys = call.key.shape[2]
        rows, columns = mask_shape(batch, queries, keys, self.block, call.first_key)
        past = [keys - queries] * batch
        if call.first_key is not None:
            past = [max(0, keys - queries - first) for first in call.first_key.tolist()]
        made = {p: self._rows(call.layer, heads, p // self.block, rows, columns) for p in set(past)}
        return torch.stack([made[p] for p in past]).to(call.query.device)

    def _rows(self, layer: int, heads: int, first: int, rows: int, columns: int) -> torch.Tensor:
        """(heads, rows, columns) kept blocks of the rows from ``first`` on."""
        import torch

        row, column = torch.arange(first, first + rows)[:, None], torch.arange(columns)[None, :]
        fixed = (column <= row) & ((row - column < self.window_blocks) | (column < self.global_blocks))
        between = (column >= self.global_blocks) & (column <= row - self.window_blocks)
        if not self.random_blocks or not between.any():
            return fixed.expand(heads, -1, -1)
        drawn = []
        for head in range(heads):
            salt = (self.seed * 1_000_003 + layer * 8_191 + head * 131) & 0x7FFF_FFFF
            order = _hash(row * 0x9E37_79B1 + (column + 1) * 0x85EB_CA77 + salt * 0xC2B2_AE3D).double()
            chosen = order.masked_fill(~between, -1).topk(min(self.random_blocks, columns), dim=-1).indices
            drawn.append(torch.zeros_like(between).scatter_(-1, chosen, True) & between)
        return fixed | torch.stack(drawn)

    def knob_range(self, knob: Knob, length: int, facts: ModelFacts) -> tuple[float, float]:
        """See Variant.knob_range; both count blocks."""
        return knob.low, -(-length // self.block)

    def cost(self, shape: Shape) -> Cost:
        """See Variant.cost."""
        queries = shape.length if shape.queries is None else shape.queries
        pairs = 0
        for row in range((shape.length - queries) // self.block, -(-shape.length // self.block)):
            start, stop = max(row * self.block, shape.length - queries), min((row + 1) * self.block, shape.length)
            own = sum(range(start - row * self.block + 1, stop - row * self.block + 1))
            pairs += own + (stop - start) * self.block * self._earlier(row)
        one = self.block * (1 + self._earlier((shape.length - 1) // self.block))
        read = min(shape.length, queries - 1 + one * (shape.heads // shape.kv_heads))
        return cost_of(shape, pairs, read)

    def _earlier(self, row: int) -> int:
        """Whole blocks before its own that a row keeps."""
        beyond = max(0, row - self.window_blocks + 1)
        fixed = min(self.global_blocks, beyond)
        return min(row, self.window_blocks - 1) + fixed + min(self.random_blocks, beyond - fixed)


def _hash(x: torch.Tensor) -> torch.Tensor:
    """Numbers of 32 bits, as good as random."""
    x = x & 0xFFFF_FFFF
    for shift, factor in ((16, 0x21F0_AAAD), (15, 0x735A_2D97)):
        x = ((x ^ (x >> shift)) * factor) & 0xFFFF_FFFF
    return x ^ (x >> 15)
