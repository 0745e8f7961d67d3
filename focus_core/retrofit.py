"""Puts an attention variant into a transformers model, and takes it out again.

The variant is registered as an attention of transformers; a pre-hook on every attention module captures the hidden
state that feeds q, k and v. All state belongs to one ``Retrofit`` and one thread.
"""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from focus_core import compat
from focus_core.cache import (
    append_state,
    begin_packing,
    check_cache,
    check_state,
    key_positions,
    memo_of,
    owner_of,
    take_fresh,
)
from focus_core.errors import InvalidInput, Unsupported
from focus_core.kernels.dense import dense_attention
from focus_core.masking import check_positions, first_key_of, padding_mask, real_positions
from focus_core.models.facts import ModelFacts, attention_modules, facts_of
from focus_core.steps import Steps, steps_of
from focus_core.variants.base import CHANGES_MODEL, AttentionCall, NewTokens, Packed, Variant

NAME = "focus_lab"
"""The name that the attention and its mask have in transformers' interfaces."""

_ACTIVE: weakref.WeakKeyDictionary[nn.Module, Retrofit] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


@contextmanager
def retrofit(model: nn.Module, variant: Variant, adapter: Any = None, recorder: Any = None) -> Iterator[Retrofit]:
    """Run a model with another attention inside a ``with`` block; leaving it restores the model exactly.

    Layers with a sliding window of their own stay native. Gradients flow; nothing is detached.

    Args:
        model: a transformers causal language model.
        variant: the attention to put in.
        adapter: the trained module that the variant needs; None when it needs none.
        recorder: an object whose ``record(call, variant)`` is called once a layer and forward, before attention runs.

    Yields:
        The retrofit; its ``variant`` may be replaced between two forwards.

    Raises:
        Unsupported: the variant cannot serve the model; and from the model's forward, whatever would make the result
            differ from what the variant promises (caches, masks, dropout, ...), with the reason.
        InvalidInput: the model carries a variant already, or the adapter is not the one that the variant needs.
    """
    facts = facts_of(model)
    support = variant.supports(facts)
    label = variant.name or type(variant).__name__
    if not support.ok:
        raise Unsupported(f"{label} cannot serve {facts.name}: {support.reason}")
    kind = variant.adapter_kind
    # LoRA and trained weights change the model; a variant reads only what they hold for it.
    read = variant.read_adapter(adapter)
    if kind is not None and getattr(read, "kind", None) != kind and not (variant.adapter_optional and read is None):
        given = (
            "none was given" if adapter is None else f"{getattr(adapter, 'kind', type(adapter).__name__)!r} was given"
        )
        raise InvalidInput(f"{label} needs an adapter of kind {kind!r}; {given}.")
    active = Retrofit(model, variant, adapter, recorder, facts)
    if active._spread and getattr(adapter, "kind", None) in CHANGES_MODEL:
        raise Unsupported("What was trained lies on one device, and the model on several.", "Put the model on one.")
    attached = getattr(adapter, "attached", None)
    try:
        active._enter()
        with variant.attached(model), nullcontext() if attached is None else attached(model):
            yield active
    finally:
        active._leave()


class _Forward:
    """One forward of the whole model in one thread: which layers ran, and what was checked already."""

    def __init__(self, owner: nn.Module) -> None:
        self.owner = owner
        self.called: set[int] = set()
        self.checked: dict[tuple, tuple] = {}
        self.adapters: dict[torch.device, Any] = {}


class Retrofit:
    """A variant inside a model; made by ``retrofit``.

    Attributes:
        model: the model.
        variant: the attention of the layers without a window of their own.
        adapter: the trained module, or None; the variant reads ``variant.read_adapter`` of it.
        recorder: who watches, or None.
        facts: the model's facts; ``facts.native`` says which layers keep their own window.
    """

    def __init__(self, model: nn.Module, variant: Variant, adapter: Any, recorder: Any, facts: ModelFacts) -> None:
        self.model, self.variant, self.adapter, self.recorder, self.facts = model, variant, adapter, recorder, facts
        self._modules = attention_modules(model)
        self._hooks: list[Any] = []
        self._saved: list[tuple[Any, str | None]] | None = None
        self._local = threading.local()
        self._derived: dict[tuple[int, int], tuple[Variant, Callable[[], Any]]] = {}
        self._spread = len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1

    def _enter(self) -> None:
        wanted = set(self._modules)
        around = [
            m for m in self.model.modules() if isinstance(m, PreTrainedModel) and wanted.issubset(set(m.modules()))
        ]
        if not around or not around[-1]._can_set_attn_implementation():
            raise Unsupported(
                f"The attention of {type(self.model).__name__} cannot be replaced: its code does not ask "
                f"transformers' attention interface."
            )
        if getattr(around[-1].config, "output_attentions", False):
            raise Unsupported("config.output_attentions is on, and a retrofit has no attention weights to give.")
        with _LOCK:
            if any(m in _ACTIVE for m in self._modules):
                raise InvalidInput(
                    f"{self.facts.name} carries a variant already.", "Leave that retrofit block first; it cannot nest."
                )
            for module in self._modules:
                _ACTIVE[module] = self
            self._saved = compat.implementations(self.model)
        compat.register(NAME, _attention, padding_mask)
        around[-1].set_attn_implementation(NAME)
        others = {m.config._attn_implementation for m in self._modules} - {NAME}
        if others:
            raise Unsupported(f"The attention of {type(self.model).__name__} stays on {', '.join(map(str, others))}.")
        for module in around:
            self._hooks.append(module.register_forward_pre_hook(self._begin, with_kwargs=True))
            self._hooks.append(module.register_forward_hook(self._finish, always_call=True))
        for module in self._modules:
            self._hooks.append(module.register_forward_pre_hook(self._capture, with_kwargs=True))

    def _leave(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._saved is not None:
            compat.restore(self._saved)
            with _LOCK:
                for module in self._modules:
                    _ACTIVE.pop(module, None)
        self._local = threading.local()
        self._derived.clear()

    def _derive(self, module: nn.Module) -> Callable[[], Any]:
        """Computes what the variant derives of a layer's weights when it is first called."""
        layer, variant = module.layer_idx, self.variant
        known = self._derived.get((layer, id(variant)))
        if known is None:
            # The variant is kept with its result: another one could be given the same id.
            adapter = self._read(next(module.parameters()).device) if self._spread else self.adapter
            known = variant, functools.cache(lambda: variant.derive(self.model, module, layer, adapter))
            self._derived[layer, id(variant)] = known
        return known[1]

    def replayed(self) -> None:
        """The forward under way is a CUDA graph's, in which every layer has run with its attention."""
        forward = getattr(self._local, "forward", None)
        if forward is not None:
            forward.called.update(range(self.facts.layers))

    def _begin(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if kwargs.get("output_attentions"):
            raise Unsupported("output_attentions asks for attention weights, which a retrofit does not have.")
        forward = getattr(self._local, "forward", None)
        # The same module again means that its last forward was torn down without its hook.
        if forward is None or forward.owner is module:
            self._local.forward = _Forward(module)
            self._local.inputs = {}

    def _finish(self, module: nn.Module, args: tuple, output: Any) -> None:
        forward = getattr(self._local, "forward", None)
        if forward is None or forward.owner is not module:
            return
        self._local.forward = None
        missing = sorted(set(range(self.facts.layers)) - forward.called)
        # Without an output the forward failed, and its own error is on its way.
        if output is not None and missing:
            raise Unsupported(
                f"Layers {', '.join(map(str, missing))} of {self.facts.name} ran without the retrofitted attention."
            )

    def _capture(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        given = compat.attention_arguments(module, args, kwargs)
        cache = given["cache"]
        if cache is not None:
            layer, owner = module.layer_idx, owner_of(self.variant, self.adapter)
            native = self.facts.native[layer] is not None
            check_cache(cache, layer, native, owner)
            if self.variant.packs_keys and not native:
                variant, derive = self.variant, self._derive(module)
                hidden = given["hidden_states"]
                adapter = self._read(hidden.device)

                def pack(key: torch.Tensor, value: torch.Tensor) -> Packed:
                    with self._at(key.device):
                        return variant.pack(NewTokens(key, value, hidden, layer, adapter, derive))

                begin_packing(cache, layer, pack, owner)
        if not hasattr(self._local, "inputs"):
            self._local.inputs = {}
        self._local.inputs[module] = given

    def _attend(self, module, query, key, value, mask, dropout, scaling, extra) -> torch.Tensor:
        given = getattr(self._local, "inputs", {}).pop(module, None)
        if given is None:
            raise Unsupported(f"Layer {module.layer_idx} was run past its hooks, which see the hidden state.")
        self._refuse(module, dropout, extra)
        layer, cache = module.layer_idx, given["cache"]
        window = extra.get("sliding_window", self.facts.native[layer])
        positions = extra.get("position_ids", given.get("position_ids"))
        steps = steps_of(cache)
        # Padding was read when the cache got its room; to read it anew would wait for the device.
        first_key = self._first_key(mask, positions, key, query) if steps is None else steps.first
        fields = {
            "query": query,
            "key": key,
            "value": value,
            "hidden": given["hidden_states"],
            "layer": layer,
            "scale": query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            "first_key": first_key,
            "softcap": extra.get("softcap"),
            "sliding_window": window,
            "adapter": self._read(query.device),
        }
        if window is None:
            fields |= self._state(module, fields["hidden"], first_key, positions, query, key, cache, steps)
        call = AttentionCall(**fields)
        forward = getattr(self._local, "forward", None)
        if forward is not None:
            forward.called.add(layer)
            # A layer that gradient checkpointing runs again is outside of any forward: it is recorded once.
            if self.recorder is not None:
                self.recorder.record(call, self.variant)
        if window is None:
            output = self.variant.attend(call)
        else:
            options = {"window": window, "first_key": first_key, "scale": call.scale, "softcap": call.softcap}
            output = dense_attention(query, key, value, **options)
        return output.transpose(1, 2).contiguous()

    def _state(self, module, hidden, first_key, positions, query, key, cache, steps: Steps | None) -> dict[str, Any]:
        """The variant's state of all keys and of the new queries; appends to the cache."""
        layer, queries = module.layer_idx, hidden.shape[1]
        whole = steps is not None and steps.whole
        keys = steps.count + queries if steps is not None else key.shape[2]
        past, owner = keys - queries, owner_of(self.variant, self.adapter)
        # A step's own token is real.
        first_real = None if first_key is None or steps is not None else (first_key - past).clamp_min(0)
        fields: dict[str, Any] = {"derive": self._derive(module), "steps": steps if whole else None}
        packed = take_fresh(cache, layer) if cache is not None and self.variant.packs_keys else None
        new_key = key[:, :, past:]
        if packed is not None:
            new_key = packed.key
            fields |= {"new_key": packed.key, "new_value": packed.value}
            if self.variant.rotates_cached:
                fields["positions"] = key_positions(cache, layer, positions, first_key, queries)
        read = self._read(hidden.device)
        prepared = self.variant.prepare_heads(query, new_key, layer, read, first_real)
        if prepared is None:
            real = steps.positions if steps is not None and whole else self._positions(first_key, keys, hidden)
            prepared = self.variant.prepare(hidden, layer, real, read, first_key)
        cached = prepared.cached
        if packed is not None and packed.has_state:
            if cached is not None:
                raise TypeError(
                    f"{type(self.variant).__name__} keeps state by pack and by prepare: one place has room."
                )
            cached = cache.layers[layer].state
        elif cache is not None:
            if steps is None:
                check_state(cache, layer, past, cached is not None)
            if cached is not None:
                cached = append_state(cache, layer, cached, owner)
        if cache is not None and self.variant.keeps_memo:
            fields["memo"] = memo_of(cache, layer, owner)
        return fields | {"cached": cached, "fresh": prepared.fresh}

    def _positions(self, first_key, keys: int, hidden) -> torch.Tensor:
        """``real_positions``, made once a forward."""
        forward, device = getattr(self._local, "forward", None), hidden.device
        identity = (id(first_key), keys, hidden.shape[:2], device)
        if forward is None or identity not in forward.checked:
            made = real_positions(first_key, hidden.shape[0], keys, hidden.shape[1], device)
            if forward is None:
                return made
            forward.checked[identity] = (made, first_key)
        return forward.checked[identity][0]

    def _at(self, device: torch.device) -> AbstractContextManager[Any]:
        """Kernels start on the current device, which of a model on several must be the layer's."""
        return torch.cuda.device(device) if self._spread and device.type == "cuda" else nullcontext()

    def _read(self, device: torch.device) -> Any:
        """What the variant reads of the adapter, where a layer is: a model may lie on several devices."""
        read = self.variant.read_adapter(self.adapter)
        if not self._spread or read is None:
            return read
        forward = getattr(self._local, "forward", None)
        kept: dict[torch.device, Any] = {} if forward is None else forward.adapters
        if device not in kept:
            kept[device] = on_device(read, device)
        return kept[device]

    def _first_key(self, mask, positions, key, query) -> torch.Tensor | None:
        forward = getattr(self._local, "forward", None)
        identity = (id(mask), id(positions), key.shape[2], query.shape[2])
        if forward is not None and identity in forward.checked:
            return forward.checked[identity][0]
        first_key = first_key_of(mask, key.shape[2])
        check_positions(positions, mask, first_key, key.shape[2], query.shape[2])
        if forward is not None:
            forward.checked[identity] = (first_key, mask, positions)
        return first_key

    def _refuse(self, module, dropout, extra) -> None:
        if dropout:
            raise Unsupported(
                f"The model is in training mode with an attention dropout of {dropout}, which variants do not have.",
                "Call model.eval(), or set the config's attention dropout to 0.",
            )
        if not getattr(module, "is_causal", True) or extra.get("is_causal") is False:
            raise Unsupported("The model asks for attention in both directions; variants are causal.")
        for name, what in (("s_aux", "learned attention sinks"), ("position_bias", "a position bias")):
            if extra.get(name) is not None:
                raise Unsupported(f"Layer {module.layer_idx} has {what}, which variants do not have.")


def on_device(module: nn.Module, device: torch.device) -> nn.Module:
    """The module with its tensors on a device: copies that gradients flow through; itself where it is there."""
    if all(t.device == device for t in (*module.parameters(), *module.buffers())):
        return module
    found = copy.copy(module)
    found._modules = {n: m and on_device(m, device) for n, m in module._modules.items()}
    found._buffers = {n: None if b is None else b.to(device) for n, b in module._buffers.items()}
    found._parameters = {}
    for name, parameter in module._parameters.items():
        setattr(found, name, None if parameter is None else parameter.to(device))
    return found


def _attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    """The attention that transformers calls; finds the retrofit of the module it is called for."""
    active = _ACTIVE.get(module)
    if active is None:
        raise InvalidInput(f"A model is set to {NAME!r} without a retrofit.", "Run it inside `with retrofit(...)`.")
    with active._at(query.device):
        return active._attend(module, query, key, value, attention_mask, dropout, scaling, kwargs), None
