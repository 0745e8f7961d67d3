"""Numbers of every head: what each means, ranks, and which heads look alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.numbers import percent, sig3
from focus_core.trace import Trace


@dataclass(frozen=True)
class Measure:
    """One number a head.

    Attributes:
        field: the Trace's array, (L, Hq).
        title: what it is called.
        unit: ``%`` for shares, else the unit's name.
        meaning: one sentence for people who do not know the word.
        high: what a high value means, in a few words. low: what a low one means.
    """

    field: str
    title: str
    unit: str
    meaning: str
    high: str
    low: str

    def text(self, value: float) -> str:
        """A value as people read it."""
        return percent(value) if self.unit == "%" else f"{sig3(value)} {self.unit}"


MEASURES = {
    m.field: m
    for m in (
        Measure(
            "kept_pairs",
            "Pairs kept",
            "%",
            "Kept over causal pairs. Heads that share a router keep the same pairs.",
            "computes most",
            "computes least",
        ),
        Measure(
            "mass_kept",
            "Dense attention kept",
            "%",
            "How much of the dense model's attention lies on kept pairs: what the mask recalls.",
            "loses least",
            "loses most",
        ),
        Measure(
            "entropy",
            "Entropy of dense attention",
            "nats",
            "How spread out the dense attention is: e to this power is the number of tokens it is spread over.",
            "looks at many tokens",
            "looks at few tokens",
        ),
        Measure(
            "sink_mass",
            "Attention on the first tokens",
            "%",
            "Dense attention on the first few tokens, where heads put what they have no use for.",
            "parks its attention",
            "looks at the text",
        ),
    )
}


def values(trace: Trace, field: str) -> np.ndarray | None:
    """(L, Hq) float64 of a measure; None where the Trace has not recorded it."""
    found = trace.arrays.get(field)
    return None if found is None or not found.size else found.astype(np.float64)


def recorded(trace: Trace) -> list[Measure]:
    """The measures that a Trace has."""
    return [m for m in MEASURES.values() if values(trace, m.field) is not None]


def scale(*of: np.ndarray) -> tuple[float, float]:
    """Ends of one colour scale for everything that is compared: the least and the greatest value."""
    found = np.concatenate([np.ravel(v) for v in of])
    found = found[np.isfinite(found)]
    if not len(found):
        return 0.0, 1.0
    low, high = float(found.min()), float(found.max())
    return (low, high) if high > low else (low - 0.01, low + 0.01)


def ranked(trace: Trace, field: str, *, highest: bool = True) -> list[tuple[int, int]]:
    """(layer, head) of every head by one measure, in a stable order; empty where it is not recorded."""
    found = values(trace, field)
    if found is None:
        return []
    flat = found.ravel()
    order = np.argsort(-flat if highest else flat, kind="stable")
    return [divmod(int(at), found.shape[1]) for at in order if np.isfinite(flat[at])]


def similar(trace: Trace, layer: int, head: int, count: int = 10) -> list[tuple[int, int, float]]:
    """(layer, head, cosine similarity) of the heads whose dense attention is most like this one's; most like first."""
    matrix, heads = trace.arrays.get("similar"), int(trace.provenance["heads"])
    if matrix is None:
        return []
    row = matrix[layer * heads + head].astype(np.float64)
    order = np.argsort(-row, kind="stable")
    found = [(*divmod(int(at), heads), float(row[at])) for at in order if at != layer * heads + head]
    return found[:count]
