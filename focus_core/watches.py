"""Recorders of a capture: they watch one pass of the model layer by layer, and can stop it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from focus_core.errors import Cancelled
from focus_core.head_statistics import HeadStatistics, head_statistics, sampled_rows
from focus_core.pattern import Pattern

if TYPE_CHECKING:
    from focus_core.variants import AttentionCall, Variant

HALF_MAX = 65504.0

Progress = Callable[[float, str], None] | None
Cancel = Callable[[], bool] | None


class Watch:
    """Progress and cancel at every layer of one pass."""

    what = ""

    def __init__(self, layers: int, progress: Progress, cancel: Cancel, start: float, end: float) -> None:
        self._layers, self._progress, self._cancel = layers, progress, cancel
        self._start, self._end, self._calls = start, end, 0

    def record(self, call: AttentionCall, variant: Variant) -> None:
        """What ``retrofit`` calls once a layer."""
        if self._cancel is not None and self._cancel():
            raise Cancelled
        if self._progress is not None:
            share = min(1.0, self._calls / self._layers)
            self._progress(
                self._start + (self._end - self._start) * share,
                f"{self.what}: layer {call.layer + 1} of {self._layers}.",
            )
        self._calls += 1
        self.see(call, variant)

    def see(self, call: AttentionCall, variant: Variant) -> None:
        """Keep what is wanted of one layer's call."""


class ServedWatch(Watch):
    """Keeps the pattern of every layer as it was served, and the routing space of the asked ones."""

    what = "With the variant"

    def __init__(self, layers, progress, cancel, start, end, routed: set[int]) -> None:
        super().__init__(layers, progress, cancel, start, end)
        self.patterns: dict[int, Pattern] = {}
        self.points: dict[str, np.ndarray] = {}
        self._routed = routed

    def see(self, call: AttentionCall, variant: Variant) -> None:
        """See Watch.see."""
        from focus_core.evaluation.recorders import kept_pattern

        self.patterns[call.layer] = kept_pattern(call, variant)
        if call.layer not in self._routed or call.sliding_window is not None:
            return
        space = variant.routing_space(call)
        if space is None:
            return
        found = {"key_points": space.keys[0], "centroids": space.centroids}
        if space.queries is not None:
            found["query_points"] = space.queries[0]
        for name, value in found.items():
            self.points[f"{name}.{call.layer}"] = value.clamp(-HALF_MAX, HALF_MAX).half().cpu().numpy()


class DenseWatch(Watch):
    """Keeps q and k of the asked layers, and the figures of every head's dense attention."""

    what = "Dense"

    def __init__(self, layers, progress, cancel, start, end, kept: set[int], patterns: dict[int, Pattern]) -> None:
        super().__init__(layers, progress, cancel, start, end)
        self.patterns = patterns
        self.vectors: dict[str, np.ndarray] = {}
        self.heads: dict[int, HeadStatistics] = {}
        self.rescaled: dict[str, int] = {}
        self.clipped: list[int] = []
        self.scale, self.sampled = 0.0, 0
        self.softcap: float | None = None
        self._kept = kept

    def see(self, call: AttentionCall, variant: Variant) -> None:
        """See Watch.see."""
        from focus_core.evaluation.recorders import kept_pattern

        layer = call.layer
        if layer not in self.patterns:
            self.patterns[layer] = kept_pattern(call, variant)
        query, key = call.query[0].float(), call.key[0].float()
        self.scale, self.softcap = call.scale, call.softcap
        rows = sampled_rows(query.shape[1])
        self.sampled = len(range(*rows.indices(query.shape[1])))
        self.heads[layer] = head_statistics(
            query, key, self.patterns[layer], call.scale, rows, softcap=call.softcap, window=call.sliding_window
        )
        if layer in self._kept:
            shift = half_shift(float(query.abs().max()), float(key.abs().max()))
            if shift:
                self.rescaled[str(layer)] = shift
            q, k = query * 2.0**-shift, key * 2.0**shift
            if max(float(q.abs().max()), float(k.abs().max())) > HALF_MAX and layer not in self.clipped:
                self.clipped.append(layer)
            for name, value in (("queries", q), ("keys", k)):
                self.vectors[f"{name}.{layer}"] = value.clamp(-HALF_MAX, HALF_MAX).half().cpu().numpy()


def half_shift(query_max: float, key_max: float) -> int:
    """Power of two to divide q and multiply k by so that both fit float16; 0 when they do already."""
    if max(query_max, key_max) <= HALF_MAX or min(query_max, key_max) <= 0:
        return 0
    return round(float(np.log2(query_max / key_max)) / 2)
