"""Slim attention: the cache holds keys alone, and values are made from them (arXiv 2503.05840)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from focus_core.kernels.slim_work import ORDERS, SlimWork
from focus_core.variants.base import AttentionCall, Cost, NewTokens, Packed, Shape, Support, Variant, option
from focus_core.variants.counting import near_pairs
from focus_core.variants.dense import near_pattern

if TYPE_CHECKING:
    import torch
    from torch import nn

    from focus_core.models.facts import ModelFacts
    from focus_core.pattern import GroupPattern
    from focus_core.slim_layer import SlimLayer


@dataclass(frozen=True)
class Slim(Variant):
    """Every causal pair, exactly as dense where numbers were exact; half the cache.

    What is cached of a token is its raw keys (before their bias, norm and rotation), its values, or the layer's input,
    and the model's own matrices make the rest of it. New tokens always have the model's own keys, and their own values
    unless ``prompt`` says otherwise, so that only what is read back from the cache carries a reconstruction error.
    An adapter of kind ``slim`` gives every layer its own form, as measured by ``slim_gate``.
    """

    name: ClassVar[str] = "slim"
    summary: ClassVar[str] = "Every pair; the cache holds keys alone, and values are made from them: half the bytes."
    adapter_kind: ClassVar[str | None] = "slim"
    adapter_optional: ClassVar[bool] = True
    packs_keys: ClassVar[bool] = True
    rotates_cached: ClassVar[bool] = True

    cache: str = option(
        "k",
        "What is kept of a token: k its raw keys, from which W_K^-1 W_V makes values; x the layer's input, without any "
        "inverse (where positions rotate keys, they are projected anew at every step); v its values (not with rotated "
        "keys). An adapter of kind slim decides layer by layer instead.",
        choices=("k", "x", "v"),
    )
    order: str = option(
        "auto",
        "values makes the values of all cached tokens, then weights them; weights weights the cached rows and projects "
        "the sums, one matrix for a query instead of one for a token; auto takes what has fewer operations.",
        choices=ORDERS,
    )
    prompt: str = option(
        "own",
        "own uses the model's values for a forward's new tokens, as decoding does for the newest; rebuilt makes those "
        "from the cached form too, so that one forward over a text measures what the reconstruction costs.",
        choices=("own", "rebuilt"),
    )

    def supports(self, facts: ModelFacts) -> Support:
        """See Variant.supports."""
        held = super().supports(facts)
        if not held.ok:
            return held
        size, hidden = facts.heads * facts.head_dim, facts.hidden_size
        if facts.heads != facts.kv_heads:
            kept = facts.kv_heads * facts.head_dim
            return Support(
                False,
                f"its {facts.heads} query heads share {facts.kv_heads} key heads (GQA): W_K maps {hidden} to {kept} "
                f"numbers and has no inverse, and the layer's input would take {hidden} numbers a token against "
                f"{2 * kept} for keys and values.",
            )
        if self.cache != "x" and size != hidden:
            return Support(
                False,
                f"its heads have {size} numbers and its hidden state {hidden}: W_K is not square and has no inverse; "
                f"cache=x needs none.",
            )
        if hidden >= 2 * size:
            return Support(False, f"its hidden state of {hidden} is no smaller than keys and values of {2 * size}.")
        if self.cache == "v" and facts.rotary:
            return Support(False, "positions rotate its keys, and a V-cache leaves no place for a rotation.")
        return Support(True)

    def form(self, layer: int, adapter: Any) -> str:
        """What one layer caches: ``k``, ``v``, ``x``, or ``dense`` for keys and values."""
        if getattr(adapter, "kind", None) != self.adapter_kind:
            return self.cache
        return adapter.config.forms[layer]

    def derive(self, model: nn.Module, module: nn.Module, layer: int, adapter: Any) -> SlimLayer:
        """The layer's matrices; see Variant.derive."""
        from focus_core.slim_layer import SlimLayer, parts_of

        return SlimLayer(parts_of(model, module), self.form(layer, adapter), layer)

    def stand_in(self, new: NewTokens) -> SlimLayer:
        """Random projections, which neither rotate nor normalise; see Variant.stand_in."""
        from focus_core.errors import InvalidInput
        from focus_core.slim_layer import SlimLayer, random_parts

        size = new.key.shape[1] * new.key.shape[3]
        if new.hidden.shape[-1] != size:
            raise InvalidInput(
                f"slim needs a key head for every query head, {new.hidden.shape[-1]} numbers together; the keys have "
                f"{size}.",
                "Set kv-heads to heads.",
            )
        return SlimLayer(random_parts(new.key), self.cache, new.layer, checked=True)

    def layer_report(self, layers: int, adapter: Any) -> list[dict[str, Any]]:
        """``{layer, form}`` of each layer; ``slim_gate`` says what it could keep, and why."""
        return [{"layer": layer, "form": self.form(layer, adapter)} for layer in range(layers)]

    def pack(self, new: NewTokens) -> Packed:
        """One state a token in place of its key and value; see Variant.pack."""
        layer: SlimLayer = new.derived
        if layer.form == "dense":
            return Packed(new.key, new.value)
        state = layer.state(new.hidden, new.key, new.value)
        return Packed(new.key[..., :0], new.value[..., :0], state[:, None])

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See Variant.attend."""
        from focus_core.kernels.dense import dense_attention
        from focus_core.kernels.slim import slim_attention

        common: dict[str, Any] = {"first_key": call.first_key, "scale": call.scale, "softcap": call.softcap}
        given = self._given(call)
        if given is None:
            whole = self._whole(call)
            return dense_attention(call.query, *whole, **common)
        return slim_attention(call.query, **given, order=self.order, **common)

    def plain_call(self, call: AttentionCall) -> AttentionCall:
        """The call with the keys and values that attention works with."""
        from focus_core.kernels.slim.operands import Operands

        given = self._given(call)
        if given is None:
            key, value = self._whole(call)
        else:
            made = Operands(q=call.query, causal=True, first_key=None, key_mask=None, **given)
            key, value = made.keys(), made.values()
        return dataclasses.replace(call, key=key, value=value)

    def _whole(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values where nothing has to be made."""
        if call.cached is None or call.new_key is None or call.new_value is None:
            return call.key, call.value
        return call.new_key, call.new_value

    def _given(self, call: AttentionCall) -> dict[str, Any] | None:
        """The state and matrices of ``slim_attention``; None where nothing is read back from a cached form."""
        new, keys, own = call.query.shape[2], call.key.shape[2], self.prompt == "own"
        if call.cached is None and (own or call.new_key is not None):
            return None
        if self.form(call.layer, call.adapter) == "dense":
            return None
        layer: SlimLayer = call.derived
        if call.cached is None:
            state, new_key = layer.state(call.hidden, call.key, call.value), call.key
        else:
            layer.check(call)
            if own and new == keys:
                return None
            state, new_key = call.cached[:, 0], call.new_key
        if layer.form == "v" and not own:
            # Keys that are made from values carry their error as values do.
            new_key = None
        return {
            "state": state,
            "key_weight": layer.key_weight,
            "value_weight": layer.value_weight,
            "key_bias": layer.key_bias,
            "value_bias": layer.value_bias,
            "finish": None if new_key is not None and new == keys else layer.finish(call.positions),
            "new_key": new_key,
            "new_value": call.new_value if own else None,
        }

    def pattern(self, call: AttentionCall) -> GroupPattern:
        """See Variant.pattern."""
        return near_pattern(call, window=call.key.shape[2])

    def work(self, shape: Shape) -> SlimWork:
        """Operations of a row, by order; of keys that are rotated when they are read."""
        queries = shape.length if shape.queries is None else shape.queries
        own = queries * (queries + 1) / 2 if self.prompt == "own" else 0
        return SlimWork(
            heads=shape.heads,
            head_dim=shape.head_dim,
            width=shape.heads * shape.head_dim,
            queries=queries,
            past=shape.length - (queries if self.prompt == "own" else 0),
            past_pairs=near_pairs(shape, shape.length) - own,
            new_pairs=own,
            keys_made=self.cache != "k",
            values_made=self.cache != "v",
            placed=False,
        )

    def cost(self, shape: Shape) -> Cost:
        """See Variant.cost; of heads that are together as wide as the hidden state, the matrices' operations included.

        Reading the matrices is not counted, as that of no projection is.
        """
        work, queries = self.work(shape), shape.length if shape.queries is None else shape.queries
        size = shape.heads * shape.head_dim
        moved = 2 * queries * size + work.past * work.width + (2 * queries * size if self.prompt == "own" else 0)
        return Cost(
            flops=shape.batch * work.operations(work.order(self.order)),
            bytes=float(shape.batch * moved * shape.itemsize),
            kv_bytes_per_token=float(work.width * shape.itemsize),
        )
