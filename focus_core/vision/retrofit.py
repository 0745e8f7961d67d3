"""Puts a vision attention into transformers' ViT, and takes it out again."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from focus_core import compat
from focus_core.errors import InvalidInput, Unsupported
from focus_core.vision.config import AttentionConfig
from focus_core.vision.karat import Operator, refuse_masks
from focus_core.vision.vit import attend

NAME = "focus_lab_vision"
"""The name that the attention has in transformers' interfaces."""

_CLASSES = ("ViTAttention", "ViTSelfAttention")
_ACTIVE: weakref.WeakKeyDictionary[nn.Module, tuple[int, VisionRetrofit]] = weakref.WeakKeyDictionary()


class VisionRetrofit:
    """A vision attention inside a transformers ViT; made by ``vision_retrofit``.

    Attributes:
        config: the attention.
        operators: one KArAt operator a layer (``universal``: the same one in all); empty for other kinds. They are
            trained by whoever uses the model: an untrained one replaces what the model knew.
        kept: the share of pairs that each layer kept in the last forward (XAttention).
    """

    def __init__(self, config: AttentionConfig, operators: nn.ModuleList) -> None:
        self.config, self.operators = config, operators
        self.kept: dict[int, float] = {}


@contextmanager
def vision_retrofit(
    model: nn.Module, config: AttentionConfig, operators: nn.ModuleList | None = None
) -> Iterator[VisionRetrofit]:
    """Run ``ViTModel`` or ``ViTForImageClassification`` with another attention; leaving restores it exactly.

    Args:
        model: transformers' model.
        config: the attention.
        operators: KArAt's, one a layer; new ones by default.

    Yields:
        The retrofit, with its operators.

    Raises:
        Unsupported: the model is not a ViT of transformers; from its forward: masks, dropout, another resolution.
        InvalidInput: the model carries one already, or the operators do not fit its layers.
    """
    # Older versions of transformers wrap the attention that computes in another of nearly the same name.
    named = [m for m in model.modules() if type(m).__name__ in _CLASSES]
    layers = [m for m in named if hasattr(m, "is_causal") and not any(c is not m and c in named for c in m.modules())]
    if not layers or not hasattr(model, "set_attn_implementation"):
        raise Unsupported(f"{type(model).__name__} has no attention that can be replaced.", "Give transformers' ViT.")
    if any(m in _ACTIVE for m in layers):
        raise InvalidInput("The model carries a vision attention already.", "Leave that block first; it cannot nest.")
    shape = model.config
    (high, wide), (down, along) = _pair(shape.image_size), _pair(shape.patch_size)
    tokens = (high // down) * (wide // along) + 1
    if config.kind == "karat" and operators is None:
        place = next(model.parameters())
        one = Operator(config, shape.num_attention_heads, tokens) if config.scope == "universal" else None
        made = [one or Operator(config, shape.num_attention_heads, tokens) for _ in layers]
        operators = nn.ModuleList(made).to(place.device, place.dtype)
    held = nn.ModuleList() if operators is None else operators
    if config.kind == "karat" and len(held) != len(layers):
        raise InvalidInput(f"There are {len(held)} operators for {len(layers)} layers.", "Give one a layer.")
    active = VisionRetrofit(config, held)
    saved = compat.implementations(model)
    from transformers.masking_utils import sdpa_mask

    compat.register(NAME, _attention, sdpa_mask)
    try:
        for i, module in enumerate(layers):
            _ACTIVE[module] = (i, active)
        model.set_attn_implementation(NAME)
        yield active
    finally:
        for module in layers:
            _ACTIVE.pop(module, None)
        compat.restore(saved)


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width of what transformers' configurations give as a number or as both."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **extra: Any,
) -> tuple[torch.Tensor, None]:
    """The attention that transformers calls."""
    found = _ACTIVE.get(module)
    if found is None:
        raise InvalidInput(f"A model is set to {NAME!r} without a retrofit.", "Run it inside vision_retrofit.")
    layer, active = found
    if dropout:
        raise Unsupported(f"The attention dropout is {dropout}, which a retrofit does not have.", "Call model.eval().")
    refuse_masks(attention_mask, bool(extra.get("is_causal")), active.config.kind)
    if extra.get("output_attentions"):
        raise Unsupported("output_attentions asks for weights that a retrofit does not hand on.", "Use vision.look.")
    operator = active.operators[layer] if len(active.operators) else None
    counts: list[float] = []
    mixed = attend(query, key, value, active.config, layer, operator, scaling, counts=counts)
    if counts:
        active.kept[layer] = counts[0]
    return mixed.transpose(1, 2).contiguous(), None
