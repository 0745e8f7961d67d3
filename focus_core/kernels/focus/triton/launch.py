"""Launches that find their compiled kernel by a short key: Triton's own way to it takes longer than a short kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

_MOST = 1024
_INT32 = range(-(1 << 31), 1 << 31)


class Ready:
    """A Triton kernel, launched as before: ``kernel[grid](*arguments, **constants)``, with a grid of numbers.

    The first launch of a kind is Triton's own. What it compiled serves the later ones whose arguments agree in all
    that Triton looks at: types, alignment, the values of numbers that it specialises for, and all constants.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._names = [parameter.name for parameter in kernel.params]
        self._free = [parameter.do_not_specialize for parameter in kernel.params]
        self._known: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return functools.partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
        kinds: list[Any] = []
        for x, free in zip(arguments, self._free, strict=False):
            kind = type(x)
            if kind is int:
                kinds.append(x in _INT32 if free else x)
            elif isinstance(x, torch.Tensor):
                kinds += (x.dtype, x.data_ptr() % 16 == 0, x.device)
            elif kind is TensorDescriptor:
                kinds += (x.base.dtype, x.base.data_ptr() % 16 == 0, *x.block_shape)
            elif kind is not float:
                kinds += (kind, x)
        key = (*kinds, len(arguments), *settings, *settings.values())
        known = self._known.get(key)
        if known is not None:
            kernel, constants = known
            kernel[(*grid, 1, 1)[:3]](*arguments, *constants)
            return
        kernel = self.kernel[grid](*arguments, **settings)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = kernel, tuple(settings[name] for name in self._names[len(arguments) :])


def ready(kernel: Any) -> Any:
    """The kernel with short launches; as it is where it is interpreted. Stands above ``triton.jit``."""
    return Ready(kernel) if isinstance(kernel, triton.JITFunction) else kernel
