"""Launches of Triton kernels that were compiled before, without looking for them again each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_READY: dict[tuple, Any] = {}
"""Compiled kernels, with their constants in order, by all that they were specialised for."""


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    tensors: Sequence[torch.Tensor],
    fixed: tuple[int, ...],
    free: tuple[float, ...],
    constants: dict[str, Any],
    **options: Any,
) -> None:
    """Launch a kernel: Triton's own search for what it compiled takes longer than many a kernel.

    Args:
        kernel: a ``triton.jit`` function, whose parameters are the next four in this order.
        grid: programs, in one to three dimensions.
        tensors: pointers.
        fixed: integers that the kernel is specialised for, such as strides.
        free: floats, and integers of the kernel's ``do_not_specialize``, below 2^31.
        constants: its ``constexpr`` parameters by name.
        options: warps and the like.
    """
    # What is compiled takes all three; Triton's search alone fills them up.
    grid = (*grid, 1, 1)[:3]
    aligned = all(x.data_ptr() % 16 == 0 for x in tensors)
    # As Triton does it: strides grow with a cache, and are no reason to compile anew.
    kinds = [(x == 1) + 2 * (x % 16 == 0) + 4 * (x >= 1 << 31) for x in fixed]
    key = (id(kernel), tensors[0].device, *(x.dtype for x in tensors), *kinds, *constants.values(), *options.values())
    ready = _READY.get(key) if aligned else None
    if ready is not None:
        compiled, values = ready
        compiled[grid](*tensors, *fixed, *free, *values)
        return
    compiled = kernel[grid](*tensors, *fixed, *free, **constants, **options)
    # Interpreted kernels are not compiled.
    if compiled is not None and aligned:
        _READY[key] = compiled, tuple(constants[name] for name in kernel.arg_names if name in constants)
