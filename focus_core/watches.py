"""Recorders of a capture: they watch one pass of the model layer by layer, and can stop it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from focus_core.errors import Cancelled
from focus_core.pattern import GroupPattern, Pattern

if TYPE_CHECKING:
    import torch

    from focus_core.variants import AttentionCall, Variant

MAX_SAMPLED = 256
HALF_MAX = 65504.0

Progress = Callable[[float, str], None] | None
Cancel = Callable[[], bool] | None


def sampled_rows(tokens: int) -> slice:
    """At most 256 evenly spaced queries, the last one among them."""
    step = -(-tokens // MAX_SAMPLED)
    return slice((tokens - 1) % step, tokens, step)


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
    """Keeps the pattern of every layer as it was served."""

    what = "With the variant"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.patterns: dict[int, Pattern] = {}

    def see(self, call: AttentionCall, variant: Variant) -> None:
        """See Watch.see."""
        from focus_core.evaluation.recorders import kept_pattern

        self.patterns[call.layer] = kept_pattern(call, variant)


class DenseWatch(Watch):
    """Keeps q and k of the asked layers, and how much dense mass each layer's pattern keeps."""

    what = "Dense"

    def __init__(self, layers, progress, cancel, start, end, kept: set[int], patterns: dict[int, Pattern]) -> None:
        super().__init__(layers, progress, cancel, start, end)
        self.patterns = patterns
        self.vectors: dict[str, np.ndarray] = {}
        self.mass: dict[int, np.ndarray] = {}
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
        self.mass[layer] = kept_mass(
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


def kept_mass(
    query: torch.Tensor,
    key: torch.Tensor,
    pattern: Pattern,
    scale: float,
    rows: slice,
    *,
    softcap: float | None = None,
    window: int | None = None,
) -> np.ndarray:
    """Dense attention mass that a pattern keeps, mean over the queries ``rows``; exact for each of them.

    Args:
        query: (Hq, N, D) fp32.
        key: (Hkv, N, D) fp32.
        pattern: of the same heads and tokens.
        scale: factor of the scores.
        rows: which queries.
        softcap: applied to the scores before the mask; None when the model has none.
        window: the layer's own window: dense attention sees no further.

    Returns:
        (Hq,) float64.
    """
    import torch

    heads, count = query.shape[:2]
    share = heads // key.shape[0]
    i = torch.arange(count, device=query.device)[rows][:, None]
    j = torch.arange(count, device=query.device)[None, :]
    hidden = j > i if window is None else (j > i) | (i - j >= window)
    out, tiles = np.zeros(heads), {}
    for head in range(heads):
        router = pattern.router_of(head) if isinstance(pattern, GroupPattern) else head
        if router not in tiles:
            tiles = {router: torch.from_numpy(pattern.tile(0, head, rows, slice(0, count))).to(query.device)}
        scores = query[head, rows] @ key[head // share].T * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        mass = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
        out[head] = mass.masked_fill_(~tiles[router], 0.0).sum(-1).double().mean().item()
    return np.minimum(out, 1.0)
