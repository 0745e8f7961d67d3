"""Time, memory and cache size of one whole-model prefill, with the part that attention takes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from focus_core.variants.base import Variant


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile, and the count of repeated measurements."""
    low, middle, high = np.percentile(np.asarray(values, float), [10, 50, 90])
    return {"median": float(middle), "p10": float(low), "p90": float(high), "n": len(values)}


def rotated(items: Sequence, repeat: int) -> list:
    """The items in an order that starts one further at each repeat, so that no item always goes first."""
    start = repeat % len(items) if items else 0
    return [*items[start:], *items[:start]]


def prefill(model: Any, ids: torch.Tensor) -> Any:
    """Run the model once over ``ids`` (B, N) as ``generate`` would: cache kept, logits of the last token only."""
    import torch

    with torch.no_grad():
        return model(input_ids=ids, use_cache=True, logits_to_keep=1)


class Stopwatch:
    """Adds up the time of the calls it wraps; on a GPU by events, so that it never makes the GPU wait."""

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self._laps: list = []

    def wrap(self, function: Callable) -> Callable:
        """The same function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self._mark()
            try:
                return function(*args, **kwargs)
            finally:
                self._laps.append((start, self._mark()))

        return timed

    def take(self) -> float:
        """Milliseconds since the last ``take``; call it after the device has finished."""
        laps, self._laps = self._laps, []
        if self._cuda:
            return float(sum(a.elapsed_time(b) for a, b in laps))
        return sum(b - a for a, b in laps) * 1e3

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def watched(variant: Variant, watch: Stopwatch) -> Variant:
    """A copy of the variant whose routing (``prepare_heads``, ``prepare``) and attention (``attend``) are timed."""
    copy = dataclasses.replace(variant)
    for method in ("prepare_heads", "prepare", "attend"):
        # The config is frozen and its class is the registry's entry: only this instance may change.
        object.__setattr__(copy, method, watch.wrap(getattr(copy, method)))
    return copy


def timed_prefill(model: Any, ids: torch.Tensor) -> float:
    """Milliseconds of one prefill, from an idle device to an idle device."""
    import torch

    wait = torch.cuda.synchronize if ids.is_cuda else lambda: None
    wait()
    start = time.perf_counter()
    prefill(model, ids)
    wait()
    return (time.perf_counter() - start) * 1e3


def peak_bytes(run: Callable[[], Any], device: str) -> int:
    """Most bytes of tensors that ``run`` held at once, beyond what was held before it.

    On a GPU this is the allocator's own high-water mark; on a CPU the sum over torch's allocation events, which,
    unlike the process's resident size, does not depend on what earlier runs left in the heap. Buffers that a
    library allocates for itself (a matrix product's packing) are not seen. Only this thread's events are: the run
    computes on one thread, so of pieces that would run side by side one is counted.
    """
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return max(0, torch.cuda.max_memory_allocated() - before)
    from torch.profiler import ProfilerActivity, profile

    seen = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with _silent_stderr():
        seen.start()
    try:
        run()
    finally:
        with _silent_stderr():
            seen.stop()
        torch.set_num_threads(threads)
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = top = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        top = max(top, held)
    return top


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Keep the lines that torch's profiler prints when it starts and stops out of people's terminals."""
    try:
        kept = os.dup(2)
    except OSError:
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def cache_bytes(cache: Any) -> int:
    """Bytes of all tensors in a ``DynamicCache``: keys, values and what a variant keeps beside them."""
    import torch

    seen: dict[int, int] = {}
    for layer in cache.layers:
        for value in vars(layer).values():
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                seen[storage.data_ptr()] = value.numel() * value.element_size()
    return sum(seen.values())


def linear_operations(model: Any) -> int:
    """Operations a token outside attention: two a weight of every matrix, the output head left out."""
    import torch

    head = model.get_output_embeddings()
    total = 0
    for module in model.modules():
        if module is head or isinstance(module, torch.nn.Embedding):
            continue
        weight = module._parameters.get("weight")
        if weight is not None and weight.dim() == 2:
            total += 2 * weight.numel()
    return total
