"""A cache with room for more tokens, which decoding writes into where it lies: nothing is copied, nothing moves.

``make_room`` turns the layers of a ``DynamicCache`` into such layers, one after the other. How many tokens there are is
a number of the machine, and beside it one on the device, which a CUDA graph of a step can count up itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from focus_core.cache import StateLayer
from focus_core.errors import TooLarge, Unsupported
from focus_core.kernels.focus.triton import machine_refusal
from focus_core.models.memory import free_memory

GB = 1e9


class Steps:
    """Where the tokens of a cache with room stand; all its layers share it.

    Attributes:
        count: tokens in the cache.
        room: tokens that fit.
        first: (B,) int64 first real token of each row; None when no row is padded.
        whole: layers give keys and values with all their room, for kernels that read ``tokens`` on the device;
            otherwise they give those that there are.
        tokens: (1,) int64 on the device: of a step under way, the tokens with its own.
        positions: (B or 1, 1) int64 position of the step's token, counted from the first real one.
        scratch: what kernels keep from one layer to the next, by a name of theirs.
    """

    def __init__(self, count: int, room: int, first: torch.Tensor | None, whole: bool, device: torch.device) -> None:
        self.count, self.room, self.first, self.whole = count, room, first, whole
        self.tokens = torch.full((1,), count, dtype=torch.int64, device=device)
        self.positions = self.tokens[None]
        self.scratch: dict[Any, Any] = {}
        self._open = False

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """A step, outside of which nothing is written: who does not count it would write over its token."""
        self.begin()
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def check_open(self) -> None:
        """Refuse a token that nobody counts."""
        if not self._open:
            raise Unsupported(
                "This cache has room, and takes tokens inside graph_decoding alone, without gradients.",
                "Go on inside such a block, with the cache named, or start a new cache.",
            )

    def begin(self) -> None:
        """Count the new token on the device; a graph of a step starts with this."""
        self.tokens.add_(1)
        last = self.tokens - 1
        self.positions = last[None] if self.first is None else (last - self.first)[:, None]

    def check(self) -> None:
        """Refuse a token for which there is no room."""
        if self.count >= self.room:
            raise Unsupported(
                f"The cache holds {self.count:,} tokens, and room was made for {self.room:,}.", "Make more room."
            )

    def end(self) -> None:
        """The new token is in the cache."""
        self.count += 1


class StepLayer(StateLayer):
    """A layer with room; each update writes one token."""

    has_room = True
    keys: Any
    values: Any

    def __init__(self, steps: Steps, found: DynamicLayer, owner: tuple) -> None:
        super().__init__()
        self.steps = steps
        self.dtype, self.device = found.keys.dtype, found.keys.device
        self.keys, self.values = (_with_room(x, steps.room) for x in (found.keys, found.values))
        self.is_initialized = True
        state = getattr(found, "state", None)
        self.owner, self.memo = getattr(found, "owner", None) or owner, getattr(found, "memo", None)
        self.state = None if state is None else _with_room(state, steps.room)

    def get_seq_length(self) -> int:
        """Tokens before the step under way."""
        return self.steps.count

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that ``update`` will give, from position 0 on."""
        return self.steps.room if self.steps.whole else self.steps.count + query_length, 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new token's keys and values, and give those of all tokens."""
        steps, (new, wide) = self.steps, key_states.shape[-2:]
        steps.check_open()
        if new != 1:
            raise Unsupported(f"{new} tokens at a time cannot go into a cache with room, which takes one.")
        if not steps.whole:
            self.keys[:, :, steps.count] = key_states[:, :, 0]
            self.values[:, :, steps.count] = value_states[:, :, 0]
            stop = steps.count + 1
            return self.keys[:, :, :stop], self.values[:, :, :stop]
        if wide == value_states.shape[-1] and machine_refusal(key_states.device) is None:
            from focus_core.kernels.step_rows import put_rows

            put_rows(self.keys, self.values, key_states, value_states, steps.tokens)
        else:
            at = steps.tokens - 1
            self.keys.index_copy_(2, at, key_states)
            self.values.index_copy_(2, at, value_states)
        return self.keys, self.values

    def put_state(self, state: torch.Tensor) -> torch.Tensor:
        """Write the new token's state, and give that of all tokens."""
        if self.state is None:
            raise Unsupported("The cache with room was begun without this variant's state.", "Start a new cache.")
        if self.steps.whole:
            return self.state.index_copy_(2, self.steps.tokens - 1, state)
        self.state[:, :, self.steps.count] = state[:, :, 0]
        return self.state[:, :, : self.steps.count + 1]

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise Unsupported(
            "A cache with room only grows: it cannot be cut, reordered or reset.", "Use greedy search or sampling."
        )

    crop = reset = reorder_cache = batch_repeat_interleave = batch_select_indices = _refuse


_STEPS: weakref.WeakKeyDictionary[Any, Steps] = weakref.WeakKeyDictionary()


def steps_of(cache: Any) -> Steps | None:
    """What ``make_room`` gave for this cache; None where it has no room."""
    return _STEPS.get(cache) if isinstance(cache, Cache) else None


def make_room(
    cache: Any,
    room: int,
    first: torch.Tensor | None,
    whole: bool,
    owner: tuple,
    free: Callable[[], float] | None = None,
) -> Steps:
    """Turn every layer of a cache that has been begun into one with room.

    Args:
        cache: a ``DynamicCache`` after prefill.
        room: tokens that will fit, those that are there included.
        first: (B,) first real token of each row; None when no row is padded.
        whole: as in ``Steps``.
        owner: who goes on with layers that nobody has written state to (``owner_of``).
        free: how many bytes are free; None asks the device.

    Raises:
        Unsupported: the cache has layers of another kind, or holds more tokens than there will be room for.
        TooLarge: the memory is missing, with the numbers.
    """
    for number, layer in enumerate(cache.layers):
        if type(layer) not in (DynamicLayer, StateLayer) or not layer.get_seq_length():
            raise Unsupported(
                f"Layer {number} has a cache of type {type(layer).__name__} with {layer.get_seq_length()} tokens, "
                f"which cannot be given room.",
                "Use a DynamicCache after the prefill, and a variant that keeps keys and values.",
            )
    lengths = {layer.get_seq_length() for layer in cache.layers}
    count, device = max(lengths), cache.layers[0].keys.device
    if lengths != {count} or count > room:
        raise Unsupported(f"The cache holds {count:,} tokens, and room for {room:,} is asked for.", "Make more room.")
    held, wanted = zip(*(_bytes(layer, room) for layer in cache.layers), strict=True)
    # Each old layer goes when its new one is there.
    needed, there = sum(wanted) - sum(held) + max(held), (free or (lambda: _free(device)))()
    if needed > there:
        raise TooLarge(
            f"A cache with room for {room:,} tokens takes {sum(wanted) / GB:,.2f} GB, {needed / GB:,.2f} GB more than "
            f"is held while it is made; {there / GB:,.2f} GB are free.",
            f"Make room for fewer tokens; the cache holds {count:,}.",
        )
    steps = Steps(count, room, first, whole, device)
    for number, layer in enumerate(cache.layers):
        cache.layers[number] = StepLayer(steps, layer, owner)
    _STEPS[cache] = steps
    return steps


def _with_room(x: torch.Tensor, room: int) -> torch.Tensor:
    """The tensor with ``room`` entries on its third axis; 0 where nothing is yet, for 0 times NaN would be NaN."""
    wide = x.new_zeros(*x.shape[:2], room, *x.shape[3:])
    wide[:, :, : x.shape[2]] = x
    return wide


def _bytes(layer: Any, room: int) -> tuple[int, int]:
    """Bytes that a layer holds, and that it would hold with room."""
    parts = [x for x in (layer.keys, layer.values, getattr(layer, "state", None)) if x is not None]
    return sum(x.nbytes for x in parts), sum(x.nbytes // x.shape[2] * room for x in parts)


def _free(device: torch.device) -> float:
    if device.type == "cpu":
        return float(free_memory())
    if device.type != "cuda":
        return float("inf")
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused
