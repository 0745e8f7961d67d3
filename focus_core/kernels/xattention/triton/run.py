"""The whole choice of blocks by Triton kernels: strided rows a part at a time, then rows of blocks."""

from __future__ import annotations

import torch

from focus_core.kernels.block_sparse.grid import Grid, grids
from focus_core.kernels.block_sparse.planes import Plane, plane_of
from focus_core.kernels.focus.triton.tiles import LOG2_E
from focus_core.kernels.xattention.triton.choose import choose_blocks
from focus_core.kernels.xattention.triton.tiles import ScoreTile, score_rows, score_tile

_ROOM = 64 << 20
"""Bytes of sums that are always allowed; longer texts may take as many as their queries and keys do."""


def triton_choice(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    block: int,
    stride: int,
    causal: bool,
    mode: str,
    first_key: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    scores: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    wanted: torch.Tensor | None = None,
    tile: ScoreTile | None = None,
    copies: bool | None = None,
    room: int | None = None,
) -> None:
    """Write block scores, kept blocks, or both.

    Args:
        q: (B, Hq, Nq, D), the last Nq of the Nk positions.
        k: (B, Hkv, Nk, D).
        block: tokens a side of a block.
        stride: tokens a side of a tile of pairs.
        causal: whether later keys are hidden.
        mode: ``antidiagonal`` or ``diagonal``.
        first_key: (B,) first real key of a left-padded row; None when no row is padded.
        scale: factor of the scores.
        softcap: soft cap of the means, or None.
        scores: (B, Hq, rows, columns) fp32 of zeros, or None.
        mask: (B, Hq, rows, columns) bool of False, or None.
        wanted: (Hq,) fp64 on the device: share of a row's score that ``mask`` keeps.
        tile: sizes; those of ``score_tile`` when None.
        copies: whether the copy engine brings the rows; None where it can.
        room: bytes of sums held at a time; None for as many as q and k together, 64 MB at least.
    """
    q, k = (x.detach() if x.stride(3) == 1 else x.detach().contiguous() for x in (q, k))
    batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
    tile = tile or score_tile(q.dtype, q.shape[3])
    room = room or max(_ROOM, q.nbytes + k.nbytes)
    factor = scale / stride * LOG2_E
    factors = (factor, 0.0, 0.0) if softcap is None else (1.0, 2 * factor / softcap, softcap * LOG2_E)
    if wanted is None:
        wanted = torch.zeros(q.shape[1], dtype=torch.float64, device=q.device)
    every = grids(batch, queries, keys, block, first_key)
    alike = len(set(every)) == 1
    for b in range(1 if alike else batch):
        g, part = every[b], slice(0, batch) if alike else slice(b, b + 1)
        if g.rows:
            _one_grid(
                q[part, :, g.skip :],
                k[part, :, g.first :],
                None if scores is None else scores[part],
                None if mask is None else mask[part],
                wanted,
                g,
                block,
                stride,
                causal,
                mode == "antidiagonal",
                factors,
                tile,
                copies,
                room,
            )


def _one_grid(
    q, k, scores, mask, wanted, grid: Grid, block, stride, causal, reverse, factors, tile: ScoreTile, copies, room
) -> None:
    each = block // stride
    lines = q.shape[0] * q.shape[1]
    before = grid.begin - grid.row * block
    edges = bool(before or q.shape[2] != grid.rows * block or k.shape[2] != grid.columns * block)
    planes: tuple[Plane, Plane] | None = None
    if copies is not False and not edges and q.shape[3] % tile.part == 0:
        of_queries, of_keys = plane_of(q, stride), plane_of(k, stride)
        if of_queries is not None and of_keys is not None:
            planes = of_queries, of_keys
    assert planes is not None or not copies, "the copy engine cannot read these rows"
    # Whole tiles of rows at a time, so many that their sums fit; the first rows of a text see few blocks.
    whole = -(-max(tile.rows, each) // each)
    low = 0
    while low < grid.rows:
        rows = max(whole, _rows_that_fit(room, lines, each, grid, low, causal) // whole * whole)
        high = min(grid.rows, low + rows)
        blocks = min(grid.columns, grid.row + high) if causal else grid.columns
        sums = torch.empty(lines, (high - low) * each, blocks, dtype=torch.float32, device=q.device)
        tops = torch.empty(
            lines, sums.shape[1], -(-blocks * each // tile.columns), dtype=torch.float32, device=q.device
        )
        score_rows(
            q,
            k,
            planes,
            sums,
            tops,
            stride=stride,
            each=each,
            low=low * each,
            row_from=grid.row * each,
            before=before,
            reverse=reverse,
            causal=causal,
            edges=edges,
            factors=factors,
            tile=tile,
        )
        choose_blocks(
            sums,
            tops,
            scores,
            mask,
            wanted,
            each=each,
            per=tile.columns // each,
            row_low=low,
            own_from=grid.row,
            causal=causal,
        )
        low = high


def _rows_that_fit(room: int, lines: int, each: int, grid: Grid, low: int, causal: bool) -> int:
    """Rows of blocks from ``low`` whose sums take at most ``room`` bytes."""
    cells = room // (4 * lines * each)
    if not causal:
        return cells // grid.columns
    # rows * (row of the last + 1) <= cells
    seen = grid.row + low
    return int(((seen * seen + 4 * cells) ** 0.5 - seen) / 2)
