"""The q, k and v projections of an attention module as plain matrices, whatever layout they are stored in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from focus_core.errors import Unsupported

_SPLIT = (("q_proj", "k_proj", "v_proj"), ("q", "k", "v"), ("query", "key", "value"))
_IN_A_ROW = ("c_attn", "qkv_proj", "Wqkv")
"""Modules that make q, then k, then v."""
_BY_HEAD = ("query_key_value",)
"""Modules that make q, k and v of the first head, then of the second."""


@dataclass(frozen=True)
class Projection:
    """``x @ weight + bias``: ``weight`` (inputs, outputs), the outputs head after head, and ``bias`` (outputs,)."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(..., outputs) of (..., inputs)."""
        made = x @ self.weight
        return made if self.bias is None else made + self.bias

    def part(self, take: Callable[[torch.Tensor], torch.Tensor]) -> Projection:
        """Some of the outputs: ``take`` is applied to the last dimension."""
        return Projection(take(self.weight), None if self.bias is None else take(self.bias))


def projections_of(module: nn.Module, heads: int, head_dim: int) -> tuple[Projection, Projection, Projection]:
    """Query, key and value projections of one attention module, as they are now (a LoRA update included).

    Args:
        module: a self-attention or cross-attention of transformers.
        heads: its query heads; as many keys and values where all three are made by one matrix.
        head_dim: numbers a head.

    Raises:
        Unsupported: the module stores them in a way that is not known here.
    """
    children = dict(module.named_children())
    for names in _SPLIT:
        if all(name in children for name in names):
            q, k, v = (read_projection(children[name]) for name in names)
            return q, k, v
    size = heads * head_dim
    for name in (*_IN_A_ROW, *_BY_HEAD):
        if name not in children:
            continue
        whole = read_projection(children[name])
        if whole.weight.shape[1] != 3 * size:
            continue
        by_head = name in _BY_HEAD

        def take(at: int, by_head: bool = by_head) -> Callable[[torch.Tensor], torch.Tensor]:
            def some(x: torch.Tensor) -> torch.Tensor:
                if not by_head:
                    return x[..., at * size : (at + 1) * size]
                return x.unflatten(-1, (heads, 3, head_dim))[..., at, :].flatten(-2)

            return some

        return whole.part(take(0)), whole.part(take(1)), whole.part(take(2))
    raise Unsupported(f"{type(module).__name__} keeps its k and v projections in a way that cannot be read.")


def read_projection(module: Any) -> Projection:
    """The matrix and bias of a Linear, of GPT-2's Conv1D, or of either with a LoRA update."""
    base = getattr(module, "base_layer", module)
    weight = getattr(base, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        raise Unsupported(f"The weights of {type(module).__name__} cannot be read as a matrix.")
    weight = weight.detach()
    if base is not module and not module.merged:
        for name in module.active_adapters:
            weight = weight + module.get_delta_weight(name).detach().to(weight.dtype)
    bias = getattr(base, "bias", None)
    turned = weight if type(base).__name__ == "Conv1D" else weight.T
    return Projection(turned, None if bias is None else bias.detach())
