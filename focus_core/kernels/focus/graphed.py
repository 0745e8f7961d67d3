"""A function of GPU tensors as one CUDA graph: its kernels start together, not one by one from Python."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from focus_core.errors import InvalidInput

_WARM = 2


@dataclass(frozen=True)
class _Captured:
    graph: Any
    inputs: tuple[torch.Tensor, ...]
    result: Any


class Graphed:
    """Runs a function by a CUDA graph of its own for every shape.

    Inputs are copied into the graph's own tensors; inputs that are one tensor stay one. Results are the graph's: the
    next call of the same shape overwrites them. The function must not wait for the GPU (``focus_attention`` does not
    where ``members`` is given) and its settings must not be tensors.
    """

    def __init__(self, function: Callable[..., Any], most: int = 8) -> None:
        """Args:
        function: takes tensors by position and settings by name.
        most: graphs that are kept; the one used longest ago goes first, and its memory with it.
        """
        if most < 1:
            raise InvalidInput(f"most is {most}.", "Keep at least one graph.")
        self._function = function
        self._most = most
        self._kept: OrderedDict[Any, _Captured] = OrderedDict()

    def __call__(self, *tensors: torch.Tensor, **settings: Any) -> Any:
        """The function's result for these tensors.

        Raises:
            InvalidInput: for tensors that are not on one GPU.
        """
        places = {str(x.device) for x in tensors}
        if len(places) != 1 or not tensors[0].is_cuda:
            raise InvalidInput(f"A CUDA graph needs tensors on one GPU, not on {', '.join(sorted(places))}.")
        with torch.cuda.device(tensors[0].device):
            twins = tuple(_first_like(tensors, n) for n in range(len(tensors)))
            kinds = tuple((x.shape, x.stride(), x.dtype, x.device) for x in tensors)
            key = kinds, twins, tuple(sorted(settings.items()))
            found = self._kept.get(key)
            if found is None:
                while len(self._kept) >= self._most:
                    self._kept.popitem(last=False)
                found = self._kept[key] = self._capture(tensors, twins, settings)
            self._kept.move_to_end(key)
            for n, (mine, given) in enumerate(zip(found.inputs, tensors, strict=True)):
                if twins[n] == n:
                    mine.copy_(given)
            found.graph.replay()
            return found.result

    def _capture(
        self, tensors: tuple[torch.Tensor, ...], twins: tuple[int, ...], settings: dict[str, Any]
    ) -> _Captured:
        own: list[torch.Tensor] = []
        for n, x in enumerate(tensors):
            own.append(
                own[twins[n]]
                if twins[n] < n
                else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
            )
        # Compiling and first allocations are no part of a graph.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            for _ in range(_WARM):
                self._function(*own, **settings)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            result = self._function(*own, **settings)
        return _Captured(graph, tuple(own), result)


def _first_like(tensors: tuple[torch.Tensor, ...], n: int) -> int:
    """Index of the first of the tensors that is the ``n``-th one: the same memory, read in the same way."""
    x = tensors[n]
    for at, y in enumerate(tensors[:n]):
        if (x.data_ptr(), x.shape, x.stride(), x.dtype) == (y.data_ptr(), y.shape, y.stride(), y.dtype):
            return at
    return n
