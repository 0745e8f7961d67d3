"""Encoder-decoders: what the cross-attention's cache takes, by formula, and what its authors measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from analysis.numbers import NONE, memory, times
from analysis.palette import KEPT, LOST, WINDOW
from analysis.style import quiet

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Encoder:
    """A published encoder-decoder.

    Attributes:
        title: its name.
        layers: of the decoder.
        width: d of the encoder's output and of the decoder.
        inner: width of keys and values together of one projection (heads x head size).
        encoded: encoder tokens.
        decoded: decoder tokens.
        source: where the numbers are from.
    """

    title: str
    layers: int
    width: int
    inner: int
    encoded: int
    decoded: int
    source: str


_NOTE = "Slim paper: 1,500 encoder and 448 decoder tokens"
_WIDE = "24 layers, 512 tokens each as an example; Slim paper: projections"
ENCODERS = (
    Encoder("Whisper tiny", 4, 384, 384, 1500, 448, f"{_NOTE}; shape of transformers' WhisperConfig"),
    Encoder("T5-3B", 24, 1024, 4096, 512, 512, f"{_WIDE} 4 times as wide"),
    Encoder("T5-11B", 24, 1024, 16384, 512, 512, f"{_WIDE} 16 times as wide"),
)
FAILURES = (
    ("tiny", 4, (4, 0, 0), (4, 4, 1), (4, 4, 4)),
    ("base", 6, (6, 0, 0), (6, 6, 1), (6, 6, 6)),
    ("small", 12, (11, 0, 0), (12, 10, 1), (12, 12, 12)),
    ("medium", 24, (24, 0, 0), (24, 19, 0), (24, 24, 24)),
    ("large-v3", 32, (26, 0, 0), (32, 15, 0), (32, 32, 32)),
)
"""Whisper: layers whose error is below 5 % in fp32, fp16 and bf16, for V from K, K from V, and the X-cache.

Published by the authors (OpenMachine-ai/transformer-tricks at 29a7efe, slimAttn_whisper.py), real speech."""
FORMATS = ("float32", "float16", "bfloat16")
PUBLISHED = (
    "Published by Slim's authors (OpenMachine-ai/transformer-tricks at 29a7efe), on real speech: cross-attention "
    "layers whose error is below 5 %. Not measured by this project."
)


def numbers(one: Encoder, form: str) -> float:
    """Cached numbers of one sequence: ``dense`` keys and values, or one shared ``encoder`` output for all layers.

    Self-attention keeps keys and values in both (the cross-attention's saving alone is shown).
    """
    own = 2.0 * one.layers * one.decoded * one.inner
    if form == "dense":
        return own + 2.0 * one.layers * one.encoded * one.inner
    return own + float(one.encoded * one.width)


def layer_ratio(one: Encoder) -> float:
    """One layer's keys and values over the encoder's output: the paper's factor 2r of wide projections."""
    return 2.0 * one.inner / one.width


def cross_ratio(one: Encoder) -> float:
    """All layers' keys and values over the one encoder output that they share."""
    return one.layers * layer_ratio(one)


def formula_table(itemsize: int = 2) -> pd.DataFrame:
    """Cache of one sequence by published shape."""
    import pandas as pd

    return pd.DataFrame(
        {
            "Model": [e.title for e in ENCODERS],
            "Encoder tokens": [e.encoded for e in ENCODERS],
            "Keys and values": [memory(numbers(e, "dense") * itemsize) for e in ENCODERS],
            "One encoder output": [memory(numbers(e, "encoder") * itemsize) for e in ENCODERS],
            "Cross-attention, a layer": [f"{times(layer_ratio(e))} smaller" for e in ENCODERS],
            "All layers share one": [f"{times(cross_ratio(e))} smaller" for e in ENCODERS],
            "Source": [e.source for e in ENCODERS],
        }
    )


def failure_figure() -> go.Figure:
    """Share of Whisper's layers that pass, as published, by what is cached and in which format."""
    drawn = go.Figure()
    names = ("K cached, V made from it", "V cached, K made from it", "X cached, nothing inverted")
    for turn, (name, colour) in enumerate(zip(names, (LOST, WINDOW, KEPT), strict=True)):
        x: list[list[str]] = [[], []]
        y, text = [], []
        for model, layers, *counts in FAILURES:
            for dtype, passed in zip(FORMATS, counts[turn], strict=True):
                x[0].append(model)
                x[1].append(dtype.replace("float", "fp").replace("bfp", "bf"))
                y.append(100 * passed / layers)
                text.append(f"{passed} of {layers}")
        drawn.add_bar(
            x=x,
            y=y,
            name=name,
            marker_color=colour,
            customdata=text,
            hovertemplate=f"<b>{name}</b><br>%{{x}}: %{{customdata}} layers below 5 %<extra></extra>",
        )
    drawn.update_yaxes(title="Layers that pass, %", range=[0, 104])
    return quiet(drawn, height=380, barmode="group")


CACHES = {"dense": "keys and values", "x": "one encoder output for all layers", "k": "keys alone"}


def _difference(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"


def measured_table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """What ``focus_core.slim_cross.measure_cross`` found on tiny random models of the real classes."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "Model": row["model"],
                "Cache": CACHES[row["cache"]],
                "Cross-attention cache": memory(row["bytes"]),
                "Of keys and values": times(row["bytes"] / row["dense_bytes"]) if row["bytes"] else NONE,
                "Same tokens": f"{row['same_tokens']} of {row['tokens']}" if row["bytes"] else NONE,
                "Largest difference of a logit": _difference(row["max_difference"]) if row["bytes"] else NONE,
                "Refused": row["reason"],
            }
            for row in rows
        ]
    )
