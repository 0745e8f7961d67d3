"""Decoding inside ``generate()`` with one CUDA graph a token, for the whole model and whatever attention it carries.

A step of a model in Python takes longer to start than the GPU takes to run it. Here the cache is given room
(``focus_core.steps``), so that a step is the same launches at the same places each time: the first one runs as it is,
the second is captured, and that graph is replayed from then on.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from focus_core import compat
from focus_core.cache import owner_of
from focus_core.errors import InvalidInput, Unsupported
from focus_core.masking import first_key_of
from focus_core.retrofit import Retrofit
from focus_core.steps import Steps, make_room, steps_of

_SAY_NOTHING = {"use_cache", "logits_to_keep", "num_logits_to_keep", "return_dict", "cache_position", "attention_mask"}
"""Arguments of a step that do not change it: the mask's padding was read when the cache got its room."""


@contextmanager
def graph_decoding(active: Retrofit, room: int, graph: bool | None = None) -> Iterator[GraphDecoding]:
    """Let the retrofitted model decode in a cache with room, on a GPU with one CUDA graph a token.

    Inside the block ``model.generate(...)`` (greedy or sampling) and ``model(ids, cache=...)`` go on as they do
    without it; prefill too is what it was. With the ``dense`` variant this serves the model's own attention.

    Args:
        active: what ``retrofit`` yields; its variant must not be replaced inside.
        room: the most tokens, prompt and new ones together.
        graph: whether steps are captured; None where the cache is on a GPU. Without, they run one by one in the same
            cache, on any device and with every variant that keeps keys and values.

    Yields:
        What counts the steps.

    Raises:
        InvalidInput: a room that is none, or a model that decodes so already.
        Unsupported: the variant or the model cannot decode so; and from the model's forward: more than one new token a
            row after the prefill, more tokens than there is room for, beams, or outputs that a graph does not give.
        TooLarge: from the first step, where the memory for the room is missing, with the numbers.
    """
    if not isinstance(room, int) or isinstance(room, bool) or room < 1:
        raise InvalidInput(f"room is {room!r}.", "It counts the prompt and the new tokens: a whole number from 1 on.")
    native = [layer for layer, window in enumerate(active.facts.native) if window is not None]
    if native:
        raise Unsupported(
            f"Layers {', '.join(map(str, native))} of {active.facts.name} have a sliding window of their own, whose "
            f"cache cannot be given room."
        )
    model = active.model
    # Accelerate's hooks on a model that is spread over devices stand in the same place.
    before = vars(model).get("forward")
    if hasattr(before, "graph_decoding"):
        raise InvalidInput("The model decodes in a cache with room already.", "Leave that block first; it cannot nest.")
    decoding = GraphDecoding(active, room, graph)

    # generate() reads the signature of what is wrapped.
    @functools.wraps(decoding.usual)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return decoding.forward(*args, **kwargs)

    forward.graph_decoding = decoding  # type: ignore[attr-defined]
    model.forward = forward
    try:
        yield decoding
    finally:
        if before is None:
            del model.forward
        else:
            model.forward = before
        decoding.drop()


class GraphDecoding:
    """The decoding of one retrofitted model; made by ``graph_decoding``.

    Attributes:
        eager: steps that ran one launch after the other.
        replayed: steps that were a graph's.
        captures: whether steps are captured; False lets all run launch by launch, to compare.
    """

    def __init__(self, active: Retrofit, room: int, graph: bool | None) -> None:
        self._active, self._room, self._graph = active, room, graph
        self.usual = active.model.forward
        self._keyword = compat.cache_keyword(active.model)
        # The graph of one cache, the last that was decoded with.
        self._step: _Step | None = None
        self.eager = self.replayed = 0
        self.captures = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward: steps go by the cache with room, all else is what it was."""
        cache = kwargs.get(self._keyword)
        ids = kwargs.get("input_ids", args[0] if args else None)
        begun = cache is not None and cache.get_seq_length() > 0
        if not begun or ids is None or (ids.shape[1] > 1 and steps_of(cache) is None) or torch.is_grad_enabled():
            return self.usual(*args, **kwargs)
        self._refuse(args, kwargs)
        if ids.shape[1] > 1:
            raise Unsupported(f"{ids.shape[1]} tokens at a time cannot go into a cache with room, which takes one.")
        step = self._step
        if step is None or step.cache() is not cache:
            found = self._steps(cache, ids, kwargs.get("attention_mask"))
            if found is None:
                return self.usual(*args, **kwargs)
            step = self._step = _Step(self._active, cache, found, ids)
        steps = step.steps
        steps.check()
        step.fill(ids, kwargs.get("position_ids"))
        if step.graph is None and step.warm and self.captures and steps.whole and ids.is_cuda:
            step.capture(self._run)
        if step.graph is not None:
            step.graph.replay()
            self._active.replayed()
            self.replayed += 1
        else:
            # A step that failed has counted its token on the device.
            steps.tokens.fill_(steps.count)
            step.output = self._run(step)
            step.warm = True
            self.eager += 1
        steps.end()
        return step.given(cache)

    def drop(self) -> None:
        """Let go of the graph."""
        self._step = None

    def _run(self, step: _Step) -> Any:
        with step.steps.under_way():
            return self.usual(
                input_ids=step.ids, position_ids=step.positions, use_cache=True, **{self._keyword: step.cache()}
            )

    def _steps(self, cache: Any, ids: torch.Tensor, mask: torch.Tensor | None) -> Steps | None:
        """The cache's room, made where there is none; None while a row's new token is padding: that is prefill."""
        found = steps_of(cache)
        if found is not None:
            return found
        variant = self._active.variant
        graph = ids.is_cuda if self._graph is None else self._graph
        if graph and not variant.serves_graphs:
            raise Unsupported(
                f"{variant.name or type(variant).__name__} with these settings has no step that a CUDA graph can hold.",
                "graph=False decodes it in a cache with room.",
            )
        first = first_key_of(mask, cache.get_seq_length() + 1)
        first = None if first is None else first.to(ids.device)
        if first is not None and bool((first > cache.get_seq_length()).any()):
            return None
        return make_room(cache, self._room, first, graph, owner_of(variant, self._active.adapter))

    def _refuse(self, args: tuple, kwargs: dict[str, Any]) -> None:
        read = {"input_ids", "position_ids", self._keyword} | _SAY_NOTHING
        more = [name for name, value in kwargs.items() if name not in read and value is not None and value is not False]
        if kwargs.get("return_dict") is False:
            more.append("return_dict=False")
        if more or len(args) > 1:
            said = ", ".join(more) or f"{len(args)} arguments by position"
            raise Unsupported(f"A step in a cache with room does not take {said}.", "Leave it out, or leave the block.")


class _Step:
    """One cache's step: what it reads, and its graph."""

    def __init__(self, active: Retrofit, cache: Any, steps: Steps, ids: torch.Tensor) -> None:
        self.cache, self.steps = weakref.ref(cache), steps
        self.ids = ids.clone()
        self.positions = torch.full_like(ids, steps.count)
        self.warm = False
        self.output: Any = None
        self.graph: torch.cuda.CUDAGraph | None = None

    def fill(self, ids: torch.Tensor, positions: torch.Tensor | None) -> None:
        """Take the next token of each row."""
        if ids.shape != self.ids.shape:
            raise Unsupported(f"The cache has {self.ids.shape[0]} rows, and {ids.shape[0]} new tokens were given.")
        self.ids.copy_(ids)
        if positions is None:
            self.positions.fill_(self.steps.count)
        else:
            self.positions.copy_(positions)

    def capture(self, run: Any) -> None:
        """Record the step without running it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.output = run(self)
        self.graph = graph

    def given(self, cache: Any) -> Any:
        """The model's output, its logits a copy that later steps leave alone."""
        output = self.output
        logits = output.logits if self.graph is None else output.logits.clone()
        return type(output)(**{"logits": logits, str(compat.cache_name(output)): cache})
