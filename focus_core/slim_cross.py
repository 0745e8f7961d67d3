"""Slim caches for the cross-attention of encoder-decoders: the encoder's output once for all layers, or keys alone.

The decoder's self-attention stays as it is. Whisper and T5 of transformers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from focus_core import compat
from focus_core.errors import InvalidInput, Unsupported
from focus_core.kernels.slim import slim_attention
from focus_core.models.projections import read_projection
from focus_core.slim_layer import between

CACHES = ("x", "k", "dense")
_KNOWN = {"WhisperAttention": ("encoder_attn", "num_heads", ("q_proj", "k_proj", "v_proj", "out_proj"))}
_KNOWN |= {"T5Attention": ("EncDecAttention", "n_heads", ("q", "k", "v", "o"))}
"""Class: its name in a decoder layer, where it keeps its number of heads, and its projections."""


@contextmanager
def slim_cross(model: nn.Module, cache: str = "x", *, order: str = "auto") -> Iterator[None]:
    """Let the cross-attentions of a Whisper or T5 model cache something smaller inside a ``with`` block.

    ``model.generate(...)`` works as always and gives the same tokens; ``cross_cache_bytes`` measures its cache.

    Args:
        model: a WhisperForConditionalGeneration or T5ForConditionalGeneration, or their models without a head.
        cache: ``x``: one copy of the encoder's output (B, N, d) for all layers, from which every layer makes its keys
            and values: no inverse. ``k``: every layer's keys, and values by W_K^-1 W_V; not for T5's wide projections.
            ``dense``: the model's own.
        order: as in ``slim_attention``.

    Raises:
        Unsupported: no cross-attention of these classes; a projection without an inverse; and from the model's
            forward a static cache, a mask that differs between queries, dropout, or a wish for attention weights.
        InvalidInput: no such cache.
    """
    if cache not in CACHES:
        raise InvalidInput(f"There is no cache {cache!r}.", f"It can be {', '.join(CACHES)}.")
    layers = [] if cache == "dense" else [_Cross(m, cache, order) for m in cross_attentions(model)]
    for layer in layers:
        layer.first = layers[0].module.layer_idx
        layer.module.forward = layer.forward
    try:
        yield
    finally:
        for layer in layers:
            del layer.module.forward


def cross_attentions(model: nn.Module) -> list[Any]:
    """The cross-attention modules of a Whisper or T5 model, in layer order.

    Raises:
        Unsupported: there are none.
    """
    named = {name for name, _, _ in _KNOWN.values()}
    found: list[Any] = [m for path, m in model.named_modules() if path.rsplit(".", 1)[-1] in named]
    if not found or any(type(m).__name__ not in _KNOWN for m in found):
        raise Unsupported(
            f"{type(model).__name__} has no cross-attention that can keep another cache.", "Use Whisper or T5."
        )
    return sorted(found, key=lambda m: m.layer_idx)


def cross_cache_bytes(cache: Any) -> int:
    """Bytes of memory that the cross-attention part of an EncoderDecoderCache holds, measured."""
    from focus_core.benchmark.cache_probe import storage_by_layer

    return sum(storage_by_layer(cache.cross_attention_cache))


def measure_cross(
    model: Any, inputs: dict[str, torch.Tensor], *, caches: Sequence[str] = CACHES, new_tokens: int = 16
) -> list[dict[str, Any]]:
    """Generate greedily with each cache and compare with the model's own.

    Args:
        model: a WhisperForConditionalGeneration or T5ForConditionalGeneration.
        inputs: what ``generate`` takes: ``input_features``, or ``input_ids`` with an ``attention_mask``.
        caches: of ``CACHES``.
        new_tokens: tokens to generate.

    Returns:
        One row a cache: ``{cache, reason, bytes, dense_bytes, same_tokens, tokens, max_difference, seconds}``: measured
        bytes of the cross-attention's cache, how many of the ``tokens`` are the model's own, and the largest difference
        of a logit before the first that is not. Where the model cannot have it, ``reason`` says why and the rest is
        None.
    """
    wanted = _generated(model, inputs, new_tokens)
    rows = []
    for cache in caches:
        try:
            with slim_cross(model, cache):
                got = _generated(model, inputs, new_tokens)
        except Unsupported as problem:
            rows.append({"cache": cache, "reason": problem.message, **dict.fromkeys(_MEASURED)})
            continue
        same = (got["tokens"] == wanted["tokens"]).all(0).long().cumprod(0).sum()
        steps = min(int(same) + 1, len(got["logits"]))
        apart = max(float((a - b).abs().max()) for a, b in zip(got["logits"][:steps], wanted["logits"], strict=False))
        values = (got["bytes"], wanted["bytes"], int(same), got["tokens"].shape[1], apart, got["seconds"])
        rows.append({"cache": cache, "reason": "", **dict(zip(_MEASURED, values, strict=True))})
    return rows


_MEASURED = ("bytes", "dense_bytes", "same_tokens", "tokens", "max_difference", "seconds")


def _generated(model: Any, inputs: dict[str, torch.Tensor], new_tokens: int) -> dict[str, Any]:
    settings = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, "num_beams": 1}
    caches: list[Any] = []

    def see(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        caches[:] = [compat.attention_arguments(module, args, kwargs)["cache"]]

    # What generate() returns may be a copy in parts, and not what was held.
    watching = cross_attentions(model)[-1].register_forward_pre_hook(see, with_kwargs=True)
    try:
        began = time.perf_counter()
        with torch.no_grad():
            out = model.generate(**inputs, **settings, return_dict_in_generate=True, output_logits=True)
        seconds = time.perf_counter() - began
    finally:
        watching.remove()
    tokens = out["sequences"][:, -new_tokens:]
    return {"tokens": tokens, "logits": out["logits"], "bytes": cross_cache_bytes(caches[0]), "seconds": seconds}


class _Cross:
    """One cross-attention with another cache; ``forward`` stands in for its module's."""

    def __init__(self, module: Any, cache: str, order: str) -> None:
        _, heads, names = _KNOWN[type(module).__name__]
        self.module, self.cache, self.order = module, cache, order
        self.heads = int(getattr(module, heads))
        self.first = 0
        key, value = (read_projection(getattr(module, name)) for name in names[1:3])
        self.key, self.value, self._names = key, value, names
        self.matrix: torch.Tensor | None = None
        if cache == "k":
            if key.weight.shape[0] != key.weight.shape[1]:
                raise Unsupported(
                    f"Its key projections map {key.weight.shape[0]} to {key.weight.shape[1]} numbers and have no "
                    f"inverse on the left.",
                    "Use cache='x', which is smaller too.",
                )
            self.matrix = between(key.weight, value.weight).to(key.weight.dtype)

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple:
        given = {"hidden_states": hidden_states} | compat.attention_arguments(
            self.module, (hidden_states, *args), kwargs
        )
        if given.get("output_attentions"):
            raise Unsupported("output_attentions asks for attention weights, which a slim cache does not have.")
        if self.module.training and self.module.dropout:
            raise Unsupported("The model is in training mode with dropout.", "Call model.eval().")
        query = getattr(self.module, self._names[0])(hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        state = self._state(given["cache"], given["key_value_states"])
        x = self.cache == "x"
        out = slim_attention(
            query,
            state,
            key_weight=self.key.weight if x else None,
            value_weight=self.value.weight if x else self.matrix,
            key_bias=self.key.bias,
            value_bias=self.value.bias,
            causal=False,
            key_mask=_key_mask(given.get("attention_mask", given.get("mask")), state),
            scale=self.module.scaling,
            order=self.order,
        )
        out = getattr(self.module, self._names[3])(out.transpose(1, 2).flatten(2))
        return (out, given.get("position_bias"), None) if type(self.module).__name__ == "T5Attention" else (out, None)

    def _state(self, cache: Any, encoded: torch.Tensor) -> torch.Tensor:
        """(B, N, w) what is cached of the encoder's output; written by the first forward, and by one layer for x."""
        made = (lambda: encoded) if self.cache == "x" else (lambda: encoded @ self.key.weight)
        if cache is None:
            return made()
        if not hasattr(cache, "cross_attention_cache"):
            raise Unsupported(f"A cache of type {type(cache).__name__} has no part for cross-attention.")
        layer = self.module.layer_idx
        owner = self.first if self.cache == "x" else layer
        if not cache.is_updated.get(layer):
            _keep(cache.cross_attention_cache, layer, encoded, made() if owner == layer else None)
            cache.is_updated[layer] = True
        kept = getattr(cache.cross_attention_cache.layers[owner], "state", None)
        if kept is None:
            raise Unsupported("The cross-attention's cache was begun by the model itself.", "Start a new one.")
        return kept[:, 0]


def _keep(cache: Any, layer: int, encoded: torch.Tensor, state: torch.Tensor | None) -> None:
    """Let a layer of a new cache hold no keys and values of the encoder's tokens, and their state if it is given."""
    from transformers.cache_utils import DynamicLayer

    from focus_core.cache import begin_packing
    from focus_core.variants.base import Packed

    kind = type(cache.layers[layer]) if layer < len(cache.layers) else cache.layer_class_to_replicate
    if kind is not DynamicLayer:
        raise Unsupported(f"A cross-attention cache of {getattr(kind, '__name__', kind)} cannot be made smaller.")
    nothing, kept = encoded[:, None, :, :0], None if state is None else state[:, None]
    begin_packing(cache, layer, lambda key, value: Packed(key, value, kept), ("slim_cross",))
    cache.layers[layer].update(nothing, nothing)
    cache.layers[layer].fresh = None


def _key_mask(mask: torch.Tensor | None, state: torch.Tensor) -> torch.Tensor | None:
    """(B, N) which of the encoder's tokens exist, of a mask that is the same for every query and head."""
    if mask is None:
        return None
    if mask.dim() == 4:
        if (mask != mask[:, :1, :1]).any():
            raise Unsupported("The cross-attention's mask differs between queries, which no encoder's padding does.")
        mask = mask[:, 0, 0]
    real = mask if mask.dtype == torch.bool else mask > -1.0 if mask.is_floating_point() else mask.bool()
    return real.expand(state.shape[0], -1)
