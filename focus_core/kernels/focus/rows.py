"""Views of (batch, heads, tokens, dim) tensors as plain rows, so that gathers need no transposed copy."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Rows(NamedTuple):
    """A tensor as rows of ``dim`` numbers; row of (b, h, n) = ``b * batch + h * head + n * token``."""

    data: torch.Tensor
    batch: int
    head: int
    token: int

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """The rows at ``index``, in its shape with the dim appended."""
        return self.data.index_select(0, index.reshape(-1)).view(*index.shape, self.data.shape[1])


def rows_of(x: torch.Tensor) -> Rows:
    """Rows of a (B, H, N, D) tensor; copies only when its strides are not whole rows."""
    dim = x.shape[3]
    strides = x.stride()
    if strides[3] != 1 or any(s % dim for s in strides[:3]) or min(strides[:3]) < dim:
        x = x.contiguous()
        strides = x.stride()
    steps = [s // dim for s in strides[:3]]
    count = 1 + sum((n - 1) * s for n, s in zip(x.shape[:3], steps, strict=True))
    return Rows(x.as_strided((count, dim), (dim, 1)), *steps)
