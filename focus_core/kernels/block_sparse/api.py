"""The public entry of block-sparse attention: checks, then one of the backends."""

from __future__ import annotations

import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.block_sparse.chunked import block_sparse_chunked
from focus_core.kernels.block_sparse.cpu import block_sparse_cpu
from focus_core.kernels.block_sparse.flash import block_sparse_flash
from focus_core.kernels.block_sparse.grid import mask_shape
from focus_core.kernels.block_sparse.reference import block_sparse_reference
from focus_core.kernels.block_sparse.triton_applies import flash_refusal, triton_refusal
from focus_core.kernels.block_sparse.triton_run import block_sparse_triton
from focus_core.kernels.checks import check_first_key, check_qkv, check_softcap, scale_of

BACKENDS = ("auto", "reference", "chunked", "cpu", "triton", "flash")
_KERNELS = {
    "reference": block_sparse_reference,
    "chunked": block_sparse_chunked,
    "cpu": block_sparse_cpu,
    "triton": block_sparse_triton,
    "flash": block_sparse_flash,
}


def block_sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_mask: torch.Tensor,
    *,
    block_size: int = 128,
    causal: bool = True,
    first_key: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
):
    """Attention over kept blocks, by pairs causal inside them.

    Positions count from the first real key. Pair (i, j) is kept iff ``block_mask`` holds row ``i // block - row of the
    first query`` and column ``j // block``, and ``0 <= j <= i`` (not causal: ``0 <= j``). Weights are a softmax over
    the kept keys alone.

    Args:
        q: (B, Hq, Nq, D), the last Nq of the Nk positions (bottom-right causal).
        k: (B, Hkv, Nk, D); Hq is a multiple of Hkv.
        v: (B, Hkv, Nk, Dv).
        block_mask: (B, M, rows, columns) bool, M = 1 (all heads share), Hkv or Hq; at least the blocks that queries
            and keys lie in (``mask_shape``). Row 0 is the block of the first real query.
        block_size: tokens a side.
        causal: whether later keys are hidden.
        first_key: (B,) first real key of a left-padded row; None when no row is padded.
        scale: factor of the scores; ``1 / sqrt(D)`` when None.
        softcap: soft cap of the scores, before masking; None for none.
        backend: ``auto``, ``reference`` (the specification: holds all scores), ``chunked`` (masked stripes, any device,
            trains), ``cpu`` (does only the kept blocks), or on a GPU ``triton`` and ``flash`` (flash-attn-4), which do
            only the kept blocks too, forward only.
        return_lse: also return the natural-log log-sum-exp.

    Returns:
        (B, Hq, Nq, Dv), and with ``return_lse`` (B, Hq, Nq) in fp32 (fp64 for fp64). A query that keeps no key gives
        0 and -inf.

    Raises:
        InvalidInput: for arguments that do not fit, shown as they are.
        NotAvailable: for a backend that is not on this machine.
        Unsupported: for a call that the chosen backend does not serve, with the reason.
    """
    check_qkv(q, k, v)
    check_first_key(first_key, q.shape[0])
    check_softcap(softcap)
    _check_mask(q, k, block_mask, block_size, first_key)
    if backend not in BACKENDS:
        raise InvalidInput(f"There is no backend {backend!r}.", f"It can be {', '.join(BACKENDS)}.")
    first = None if first_key is None else first_key.to("cpu", torch.long).clamp_max(k.shape[2])
    factor = scale_of(q, scale)
    if backend == "auto":
        backend = _choose(q, k, v, block_size, causal, first, factor, softcap)
    return _KERNELS[backend](
        q,
        k,
        v,
        block_mask,
        block=block_size,
        causal=causal,
        first=first,
        scale=factor,
        softcap=softcap,
        return_lse=return_lse,
    )


def _choose(q, k, v, block: int, causal: bool, first, scale: float, softcap: float | None) -> str:
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return "chunked"
    if q.device.type == "cpu":
        return "cpu"
    if flash_refusal(q, k, v, block, causal, first, scale, softcap) is None:
        return "flash"
    return "triton" if triton_refusal(q, v, block, k.shape[2]) is None else "chunked"


def _check_mask(q, k, mask, block: int, first_key) -> None:
    if not isinstance(block, int) or block < 1:
        raise InvalidInput(f"block_size is {block}.", "It can be 1 or more tokens.")
    shapes = f"query {tuple(q.shape)}, key {tuple(k.shape)}, block mask {tuple(mask.shape)}, block size {block}"
    if mask.dtype != torch.bool or mask.dim() != 4:
        raise InvalidInput(f"A block mask is (batch, heads, rows, columns) of bools, not {mask.dtype}: {shapes}.")
    if mask.device != q.device:
        raise InvalidInput(f"The block mask is on {mask.device}, query on {q.device}.")
    rows, columns = mask_shape(q.shape[0], q.shape[2], k.shape[2], block, first_key)
    if mask.shape[0] != q.shape[0] or mask.shape[2] < rows or mask.shape[3] < columns:
        raise InvalidInput(f"The block mask needs {rows} rows and {columns} columns a sequence: {shapes}.")
    if mask.shape[1] not in (1, k.shape[1], q.shape[1]):
        raise InvalidInput(f"{mask.shape[1]} block masks cannot serve {q.shape[1]} heads: {shapes}.")
