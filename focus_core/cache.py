"""A cache layer that carries a variant's per-token state beside keys and values."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from focus_core.errors import Unsupported

if TYPE_CHECKING:
    from focus_core.variants.base import Packed

_NUMBERS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_NEXT_NUMBER = itertools.count(1)
_USE_DYNAMIC = "Use a DynamicCache, which generate() makes by default."
_START_NEW = "Start a new cache inside the retrofit block."


class Memo:
    """What a variant computed of all cached tokens, to go on from: tensors with one entry a row in front.

    It repeats what keys and values say, so it may be dropped at any time; ``take`` then gives None and the variant
    reads them again.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.tensors: tuple[torch.Tensor, ...] | None = None

    def take(self, tokens: int) -> tuple[torch.Tensor, ...] | None:
        """What was kept after exactly the first ``tokens`` tokens; None when nothing was."""
        return self.tensors if tokens and tokens == self.tokens else None

    def keep(self, tensors: tuple[torch.Tensor, ...], tokens: int) -> None:
        """Keep this for the call that follows the first ``tokens`` tokens."""
        self.tensors, self.tokens = tensors, tokens

    def drop(self) -> None:
        """Forget."""
        self.tensors, self.tokens = None, 0

    def change_rows(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Do to every tensor what was done to the rows of keys and values."""
        if self.tensors is not None:
            self.tensors = tuple(change(tensor) for tensor in self.tensors)


@dataclass(frozen=True)
class Fresh:
    """New tokens' own keys and values (B, Hkv, N, D), and whether the layer packed per-token state of theirs."""

    key: torch.Tensor
    value: torch.Tensor
    has_state: bool


class StateLayer(DynamicLayer):
    """A ``DynamicLayer`` that keeps ``state`` (B, R, N, ...), one entry a cached token.

    Layers are not built but converted (``append_state``), so that any ``DynamicCache`` works. Whatever changes the
    rows or the length of keys and values changes the state alike.
    """

    state: torch.Tensor | None = None
    owner: tuple | None = None
    """Who wrote the state; see ``owner_of``."""
    memo: Memo | None = None
    """Of a variant that keeps one."""
    has_room: ClassVar[bool] = False
    """Whether new tokens are written where they stay (``StepLayer``)."""

    def put_state(self, state: torch.Tensor) -> torch.Tensor:
        """Append the new tokens' state, and give that of all tokens."""
        self.state = state if self.state is None else torch.cat([self.state, state], dim=2)
        return self.state

    def reset(self) -> None:
        """Forget all tokens."""
        # Older versions only zero the keys of a dynamic layer, which leaves its length as it was.
        self.keys = self.values = None
        self.is_initialized = False
        self.state = None
        if self.memo is not None:
            self.memo.drop()
        super().reset()

    def crop(self, *args: Any, **kwargs: Any) -> None:
        """Drop the last tokens, as transformers counts them."""
        super().crop(*args, **kwargs)
        if self.state is not None:
            self.state = self.state[:, :, : self.get_seq_length()]
        if self.memo is not None:
            self.memo.drop()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take the rows of the beams that go on."""
        super().reorder_cache(beam_idx)
        if self.state is not None:
            self.state = self.state.index_select(0, beam_idx.to(self.state.device))
        if self.memo is not None:
            self.memo.change_rows(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        super().batch_repeat_interleave(repeats)
        if self.state is not None:
            self.state = self.state.repeat_interleave(repeats, dim=0)
        if self.memo is not None:
            self.memo.change_rows(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows."""
        super().batch_select_indices(indices)
        if self.state is not None:
            self.state = self.state[indices, ...]
        if self.memo is not None:
            self.memo.change_rows(lambda x: x[indices, ...])


class PackedLayer(StateLayer):
    """A ``StateLayer`` whose ``keys`` and ``values`` are what a variant packs them into, down to nothing at all.

    The variant's ``pack`` is there for one forward at a time, so that a copied cache copies no adapter.
    """

    pack: Callable[[torch.Tensor, torch.Tensor], Packed] | None = None
    fresh: Fresh | None = None
    """The new tokens' own, from ``update`` until ``take_fresh``."""
    origin: torch.Tensor | None = None
    """(B,) position of a row's first cached token, where ``key_positions`` is asked for."""

    def get_seq_length(self) -> int:
        """Tokens that the layer holds; transformers takes rows of size 0 for none."""
        return self.keys.shape[-2] if self.is_initialized and self.keys is not None and self.keys.dim() > 1 else 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pack the new tokens and append them; what comes back is packed too."""
        if self.pack is None:
            if self.get_seq_length():
                raise Unsupported("The cache holds packed keys, which only its own variant can read.", _START_NEW)
            self.__class__ = StateLayer
            return self.update(key_states, value_states, *args, **kwargs)
        packed, self.pack = self.pack(key_states, value_states), None
        if packed.state is not None:
            # A copy: what the variant gives may be a part of a larger tensor, which the cache would keep alive.
            parts = [packed.state] if self.state is None else [self.state, packed.state]
            self.state = torch.cat(parts, dim=2)
        self.fresh = Fresh(key_states, value_states, packed.state is not None)
        return super().update(packed.key, packed.value, *args, **kwargs)

    def reset(self) -> None:
        """Forget all tokens."""
        super().reset()
        self.origin = None

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take the rows of the beams that go on."""
        super().reorder_cache(beam_idx)
        if self.origin is not None:
            self.origin = self.origin.index_select(0, beam_idx.to(self.origin.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        super().batch_repeat_interleave(repeats)
        if self.origin is not None:
            self.origin = self.origin.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows."""
        super().batch_select_indices(indices)
        if self.origin is not None:
            self.origin = self.origin[indices, ...]


def begin_packing(cache: Any, layer: int, pack: Callable[[torch.Tensor, torch.Tensor], Packed], owner: tuple) -> None:
    """Let a cache layer, which ``check_cache`` has passed, pack the keys and values of the forward that begins.

    Raises:
        Unsupported: the layer holds keys that were not packed.
    """
    while len(cache.layers) <= layer:
        cache.layers.append(cache.layer_class_to_replicate())
    found = cache.layers[layer]
    if type(found) is not PackedLayer:
        if past := found.get_seq_length():
            raise Unsupported(
                f"The cache of layer {layer} holds {past} earlier tokens whose keys are not packed: it was begun dense "
                f"or by another variant.",
                _START_NEW,
            )
        found.__class__ = PackedLayer
    found.owner, found.pack, found.fresh = owner, pack, None


def take_fresh(cache: Any, layer: int) -> Fresh:
    """The new tokens' own keys and values, which the layer has packed and lets go of."""
    found = cache.layers[layer]
    fresh, found.fresh = found.fresh, None
    return fresh


def key_positions(
    cache: Any, layer: int, positions: torch.Tensor | None, first_key: torch.Tensor | None, queries: int
) -> torch.Tensor:
    """(B, Nk) position of every cached token, as the model counts them; a padded token's says nothing.

    Positions follow one another, so that a row's first is all that has to be kept.

    Args:
        cache: the cache, the new tokens included.
        layer: index of a layer that packs.
        positions: (B or 1, Nq) position_ids of the new tokens; None when the model was given none.
        first_key: (B,) first real token of each row; None when no row is padded.
        queries: Nq.

    Raises:
        Unsupported: the new tokens' positions do not follow those of the cached ones.
    """
    found = cache.layers[layer]
    batch, keys, device = found.keys.shape[0], found.get_seq_length(), found.keys.device
    past, index = keys - queries, torch.arange(keys, device=device)
    new = index[None, past:] if positions is None else positions.to(device)
    first = torch.zeros(batch, dtype=torch.long, device=device) if first_key is None else first_key.to(device)
    at = (first - past).clamp_min(0)
    here = at < queries
    origin = new.expand(batch, -1).gather(1, at.clamp_max(queries - 1)[:, None])[:, 0] - (past + at)
    if found.origin is not None:
        if ((found.origin != origin) & here & (first < past)).any():
            raise Unsupported(
                f"The position_ids of layer {layer} jump after {past} cached tokens, whose own are no longer known.",
                "Let position_ids go on from the last cached token's.",
            )
        origin = torch.where(here, origin, found.origin)
    found.origin = origin
    return (index + origin[:, None]).clamp_min(0)


def owner_of(variant: Any, adapter: Any) -> tuple:
    """What must be equal for cached state to be continued: the variant's settings and the adapter itself.

    The adapter is stood for by a number, so that a copy of the cache does not copy the adapter.
    """
    if adapter is None:
        return variant, 0
    if adapter not in _NUMBERS:
        _NUMBERS[adapter] = next(_NEXT_NUMBER)
    return variant, _NUMBERS[adapter]


def check_cache(cache: Any, layer: int, native: bool, owner: tuple) -> None:
    """Refuse a cache that a retrofitted layer cannot continue faithfully, before it is written to.

    Args:
        cache: what the attention module was given.
        layer: index of the layer.
        native: whether the layer keeps the model's own sliding window.
        owner: who would continue the cache.

    Raises:
        Unsupported: a static, quantized or unknown cache layer, or one begun by another variant.
    """
    if not isinstance(cache, Cache):
        raise Unsupported(f"A cache of type {type(cache).__name__} cannot be used with a retrofit.", _USE_DYNAMIC)
    found = cache.layers[layer] if layer < len(cache.layers) else None
    kind = type(found) if found is not None else cache.layer_class_to_replicate
    has_room = isinstance(found, StateLayer) and found.has_room
    if not has_room and kind not in (
        (DynamicLayer, DynamicSlidingWindowLayer) if native else (DynamicLayer, StateLayer, PackedLayer)
    ):
        name = getattr(kind, "__name__", "nothing")
        raise Unsupported(f"Layer {layer} has a cache of type {name}, which a retrofit cannot read.", _USE_DYNAMIC)
    if isinstance(found, StateLayer) and found.get_seq_length() and found.owner != owner:
        raise Unsupported(
            f"The cache of layer {layer} was begun by another variant, other settings or another adapter.", _START_NEW
        )


def check_state(cache: Any, layer: int, past: int, has_state: bool) -> None:
    """Refuse to append state to a cache whose first tokens have none, or to leave out what the others have.

    Args:
        cache: the cache, before the new tokens' state is appended.
        layer: index of the layer.
        past: tokens that were in the cache before this forward.
        has_state: whether the variant keeps per-token state.

    Raises:
        Unsupported: with both lengths.
    """
    state = getattr(cache.layers[layer], "state", None)
    known = state.shape[2] if state is not None else 0
    if known != (past if has_state else 0):
        raise Unsupported(
            f"The cache of layer {layer} holds {past} earlier tokens and this variant's state for {known} of them: "
            f"it was begun dense or by another variant.",
            _START_NEW,
        )


def append_state(cache: Any, layer: int, state: torch.Tensor, owner: tuple) -> torch.Tensor:
    """Append the new tokens' state, after their keys and values were.

    Args:
        cache: the cache.
        layer: index of the layer.
        state: (B, R, Nq, ...) of the new tokens.
        owner: who writes it (``owner_of``).

    Returns:
        (B, R, Nk, ...) of all tokens.
    """
    found = cache.layers[layer]
    if type(found) is DynamicLayer:
        found.__class__ = StateLayer
    found.owner = owner
    return found.put_state(state)


def memo_of(cache: Any, layer: int, owner: tuple) -> Memo:
    """The layer's memo, made when there is none; keys and values of the new tokens are in the cache already."""
    found = cache.layers[layer]
    if type(found) is DynamicLayer:
        found.__class__ = StateLayer
    found.owner = owner
    if found.memo is None:
        found.memo = Memo()
    return found.memo
