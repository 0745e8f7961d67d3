"""Shape checks shared by the attention kernels; every message shows the actual shapes."""

from __future__ import annotations

import math

import torch

from focus_core.errors import InvalidInput


def check_qkv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Refuse query, key and value that do not fit together.

    Args:
        q: (B, Hq, Nq, D), the last Nq of the Nk positions.
        k: (B, Hkv, Nk, D).
        v: (B, Hkv, Nk, Dv).

    Raises:
        InvalidInput: with the shapes as they are.
    """
    shapes = f"query {tuple(q.shape)}, key {tuple(k.shape)}, value {tuple(v.shape)}"
    if not (q.dim() == k.dim() == v.dim() == 4):
        raise InvalidInput(f"Attention needs (batch, heads, tokens, dim) tensors: {shapes}.")
    if not (q.shape[0] == k.shape[0] == v.shape[0]):
        raise InvalidInput(f"Batch sizes differ: {shapes}.")
    if k.shape[1:3] != v.shape[1:3]:
        raise InvalidInput(f"Key and value differ in heads or tokens: {shapes}.")
    if q.shape[3] != k.shape[3]:
        raise InvalidInput(f"Query and key differ in head size: {shapes}.")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise InvalidInput(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads evenly: {shapes}.")
    if not 1 <= q.shape[2] <= k.shape[2]:
        raise InvalidInput(f"Queries must be the last 1 to {k.shape[2]} of the {k.shape[2]} positions: {shapes}.")
    if not (q.dtype == k.dtype == v.dtype and q.is_floating_point()):
        raise InvalidInput(f"Query, key and value need one float type, not {q.dtype}, {k.dtype}, {v.dtype}.")
    if not (q.device == k.device == v.device):
        raise InvalidInput(f"Query, key and value are on {q.device}, {k.device}, {v.device}.")


def check_first_key(first_key: torch.Tensor | None, batch: int) -> None:
    """Refuse a ``first_key`` that is not one integer a row."""
    if first_key is None:
        return
    if first_key.shape != (batch,) or first_key.is_floating_point() or first_key.dtype == torch.bool:
        raise InvalidInput(f"first_key must be ({batch},) integers, not {tuple(first_key.shape)} {first_key.dtype}.")


def scale_of(q: torch.Tensor, scale: float | None) -> float:
    """The factor of the scores: ``1 / sqrt(D)`` when none is given."""
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale)


def check_softcap(softcap: float | None) -> None:
    """Refuse a soft cap that is not positive."""
    if softcap is not None and not softcap > 0:
        raise InvalidInput(f"softcap is {softcap}.", "It can be a positive number, or None for no cap.")


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that softmax statistics are kept in: fp64 for fp64 input, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
