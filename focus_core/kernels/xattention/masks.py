"""Block masks: XAttention's own, and one that no later token can change."""

from __future__ import annotations

from typing import Any

import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.block_sparse import block_sparse_attention
from focus_core.kernels.block_sparse.grid import grids, mask_shape
from focus_core.kernels.checks import scale_of
from focus_core.kernels.xattention.api import check_scoring, serves, xattention_scores
from focus_core.kernels.xattention.select import select_blocks, shares
from focus_core.kernels.xattention.triton import triton_choice


def xattention_block_mask(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    block_size: int = 128,
    stride: int = 16,
    threshold: float | torch.Tensor = 0.9,
    causal: bool = True,
    **scoring,
) -> torch.Tensor:
    """The blocks that the published method keeps, each row by its own queries.

    A row depends on all queries of its block, so a query's keys depend on up to ``block_size - 1`` later tokens.

    Args:
        q: (B, Hq, Nq, D), the last Nq of the Nk positions.
        k: (B, Hkv, Nk, D).
        block_size: tokens a side of a block.
        stride: tokens a side of a tile.
        threshold: share of a row's score that is kept, or (Hq,) one a head.
        causal: whether later keys are hidden; column 0 and the row's own block are then always kept.
        scoring: ``mode``, ``first_key``, ``scale``, ``softcap``, ``seed``, ``rows_at_once`` and ``backend`` of
            ``xattention_scores``.

    Returns:
        (B, Hq, rows, columns) bool, as ``block_sparse_attention`` takes it.
    """
    backend, mode = scoring.get("backend", "auto"), scoring.get("mode", "antidiagonal")
    if block_size >= stride >= 1 and serves(backend, q, k, block_size, stride, mode):
        return _triton_mask(q, k, block_size, stride, threshold, causal, **scoring)
    found = xattention_scores(q, k, block_size=block_size, stride=stride, causal=causal, **scoring)
    return select_blocks(found.scores, found.possible, threshold, own=found.own if causal else None).mask


def _triton_mask(
    q,
    k,
    block: int,
    stride: int,
    threshold: float | torch.Tensor,
    causal: bool,
    mode: str = "antidiagonal",
    first_key: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    seed: int = 0,
    rows_at_once: int | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """``xattention_block_mask`` by Triton kernels: scored and selected without a copy of the scores."""
    check_scoring(q, k, block, stride, mode, first_key, softcap, rows_at_once, backend)
    sizes = mask_shape(q.shape[0], q.shape[2], k.shape[2], block, first_key)
    mask = torch.zeros(*q.shape[:2], *sizes, dtype=torch.bool, device=q.device)
    wanted = shares(threshold, q.shape[1], q.device).expand(q.shape[1]).contiguous()
    triton_choice(
        q,
        k,
        block=block,
        stride=stride,
        causal=causal,
        mode=mode,
        first_key=first_key,
        scale=scale_of(q, scale),
        softcap=softcap,
        mask=mask,
        wanted=wanted,
    )
    return mask


def causal_block_mask(
    queries: torch.Tensor,
    k: torch.Tensor,
    count: int,
    *,
    block_size: int = 128,
    stride: int = 16,
    threshold: float | torch.Tensor = 0.9,
    first_key: torch.Tensor | None = None,
    **scoring,
) -> torch.Tensor:
    """The blocks that each row keeps by the queries of the block before it: nothing later can change them.

    Row I keeps what row I - 1 of ``xattention_block_mask`` keeps, and its own block. Row 0 and row 1 keep everything.
    However a text is cut into calls, its tokens keep the same blocks.

    Args:
        queries: (B, Hq, Nk, D), the queries of all positions, those of earlier calls included.
        k: (B, Hkv, Nk, D).
        count: Nq, the last so many queries whose rows are wanted.
        block_size: as in ``xattention_block_mask``.
        stride: as in ``xattention_block_mask``.
        threshold: as in ``xattention_block_mask``.
        first_key: (B,) first real key of a left-padded row; None when no row is padded.
        scoring: as in ``xattention_block_mask``.

    Returns:
        (B, Hq, rows, columns) bool for the last ``count`` queries, as ``block_sparse_attention`` takes it.
    """
    batch, heads, keys, _ = queries.shape
    if keys != k.shape[2] or not 1 <= count <= keys:
        raise InvalidInput(f"{keys} queries, {k.shape[2]} keys and {count} rows of queries do not fit each other.")
    rows, columns = mask_shape(batch, count, keys, block_size, first_key)
    mask = torch.zeros(batch, heads, rows, columns, dtype=torch.bool, device=k.device)
    every = grids(batch, count, keys, block_size, first_key)
    alike = len(set(every)) == 1
    for b in range(1 if alike else batch):
        part = slice(0, batch) if alike else slice(b, b + 1)
        g = every[b]
        # Rows of blocks that are over before the wanted ones begin or end: all their tokens are there.
        low, high = max(0, g.row - 1), g.row + g.rows - 1
        own = torch.arange(g.rows, device=k.device)
        mask[part, :, own, own + g.row] = True
        if not g.rows or high <= low:
            continue
        end = g.first + high * block_size
        before = xattention_block_mask(
            queries[part, :, g.first + low * block_size : end],
            k[part, :, g.first : end],
            block_size=block_size,
            stride=stride,
            threshold=threshold,
            **scoring,
        )
        mask[part, :, low + 1 - g.row : g.rows, :high] |= before
    return mask


def xattention_warmed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, step: int, warmup: int = 5, block_size: int = 128, **settings
) -> torch.Tensor:
    """Attention in both directions for a model that runs many steps: dense for the first ``warmup`` of them.

    The first steps of a diffusion model lay out the picture, and without them dense the layout shifts.

    Args:
        q: (B, Hq, N, D).
        k: (B, Hkv, N, D).
        v: (B, Hkv, N, Dv).
        step: which step this is, from 0.
        warmup: steps that are dense.
        block_size: tokens a side of a block.
        settings: of ``xattention_block_mask``.
    """
    if step < 0 or warmup < 0:
        raise InvalidInput(f"step is {step} and warmup {warmup}.", "Both count steps, from 0.")
    if step < warmup:
        sizes = mask_shape(q.shape[0], q.shape[2], k.shape[2], block_size, settings.get("first_key"))
        mask = torch.ones(q.shape[0], 1, *sizes, dtype=torch.bool, device=q.device)
    else:
        mask = xattention_block_mask(q, k, block_size=block_size, causal=False, **settings)
    common: dict[str, Any] = {name: settings.get(name) for name in ("first_key", "scale", "softcap")}
    return block_sparse_attention(q, k, v, mask, block_size=block_size, causal=False, **common)
