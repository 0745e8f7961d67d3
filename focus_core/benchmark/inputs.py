"""What a kernel benchmark runs on: q, k, v, and the groups that a variant would have chosen."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from focus_core.errors import InvalidInput

if TYPE_CHECKING:
    import torch

    from focus_core.cache import Memo
    from focus_core.variants.base import AttentionCall, NewTokens, Variant

PHASES = ("prefill", "decode")


@dataclass(frozen=True)
class Inputs:
    """Query, key and value of one attention layer, (B, heads, N, D), with the hidden state that gave them."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    hidden: torch.Tensor
    layer: int = 0


def random_inputs(batch: int, heads: int, kv_heads: int, head_dim: int, length: int, dtype: Any, device: Any) -> Inputs:
    """Normal random activations, the same at every call."""
    import torch

    generator = torch.Generator().manual_seed(length)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    q = draw(batch, heads, length, head_dim)
    k, v = draw(batch, kv_heads, length, head_dim), draw(batch, kv_heads, length, head_dim)
    return Inputs(q, k, v, q.new_zeros(batch, length, 1))


def model_inputs(name: str, text: str, length: int, device: Any, dtype: Any) -> Inputs:
    """Activations of a real model's middle layer on the first ``length`` tokens of a text.

    Raises:
        InvalidInput: when the text has fewer tokens.
    """
    import torch

    from focus_core.models.loading import load_model
    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    loaded = load_model(name, device=device, dtype=dtype)
    ids = loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"][:length]
    if len(ids) < length:
        raise InvalidInput(
            f"The text has {len(ids)} tokens and the length asked for is {length}.", "Use a longer text."
        )
    kept = _Middle(loaded.facts.layers // 2)
    with torch.no_grad(), retrofit(loaded.model, make("dense"), recorder=kept):
        batch = torch.as_tensor(ids, dtype=torch.long, device=loaded.model.device)[None]
        loaded.model(input_ids=batch, use_cache=False, logits_to_keep=1)
    call = kept.call
    return Inputs(call.query, call.key, call.value, call.hidden, call.layer)


class _Middle:
    """Recorder that keeps the attention call of one layer."""

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.call: AttentionCall | None = None

    def record(self, call: AttentionCall, variant: Variant) -> None:
        """Keep the call of the wanted layer."""
        if call.layer == self.layer:
            self.call = call


def call_of(variant: Variant, inputs: Inputs, phase: str) -> AttentionCall:
    """The attention call that times a variant: all queries (prefill) or the last one (decode).

    A variant without an adapter routes for itself; one that learns its groups gets balanced random sets, queries
    and keys apart, one router a KV head; one that learns a number a layer gets its untrained one.

    Raises:
        InvalidInput: for a variant that is no served function, or that cannot run without what a model taught it.
    """
    import torch

    from focus_core.cache import Memo
    from focus_core.variants.base import AttentionCall, NewTokens, Prepared
    from focus_core.variants.groups import GroupedVariant

    grouped = isinstance(variant, GroupedVariant)
    if not variant.served:
        raise InvalidInput(f"{variant.name} with these settings is not a served mask.", "bench times served masks.")
    adapter = None if grouped or variant.adapter_optional else _untrained(variant, inputs.layer + 1)
    adapter = None if adapter is None else adapter.to(inputs.key.device)
    batch, kv_heads, length, dim = inputs.key.shape
    if variant.adapter_kind and grouped:
        shape = (batch, kv_heads, length)
        prepared = Prepared(
            balanced_sets(shape, variant.groups, variant.key_topk, 1).to(inputs.key.device),
            balanced_sets(shape, variant.groups, variant.query_topk, 2).to(inputs.key.device),
        )
    else:
        positions = torch.arange(length, device=inputs.key.device).expand(batch, length)
        prepared = variant.prepare_heads(inputs.query, inputs.key, inputs.layer, adapter, None)
        prepared = prepared or variant.prepare(inputs.hidden, inputs.layer, positions, adapter, None)
    query, fresh, hidden = inputs.query, prepared.fresh, inputs.hidden
    kept: dict[str, Any] = {"key": inputs.key, "value": inputs.value, "cached": prepared.cached}
    if variant.packs_keys:
        if hidden.shape[-1] == 1:
            # Random activations come without the hidden state that gave them.
            hidden = inputs.key.transpose(1, 2).flatten(2)
        new = NewTokens(inputs.key, inputs.value, hidden, inputs.layer, adapter)
        weights = variant.stand_in(new)
        kept["derive"] = lambda: weights
        if phase == "decode":
            kept |= _packed(variant, dataclasses.replace(new, derive=kept["derive"]), prepared.cached)
    if phase == "decode":
        if variant.keeps_memo and length > 1:
            # The lists of a grouped variant are made at its first step, from the sets that it is given.
            kept["memo"] = Memo() if grouped else _earlier(variant, inputs)
        query = query[:, :, -1:]
        fresh = fresh[..., -1:] if isinstance(fresh, torch.Tensor) else fresh
    return AttentionCall(
        query=query,
        hidden=hidden[:, -query.shape[2] :],
        layer=inputs.layer,
        scale=dim**-0.5,
        fresh=fresh,
        adapter=adapter,
        **kept,
    )


def _packed(variant: Variant, new: NewTokens, state: torch.Tensor | None) -> dict[str, Any]:
    """What a cache would hold of all tokens, of which the last is new."""
    import torch

    packed = variant.pack(new)
    batch, length = new.hidden.shape[:2]
    return {
        "key": packed.key,
        "value": packed.value,
        "cached": state if packed.state is None else packed.state,
        "new_key": new.key[:, :, -1:],
        "new_value": new.value[:, :, -1:],
        "positions": torch.arange(length, device=new.key.device).expand(batch, length),
    }


def _untrained(variant: Variant, layers: int) -> Any:
    """An adapter that has learned nothing, where its size is a number of layers alone; None where none is needed."""
    import focus_core.routing  # noqa: F401
    from focus_core.adapter import Adapter

    if variant.adapter_kind is None:
        return None
    kind = Adapter.kinds[variant.adapter_kind]
    try:
        return kind(kind.config_class(layers=layers)).requires_grad_(False)
    except TypeError:
        hint = "`eval` and the Compare page run it on a model."
        raise InvalidInput(f"{variant.name} runs on what it learned from a model; bench has none.", hint) from None


def _earlier(variant: Variant, inputs: Inputs) -> Memo:
    """What all tokens but the last leave to decode from; it stays so, however often the last is decoded."""
    from focus_core.cache import Memo
    from focus_core.variants.base import AttentionCall

    memo = Memo()
    query, key, value = (x[:, :, :-1] for x in (inputs.query, inputs.key, inputs.value))
    scale = query.shape[3] ** -0.5
    variant.attend(AttentionCall(query, key, value, inputs.hidden[:, :-1], inputs.layer, scale, memo=memo))
    memo.keep = lambda tensors, tokens: None  # type: ignore[method-assign]
    return memo


def balanced_sets(shape: tuple[int, ...], groups: int, members: int, seed: int) -> torch.Tensor:
    """Random int64 sets of ``members`` groups whose loads differ by at most ``members`` tokens."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    start = torch.rand(shape, generator=generator).argsort(-1) % groups
    order = torch.rand(*shape, groups - 1, generator=generator).argsort(-1) + 1 if groups > 1 else None
    sets = torch.ones(shape, dtype=torch.int64) << start
    for slot in range(members - 1):
        sets |= torch.ones((), dtype=torch.int64) << ((start + order[..., slot]) % groups)
    return sets
