"""Scores of blocks: what XAttention's four scorers say each block of pairs holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.block_sparse.grid import Grid, grids, mask_shape
from focus_core.kernels.checks import check_first_key, check_qkv, check_softcap, scale_of
from focus_core.kernels.xattention.cpu import oracle_scores, strided_scores
from focus_core.kernels.xattention.reference import reference_scores
from focus_core.kernels.xattention.triton import scoring_refusal, triton_choice

MODES = ("antidiagonal", "diagonal", "random", "oracle")
BACKENDS = ("auto", "reference", "cpu", "triton")


@dataclass(frozen=True)
class BlockScores:
    """Block scores of one call.

    Attributes:
        scores: (B, Hq, rows, columns) fp32 (fp64 for fp64): attention of the sampled pairs in each block; rows count
            from the block of the first real query, columns from the first real key. A row sums to its strided rows.
        possible: (B, 1, rows, columns) bool: blocks that hold a pair.
        own: (B, rows) the column of each row's own block.
    """

    scores: torch.Tensor
    possible: torch.Tensor
    own: torch.Tensor


def xattention_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    block_size: int = 128,
    stride: int = 16,
    causal: bool = True,
    mode: str = "antidiagonal",
    first_key: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    seed: int = 0,
    rows_at_once: int | None = None,
    backend: str = "auto",
) -> BlockScores:
    """Score every block of pairs by the softmax of a few of its scores.

    Each ``stride`` x ``stride`` tile of pairs is stood for by the mean of ``stride`` of its scores; a softmax over the
    tiles of a row (fp32), summed over the tiles of a block, is the block's score. Padded tokens take no part: a tile
    is the mean over its real pairs.

    Args:
        q: (B, Hq, Nq, D), the last Nq of the Nk positions.
        k: (B, Hkv, Nk, D).
        block_size: tokens a side, a multiple of ``stride``.
        stride: tokens a side of a tile.
        causal: whether later keys are hidden (whole tiles: about half of a diagonal tile's pairs are later ones).
        mode: ``antidiagonal`` (the paper's), ``diagonal`` and ``random`` sample other pairs of each tile; ``oracle`` is
            the true attention mass of each block, by pairs, at the price of dense attention.
        first_key: (B,) first real key of a left-padded row; None when no row is padded.
        scale: factor of the scores; ``1 / sqrt(D)`` when None.
        softcap: soft cap, of the means; None for none.
        seed: of ``random``.
        rows_at_once: strided rows (``oracle``: queries) that are held at a time; the scores do not depend on it, and
            the triton backend chooses for itself.
        backend: ``reference`` (tile by tile; for tests), ``cpu`` (matrix products, any device), ``triton`` (a GPU, by
            antidiagonals or diagonals) or ``auto`` (triton where it serves, else cpu).

    Raises:
        InvalidInput: for arguments that do not fit, shown as they are.
        NotAvailable, Unsupported: where the triton backend was asked for and cannot serve, with the reason.
    """
    check_scoring(q, k, block_size, stride, mode, first_key, softcap, rows_at_once, backend)
    if serves(backend, q, k, block_size, stride, mode):
        return _triton_scores(q, k, block_size, stride, causal, mode, first_key, scale_of(q, scale), softcap)
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    rows, columns = mask_shape(batch, queries, keys, block_size, first_key)
    every = grids(batch, queries, keys, block_size, first_key)
    settings: dict[str, Any] = {"block": block_size, "causal": causal, "scale": scale_of(q, scale), "softcap": softcap}
    if mode != "oracle":
        settings |= {"stride": stride, "offsets": sampled_pairs(stride, mode, seed)}
    score: Callable[..., torch.Tensor]
    if backend == "reference":
        score = reference_scores
    else:
        score = oracle_scores if mode == "oracle" else strided_scores
        settings["rows_at_once"] = rows_at_once
    scores = torch.zeros(batch, heads, rows, columns, device=q.device, dtype=_wide(q))
    possible, own = _possible(every, rows, columns, causal, q.device)
    for b, g in enumerate(every):
        if g.rows:
            scores[b, :, : g.rows, : g.columns] = score(q[b, :, g.skip :], k[b, :, g.first :], g, **settings)
    return BlockScores(scores.masked_fill_(~possible, 0.0), possible, own)


def serves(backend: str, q: torch.Tensor, k: torch.Tensor, block: int, stride: int, mode: str) -> bool:
    """Whether the Triton kernels compute a call: where they were asked for, or on a GPU where they can."""
    if backend == "auto":
        return q.is_cuda and scoring_refusal(q, block, stride, mode, k.shape[2]) is None
    return backend == "triton"


def check_scoring(
    q: torch.Tensor,
    k: torch.Tensor,
    block_size: int,
    stride: int,
    mode: str,
    first_key: torch.Tensor | None,
    softcap: float | None,
    rows_at_once: int | None,
    backend: str,
) -> None:
    """Refuse arguments of ``xattention_scores`` that do not fit, shown as they are."""
    check_qkv(q, k, k)
    check_first_key(first_key, q.shape[0])
    check_softcap(softcap)
    if mode not in MODES:
        raise InvalidInput(f"There is no mode {mode!r}.", f"It can be {', '.join(MODES)}.")
    if backend not in BACKENDS:
        raise InvalidInput(f"There is no backend {backend!r}.", f"It can be {', '.join(BACKENDS)}.")
    if not 1 <= stride <= block_size or block_size % stride:
        raise InvalidInput(
            f"A block of {block_size} tokens does not divide into strides of {stride}.",
            "block_size is a multiple of stride, such as 128 and 16.",
        )
    if rows_at_once is not None and rows_at_once < 1:
        raise InvalidInput(f"rows_at_once is {rows_at_once}.", "It can be 1 or more.")


def _triton_scores(q, k, block: int, stride: int, causal: bool, mode: str, first_key, scale, softcap) -> BlockScores:
    sizes = (q.shape[0], q.shape[2], k.shape[2], block, first_key)
    rows, columns = mask_shape(*sizes)
    scores = torch.zeros(*q.shape[:2], rows, columns, device=q.device)
    settings = {"block": block, "stride": stride, "causal": causal, "mode": mode, "first_key": first_key}
    triton_choice(q, k, **settings, scale=scale, softcap=softcap, scores=scores)
    return BlockScores(scores, *_possible(grids(*sizes), rows, columns, causal, q.device))


def _possible(every: list[Grid], rows: int, columns: int, causal: bool, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks that hold a pair, and each row's own column."""
    possible = torch.zeros(len(every), 1, rows, columns, dtype=torch.bool, device=device)
    own = torch.zeros(len(every), rows, dtype=torch.long, device=device)
    for b, g in enumerate(every):
        own[b] = g.row + torch.arange(rows, device=device)
        possible[b, 0, : g.rows, : g.columns] = True
        if causal:
            possible[b, 0] &= torch.arange(columns, device=device) <= own[b, :, None]
    return possible, own


def sampled_pairs(stride: int, mode: str, seed: int = 0) -> list[int]:
    """Which pairs of a tile are sampled: key ``i`` of the tile with query ``sampled_pairs(...)[i]`` of it."""
    if mode == "antidiagonal":
        return list(range(stride))[::-1]
    if mode == "diagonal":
        return list(range(stride))
    if mode == "random":
        return torch.randperm(stride, generator=torch.Generator().manual_seed(seed)).tolist()
    raise InvalidInput(f"The mode {mode!r} samples no pairs.", "antidiagonal, diagonal and random do.")


def _wide(q: torch.Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32
