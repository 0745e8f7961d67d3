"""How a tensor of tokens lies in memory, as one plane of rows that the GPU's copy engine reads."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Plane(NamedTuple):
    """Rows of ``group`` tokens. A head's rows begin at row ``row_b * b + row_h * h`` and number ``col_h * h``.

    Attributes:
        places: ``row_b``, ``row_h`` and ``col_h``.
        shape: rows, and numbers of a row, that are read.
        step: numbers from a row to the next.
    """

    places: tuple[int, int, int]
    shape: tuple[int, int]
    step: int

    def descriptor(self, x: torch.Tensor, block: list[int]) -> Any:
        """What a kernel reads blocks of the plane through."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(x, list(self.shape), [self.step, 1], block)


def plane_of(x: torch.Tensor, group: int = 1) -> Plane | None:
    """``x`` (B, H, N, D) in rows of ``group`` tokens; None where the copy engine cannot read it so.

    It needs Hopper, rows that begin at multiples of 16 bytes, and heads that lie one after the other by whole rows
    (heads first), or side by side in each token (tokens first). Tokens after the last whole row are left out.
    """
    batch, heads, tokens, dim = x.shape
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < (9, 0):
        return None
    by_b, by_h, by_t, one = x.stride()
    step, rows = group * by_t, tokens // group
    if one != 1 or rows == 0 or x.data_ptr() % 16 or by_t * x.element_size() % 16:
        return None
    row_b = row_h = col_h = 0
    if batch > 1:
        if by_b % step:
            return None
        row_b = by_b // step
    if heads > 1:
        if by_h >= step and by_h % step == 0:
            row_h = by_h // step
        elif by_h > 0 and (heads - 1) * by_h + dim <= by_t and by_h * x.element_size() % 16 == 0:
            col_h = by_h
        else:
            return None
    shape = ((batch - 1) * row_b + (heads - 1) * row_h + rows, (group - 1) * by_t + (heads - 1) * col_h + dim)
    return Plane((row_b, row_h, col_h), shape, step) if max(shape) < 1 << 31 else None
