"""Whether a model's own weights are the very same ones before and after."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def named_weights(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Every parameter and buffer of a model by its name, sorted by it; one that has two names stands under both."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return sorted(named, key=lambda one: one[0])


def hash_of(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 in hexadecimal of names, shapes, number formats and all bytes.

    Args:
        named: what ``named_weights`` gives; kept from before a retrofit, it tells of the same tensors inside it.
    """
    import torch

    found = hashlib.sha256()
    for name, tensor in named:
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().contiguous().flatten()
        found.update(memoryview(flat.view(torch.uint8).cpu().numpy()) if flat.numel() else b"")
    return found.hexdigest()
