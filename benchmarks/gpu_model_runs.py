"""Runs a whole model with one attention after the other, and checks that Focus with every pair kept is dense."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from transformers.cache_utils import DynamicLayer

from benchmarks.gpu_model_graphs import graph_runs
from benchmarks.gpu_model_lines import Line, Subject
from focus_core import compat
from focus_core.benchmark.prefill import Stopwatch, cache_bytes, prefill
from focus_core.evaluation.recorders import PairCounter
from focus_core.pattern import GroupPattern
from focus_core.variants.base import Prepared
from focus_core.variants.focus import Focus

CHECKED = 640
FIRST = 2
"""How many of the decoded tokens are not counted."""
COUNTED_LAYERS = 6
AS_DENSE = 2.0
"""How far from a dense kernel Focus with every pair kept may be, in units of the distance of two dense kernels."""
GB = 1e9


@contextlib.contextmanager
def shortened(model: Any, layers: int) -> Iterator[None]:
    """The model with its first layers alone."""
    whole, count = model.model.layers, model.config.num_hidden_layers
    model.model.layers, model.config.num_hidden_layers = whole[:layers], min(layers, count)
    try:
        yield
    finally:
        model.model.layers, model.config.num_hidden_layers = whole, count


class Runner:
    """Runs the lines of one model."""

    def __init__(self, subject: Subject, steps: int, graphs: bool | None = None) -> None:
        self.subject, self.steps = subject, steps
        self.graphs = subject.ids.is_cuda if graphs is None else graphs
        self.device = subject.ids.device
        self.watch, self.copies = (Stopwatch(str(self.device)) for _ in range(2))

    def run(self, line: Line, tokens: int) -> dict[str, Any]:
        """One prefill and some decoded tokens: milliseconds of each, of its attention, and peaks of memory."""
        model, ids = self.subject.model, self.subject.ids
        with line.inside(model, self.watch), torch.no_grad():
            found: dict[str, Any] = {}
            self._reset()
            begun = self._wait()
            out = prefill(model, ids[:, :tokens])
            found["prefill"] = {"ms": (self._wait() - begun) * 1e3, "attention_ms": self.watch.take(), **self._peak()}
            cache, steps = compat.cache_of(out), []
            del out
            self._reset()
            with self._watched_cache():
                for at in range(tokens, tokens + self.steps):
                    begun = self._wait()
                    self._next(cache, ids[:, at : at + 1])
                    ms = (self._wait() - begun) * 1e3
                    steps.append((ms, self.watch.take(), self.copies.take()))
            counted = steps[min(FIRST, self.steps - 1) :]
            names = ("ms", "attention_ms", "append_ms")
            found["decode"] = {name: [step[i] for step in counted] for i, name in enumerate(names)} | self._peak()
            found["decode"]["cache_gb"] = cache_bytes(cache) / GB
        if self.graphs and (line.variant is None or line.variant.serves_graphs):
            found["graph"] = graph_runs(model, ids, line, cache, self.steps, self._wait)
        return found

    def logits(self, line: Line, ids: Any, decoded: int = 0) -> Any:
        """(N, V) logits in fp32, the last ``decoded`` tokens one at a time from the cache."""
        model, whole = self.subject.model, ids.shape[1] - decoded
        with line.inside(model, self.watch), torch.no_grad():
            out = model(input_ids=ids[:, :whole], use_cache=decoded > 0)
            parts = [out.logits[0].float()]
            for at in range(whole, ids.shape[1]):
                parts.append(self._next(compat.cache_of(out), ids[:, at : at + 1]).logits[0].float())
        self._wait()
        self.watch.take()
        return torch.cat(parts)

    def kept_pairs(self, line: Line, tokens: int) -> tuple[float, list[int]]:
        """Share of the causal pairs that a line keeps, and the layers that were counted."""
        if line.variant is None:
            return 1.0, []
        if not self.subject.reads:
            positions = torch.arange(tokens, device=self.device)[None]
            sets = line.variant.sets(positions)
            bits = (x.cpu().numpy() for x in (sets.fresh, sets.cached))
            pattern = GroupPattern(*bits, self.subject.shape["heads"], line.variant.window, line.variant.sinks)
            return pattern.density(0), [0]
        layers = self.subject.shape["layers"]
        counter = _Some(range(0, layers, max(1, layers // COUNTED_LAYERS)))
        with line.inside(self.subject.model, self.watch, counter):
            prefill(self.subject.model, self.subject.ids[:, :tokens])
        self._wait()
        self.watch.take()
        return statistics.fmean(counter.kept(0)), sorted(counter.layers)

    def _next(self, cache: Any, ids: Any) -> Any:
        model = self.subject.model
        return model(input_ids=ids, use_cache=True, logits_to_keep=1, **{compat.cache_keyword(model): cache})

    def _watched_cache(self) -> Any:
        """Time what appending to the cache takes, whichever class a layer has become."""
        return patch.object(DynamicLayer, "update", self.copies.wrap(DynamicLayer.update))

    def _wait(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def _peak(self) -> dict[str, float]:
        return {"peak_gb": torch.cuda.max_memory_allocated() / GB} if self.device.type == "cuda" else {}


class _Some(PairCounter):
    """Counts the pairs of some layers."""

    def __init__(self, chosen: Sequence[int]) -> None:
        super().__init__()
        self._chosen = chosen

    def record(self, call: Any, variant: Any) -> None:
        if call.layer in self._chosen:
            super().record(call, variant)


def checks(runner: Runner, kernels: tuple[str, str]) -> list[dict[str, Any]]:
    """Focus with every pair kept beside dense attention: its distance in units of that of two dense kernels.

    All tokens are in one group, the window is short, and the second half is read with the cache: the kernels compute.
    """
    subject = runner.subject
    ids = subject.ids[:, : min(CHECKED, subject.ids.shape[1])]
    focus = next(line for line in subject.lines if isinstance(line.variant, Focus))
    whole = Line("every pair kept", variant=_OneGroup(1, 1, 1, 16, 0), adapter=focus.adapter)
    dense = runner.logits(Line("dense", kernels=kernels), ids)
    rounding = _distance(runner.logits(Line("dense", kernels=("math", "math")), ids), dense)
    rows = []
    for decoded in (0, 4):
        found = _distance(runner.logits(whole, ids, decoded), dense)
        rows.append(
            {
                "what": "Focus with every pair kept beside dense",
                "model": subject.name,
                "tokens": ids.shape[1],
                "decoded": decoded,
                "error": found,
                "two_dense_kernels": rounding,
                "good": found <= AS_DENSE * rounding + 1e-5,
            }
        )
    return rows


class _OneGroup(Focus):
    """Focus with all tokens in the one group that there is."""

    def prepare(self, hidden, layer, positions, adapter, first_key):
        sets = torch.ones(hidden.shape[0], 1, hidden.shape[1], dtype=torch.int64, device=hidden.device)
        return Prepared(sets, sets)


def _distance(x: Any, y: Any) -> float:
    return float((x - y).norm() / y.norm())
