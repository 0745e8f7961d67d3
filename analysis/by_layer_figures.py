"""Figures of a recorded interpretation: measures by layer with what chance reaches as bands, and looks for x is."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from analysis.by_layer import MEASURES, looks
from analysis.palette import BETTER, GROUPS, LOST
from analysis.style import QUIET, quiet

LOOKS = [[0.0, "#b3541e"], [0.5, "#d8dbe1"], [1.0, "#2166ac"]]
_BANDS = {
    "frequency": (LOST, "rgba(240, 138, 36, 0.20)"),
    "matched": (GROUPS[4], "rgba(157, 112, 175, 0.22)"),
    "shuffled": (QUIET, "rgba(128, 132, 149, 0.25)"),
}
"""Draws of chance, as bands; random groups lie on the shuffled ones."""
_LINES = {
    "kmeans": (GROUPS[13], "dash", "square"),
    "untrained": (GROUPS[15], "dot", "x-thin"),
    "lookup": ("#8d7f96", "dashdot", "triangle-up"),
}


SHORT = {
    "kmeans": "k-means, untrained",
    "untrained": "Before training",
    "lookup": "Lookup by word",
    "frequency": "One random group a word",
    "matched": "Shuffled, like frequency",
    "shuffled": "Shuffled",
}
"""Names in the legend, which has to fit a narrow page."""


def measures_by_layer(document: dict[str, Any], side: str, measure: str, layer: int | None = None) -> go.Figure:
    """One measure of the learned groups over the layers; draws of chance are bands, what else there is lines.

    Args:
        document: what ``interpret`` wrote.
        side: ``keys`` or ``queries``.
        measure: one of ``by_layer.MEASURES``.
        layer: the layer to mark.
    """
    figure = go.Figure()
    at = [entry["layer"] for entry in document["layers"]]
    there = document["layers"][0][side]

    def of(line: str) -> np.ndarray:
        return np.array([entry[side][line][measure] for entry in document["layers"]]).T

    for line, (colour, fill) in _BANDS.items():
        value, low, high = of(line)
        _band(figure, at, low, high, fill, line)
        _line(figure, at, value, SHORT[line], colour, line, width=1.4)
    for line, (colour, dash, symbol) in _LINES.items():
        if line in there:
            _line(figure, at, of(line)[0], SHORT[line], colour, line, width=1.8, dash=dash, symbol=symbol)
    value, low, high = of("groups")
    _band(figure, at, low, high, "rgba(47, 127, 224, 0.20)", "groups")
    text = [f"<br>{a:.3f} to {b:.3f}" for a, b in zip(low, high, strict=True)]
    _line(figure, at, value, "Learned groups", BETTER, "groups", width=3, symbol="circle", size=7, text=text)
    if layer is not None:
        figure.add_vline(x=layer, line={"color": QUIET, "width": 1, "dash": "dot"})
    figure.update_xaxes(title="Layer", dtick=1 if len(at) <= 16 else 2, range=[at[0] - 0.5, at[-1] + 0.5])
    figure.update_yaxes(title=MEASURES[measure], rangemode="tozero")
    return quiet(figure, height=500)


def _band(figure: go.Figure, at: list[int], low: np.ndarray, high: np.ndarray, fill: str, group: str) -> None:
    figure.add_scatter(
        x=[*at, *at[::-1]],
        y=np.concatenate([high, low[::-1]]),
        fill="toself",
        fillcolor=fill,
        mode="lines",
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        legendgroup=group,
    )


def _line(
    figure: go.Figure,
    at: list[int],
    value: np.ndarray,
    name: str,
    colour: str,
    group: str,
    *,
    width: float,
    dash: str | None = None,
    symbol: str | None = None,
    size: int = 5,
    text: list[str] | None = None,
) -> None:
    figure.add_scatter(
        x=at,
        y=value,
        name=name,
        legendgroup=group,
        mode="lines+markers" if symbol else "lines",
        line={"color": colour, "width": width, "dash": dash},
        marker={"size": size, "symbol": symbol, "line": {"width": 1.5, "color": colour}} if symbol else None,
        text=text,
        hovertemplate=f"{name}<br>layer %{{x}}: %{{y:.3f}}{'%{text}' if text else ''}<extra></extra>",
    )


def looks_heatmap(document: dict[str, Any], layer: int | None) -> go.Figure:
    """What tokens look for by what they are: kept far pairs, over the share of all that are kept.

    Args:
        document: what ``interpret`` wrote.
        layer: one layer; None for the mean over layers.
    """
    tags, kept, lift = looks(document, layer)
    z = np.log2(np.clip(lift, 1 / 16, 16))
    end = float(max(0.5, np.ceil(2 * np.abs(z).max()) / 2))
    ticks = [t for t in (-4, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 4) if abs(t) <= end]
    figure = go.Figure()
    figure.add_heatmap(
        z=z,
        x=tags,
        y=tags,
        xgap=1,
        ygap=1,
        zmin=-end,
        zmax=end,
        colorscale=LOOKS,
        colorbar={
            "title": {"text": "times as often as all", "side": "top"},
            "orientation": "h",
            "y": 1.0,
            "yanchor": "bottom",
            "thickness": 12,
            "outlinewidth": 0,
            "tickvals": ticks,
            "ticktext": [f"{2.0**t:.2g}×" for t in ticks],
        },
        text=[[f"{a:.2f}" for a in row] for row in lift],
        texttemplate="%{text}",
        customdata=100 * kept,
        hovertemplate="%{y} for %{x}<br>%{text} times as often as tokens in all<br>%{customdata:.3g} % of their far "
        "pairs are kept<extra></extra>",
    )
    figure.update_xaxes(title="… the key, what it is", tickangle=-40, showgrid=False)
    figure.update_yaxes(title="The query looks for …", autorange="reversed", showgrid=False, dtick=1)
    return quiet(figure, height=520).update_layout(margin_t=56)
