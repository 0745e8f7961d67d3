"""The specification of the block scores, tile by tile."""

from __future__ import annotations

import torch

from focus_core.kernels.block_sparse.grid import Grid


def reference_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    grid: Grid,
    *,
    block: int,
    causal: bool,
    scale: float,
    softcap: float | None,
    stride: int | None = None,
    offsets: list[int] | None = None,
) -> torch.Tensor:
    """(Hq, rows, columns) of one sequence; ``offsets`` None scores by the true mass of each block.

    Args:
        q: (Hq, N, D), the real queries, at positions ``grid.begin`` and on.
        k: (Hkv, L, D), the real keys.
        grid: where the blocks lie.
        block: tokens a side of a block.
        causal: whether later keys are hidden.
        scale: factor of the scores.
        softcap: soft cap of the scores, or None.
        stride: tokens a side of a tile.
        offsets: see ``sampled_pairs``.
    """
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    pairs = scale * q.to(work) @ k.to(work).repeat_interleave(q.shape[0] // k.shape[0], 0).transpose(1, 2)
    heads, queries, keys = pairs.shape
    if offsets is None:
        if softcap is not None:
            pairs = softcap * torch.tanh(pairs / softcap)
        i, j = torch.arange(queries) + grid.begin, torch.arange(keys)
        if causal:
            pairs = pairs.masked_fill(j > i[:, None], float("-inf"))
        side, mass, rows_from = block, pairs.softmax(-1), grid.begin
        real = torch.ones(queries, dtype=torch.bool)
    else:
        assert stride is not None, "strided scores have a stride"
        side, rows_from = block // stride, grid.begin // stride
        count_rows, count_columns = -(-(grid.begin + queries) // stride) - rows_from, -(-keys // stride)
        means = torch.full((heads, count_rows, count_columns), float("-inf"), dtype=work)
        for r in range(count_rows):
            for c in range(count_columns):
                if causal and c > r + rows_from:
                    continue
                cells = [((r + rows_from) * stride + offsets[i] - grid.begin, c * stride + i) for i in range(stride)]
                real_cells = [(i, j) for i, j in cells if 0 <= i < queries and j < keys]
                if real_cells:
                    means[:, r, c] = sum(pairs[:, i, j] for i, j in real_cells) / len(real_cells)
        hidden = means.isinf()
        if softcap is not None:
            means = (softcap * torch.tanh(means / softcap)).masked_fill(hidden, float("-inf"))
        real = ~hidden.all(-1).all(0)
        mass = means.softmax(-1)
    scores = torch.zeros(heads, grid.rows, grid.columns, dtype=work)
    for r in range(mass.shape[1]):
        if real[r]:
            row = (r + rows_from) // side - grid.row
            for c in range(grid.columns):
                scores[:, row, c] += mass[:, r, c * side : (c + 1) * side].sum(-1)
    return scores
