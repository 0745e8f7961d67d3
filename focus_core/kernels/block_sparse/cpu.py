"""Block-sparse attention on a CPU, doing only the kept blocks. Forward only.

Rows of blocks that keep equally many are computed together: their keys and values are gathered, block by block, and
one fused operation attends to them. What is held at a time is a few rows, never all scores.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.block_sparse.grid import Grid, grids
from focus_core.kernels.checks import wide
from focus_core.kernels.focus.blocks import block_attention, piece_budget
from focus_core.kernels.focus.work import conduct, run_all

_FEW_ROWS = 2
"""Rows of blocks up to which single keys are gathered: laying all keys out in blocks first would cost more."""


def block_sparse_cpu(q, k, v, block_mask, *, block, causal, first, scale, softcap, return_lse):
    """Block-sparse attention by kept blocks; arguments as in ``block_sparse_attention``, already checked."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise InvalidInput(
            "The cpu backend of block_sparse_attention has no backward.",
            "Use torch.no_grad(), or backend='chunked' to train.",
        )
    if q.device.type != "cpu":
        raise InvalidInput(f"The cpu backend of block_sparse_attention got tensors on {q.device}.")
    batch, heads, queries, _ = q.shape
    out = torch.zeros(batch, heads, queries, v.shape[3], dtype=wide(q.dtype))
    lse = torch.full((batch, heads, queries), float("-inf"), dtype=out.dtype)

    def every() -> None:
        pieces = []
        for b, grid in enumerate(grids(batch, queries, k.shape[2], block, first)):
            if grid.rows:
                row = _Row(q[b], k[b], v[b], block_mask[b], out[b], lse[b], grid, block, causal, scale, softcap)
                pieces += row.pieces()
        run_all(pieces)

    conduct(every)
    out = out.to(q.dtype)
    return (out, lse) if return_lse else out


class _Kind(NamedTuple):
    """Block rows that one operation can compute together.

    Attributes:
        begin: offset of the first query in its block row.
        queries: queries of the block row.
        kept: number of kept blocks.
        last: the mask that the last of them needs: ``causal`` where it is the row's own, ``cut`` where keys end inside
            it, or none.
    """

    begin: int
    queries: int
    kept: int
    last: str


class _Row:
    """The work of one sequence of the batch."""

    def __init__(self, q, k, v, mask, out, lse, grid: Grid, block: int, causal: bool, scale: float, softcap) -> None:
        self.q, self.k, self.v, self.out, self.lse = q, k, v, out, lse
        self.grid, self.block, self.causal = grid, block, causal
        self.scale, self.softcap = scale, softcap
        keep = mask[:, : grid.rows, : grid.columns]
        if causal:
            own = grid.row + torch.arange(grid.rows)
            keep = keep & (torch.arange(grid.columns) <= own[:, None])
        self.keep = keep.repeat_interleave(q.shape[0] // keep.shape[0], dim=0)
        self.share = q.shape[0] // k.shape[0]
        self.laid = grid.rows > _FEW_ROWS
        if self.laid:
            self.keys, self.values = self._blocks(k), self._blocks(v)

    def _blocks(self, x: torch.Tensor) -> torch.Tensor:
        """(Hkv * columns, block * D): the real keys in blocks, zeros after the last."""
        size = self.grid.columns * self.block
        if self.grid.first == 0 and self.grid.length == size and x.is_contiguous():
            return x.view(x.shape[0] * self.grid.columns, -1)
        laid = x.new_zeros(x.shape[0], size, x.shape[2])
        laid[:, : self.grid.length] = x[:, self.grid.first :]
        return laid.view(x.shape[0] * self.grid.columns, -1)

    def pieces(self) -> list:
        """The work, the longest first."""
        grid, block = self.grid, self.block
        groups: dict[_Kind, list[tuple[int, int]]] = {}
        counts = self.keep.sum(-1).tolist()
        last = self.keep[..., -1].tolist()
        for h in range(len(counts)):
            for r in range(grid.rows):
                if counts[h][r]:
                    groups.setdefault(self._kind(r, counts[h][r], h, last[h][r]), []).append((h, r))
        cost = {kind: block * kind.kept * kind.queries for kind in groups}
        budget = piece_budget(sum(cost[kind] * len(found) for kind, found in groups.items()))
        pieces = []
        for kind in sorted(groups, key=lambda kind: -cost[kind]):
            each = max(1, budget // cost[kind])
            found = groups[kind]
            pieces += [partial(self._run, kind, found[at : at + each]) for at in range(0, len(found), each)]
        return pieces

    def _kind(self, r: int, kept: int, h: int, ends: bool) -> _Kind:
        grid, block = self.grid, self.block
        start, stop = self._span(r)
        begin = start - (grid.row + r) * block
        if self.causal and bool(self.keep[h, r, grid.row + r]):
            return _Kind(begin, stop - start, kept, "causal")
        return _Kind(begin, stop - start, kept, "cut" if ends and grid.length % block else "")

    def _span(self, r: int) -> tuple[int, int]:
        """Positions of a block row's queries."""
        start = (self.grid.row + r) * self.block
        return max(start, self.grid.begin), min(start + self.block, self.grid.length)

    def _run(self, kind: _Kind, found: list[tuple[int, int]]) -> None:
        grid = self.grid
        head, row = (torch.tensor(x) for x in zip(*found, strict=True))
        columns = self.keep[head, row].nonzero()[:, 1].view(len(found), kind.kept)
        k, v = self._gather(head // self.share, columns)
        at = [self._span(r)[0] - grid.begin + grid.skip for _, r in found]
        q = torch.stack([self.q[h, a : a + kind.queries] for (h, _), a in zip(found, at, strict=True)])
        out, lse = block_attention(
            q[:, None], k[:, None], v[:, None], self._mask(kind), scale=self.scale, softcap=self.softcap
        )
        for n, ((h, _), a) in enumerate(zip(found, at, strict=True)):
            self.out[h, a : a + kind.queries] = out[n, 0]
            self.lse[h, a : a + kind.queries] = lse[n, 0]

    def _gather(self, head: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(n, kept * block, D) keys and values."""
        n, kept = columns.shape
        if self.laid:
            index = (head[:, None] * self.grid.columns + columns).view(-1)
            return tuple(x.index_select(0, index).view(n, kept * self.block, -1) for x in (self.keys, self.values))
        tokens = columns[:, :, None] * self.block + torch.arange(self.block)
        tokens = tokens.view(n, -1).clamp_max(self.grid.length - 1) + self.grid.first
        heads = head.tolist()
        return tuple(
            torch.stack([x[h].index_select(0, t) for h, t in zip(heads, tokens, strict=True)]) for x in (self.k, self.v)
        )

    def _mask(self, kind: _Kind) -> torch.Tensor:
        """Additive (1, 1, queries, kept * block): only the last kept block has pairs to hide."""
        mask = torch.zeros(kind.queries, kind.kept * self.block)
        key = torch.arange(self.block)
        if kind.last == "causal":
            query = kind.begin + torch.arange(kind.queries)
            mask[:, -self.block :].masked_fill_(key > query[:, None], float("-inf"))
        elif kind.last == "cut":
            mask[:, -self.block :].masked_fill_(key >= self.grid.length % self.block, float("-inf"))
        return mask[None, None]
