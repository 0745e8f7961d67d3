"""Pictures of the page Vision: the learned functions over the scores, and what was recorded of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.palette import GROUPS, KEPT, LOST
from analysis.style import GRID, QUIET, quiet
from analysis.vision import Curves, Looked

BINS = 32
NAMED = 3
"""Keys whose functions are drawn in a colour of their own."""
FLAT = 6
"""Panels share a scale up to this ratio of their largest values."""
_COLORS = (LOST, GROUPS[15], GROUPS[14])


def place_of(token: int, grid: int) -> str:
    """A key in words."""
    if token == 0:
        return "class token"
    return f"row {(token - 1) // grid + 1}, column {(token - 1) % grid + 1}"


def softmax_of(scores: np.ndarray, x: np.ndarray) -> np.ndarray:
    """What softmax makes of a score ``x`` beside a row's scores on average: exp(x) over their sum of exponentials."""
    top = max(float(scores.max()), float(x.max()))
    return np.exp(x - top) / np.exp(scores - top).sum()


def most_bent(curves: Curves, layer: int, head: int) -> list[int]:
    """The keys whose functions change most over the shown scores, the greatest change first."""
    own = curves.own[layer, head]
    return [int(k) for k in np.argsort(-(own.max(-1) - own.min(-1)))[:NAMED]]


def curves_figure(looked: list[Looked], layer: int, head: int, query: int) -> go.Figure:
    """One panel a model: what a key's score does to its weight, over where this image's scores fall."""
    titles = [_panel_title(m) for m in looked]
    fig = make_subplots(
        2,
        len(looked),
        shared_xaxes=True,
        row_heights=[0.78, 0.22],
        vertical_spacing=0.04,
        horizontal_spacing=0.09,
        subplot_titles=titles,
    )
    several = sum(m.curves is not None for m in looked) > 1
    for column, m in enumerate(looked, 1):
        owner = f"{m.word}, " if several else ""
        scores = m.scores[layer, head]
        row = scores[query]
        if m.curves is None:
            low, high = float(scores.min()), float(scores.max())
            x = np.linspace(low - 0.08 * (high - low), high + 0.08 * (high - low), 96)
            _line(fig, column, x, softmax_of(row, x), "eˣ over the row's sum", KEPT, width=3)
        else:
            x, own = m.curves.x[layer, head], m.curves.own[layer, head]
            gaps = np.column_stack([own, np.full(len(own), np.nan)]).ravel()
            _line(
                fig, column, np.tile(np.append(x, np.nan), len(own)), gaps, f"all {len(own)} keys", QUIET, opacity=0.5
            )
            for color, key in zip(_COLORS, most_bent(m.curves, layer, head), strict=False):
                _line(fig, column, x, own[key], f"{owner}key: {place_of(key, m.grid)}", color, width=2.6)
            _line(fig, column, x, softmax_of(row, x), "softmax of the same scores", QUIET, dash="dash", width=2)
        counts, edges = np.histogram(scores, BINS, range=(float(x.min()), float(x.max())))
        fig.add_bar(
            x=(edges[:-1] + edges[1:]) / 2,
            y=counts,
            marker_color=QUIET,
            showlegend=False,
            hovertemplate="score %{x:.2f}: %{y} pairs<extra></extra>",
            row=2,
            col=column,
        )
        fig.update_xaxes(title_text="score q·k / √d", row=2, col=column)
        fig.update_xaxes(range=[float(x.min()), float(x.max())], col=column)
    if one_scale(looked, layer, head, query):
        drawn = np.concatenate([np.asarray(trace.y, float) for trace in fig.data if trace.type == "scatter"])
        low, high = min(0.0, float(np.nanmin(drawn))), float(np.nanmax(drawn))
        fig.update_yaxes(range=[low - 0.05 * (high - low), high + 0.05 * (high - low)], row=1)
    quiet(fig, height=450, bargap=0.05)
    fig.update_layout(legend={"y": -0.26, "yanchor": "top"}, margin_b=110)
    fig.update_yaxes(title_text="adds to its weight", row=1, col=1)
    fig.update_yaxes(title_text="pairs", row=2, col=1, showticklabels=False)
    fig.update_yaxes(showticklabels=False, row=2)
    for column in range(1, len(looked) + 1):
        fig.add_hline(y=0, line_color=GRID, line_width=2, row=1, col=column)
    return fig


def one_scale(looked: list[Looked], layer: int, head: int, query: int) -> bool:
    """Whether the panels can share a scale without one of them becoming a flat line."""
    sizes = [_size(m, layer, head, query) for m in looked]
    return max(sizes) <= FLAT * min(sizes)


def _size(m: Looked, layer: int, head: int, query: int) -> float:
    if m.curves is not None:
        return float(np.abs(m.curves.own[layer, head]).max())
    scores = m.scores[layer, head]
    return float(softmax_of(scores[query], np.array([scores.max()]))[0])


def _panel_title(m: Looked) -> str:
    return m.word if m.curves is None else f"{m.word}, learned"


def _line(
    fig: go.Figure, column: int, x: np.ndarray, y: np.ndarray, name: str, color: str, *, opacity: float = 1, **line: Any
) -> None:
    fig.add_scatter(
        x=x,
        y=y,
        name=name,
        mode="lines",
        opacity=opacity,
        line={"color": color, "width": 1, **line},
        legendgroup=name,
        showlegend=all(trace.name != name for trace in fig.data),
        hoverinfo="skip" if opacity < 1 else None,
        hovertemplate=None if opacity < 1 else "score %{x:.2f}: %{y:.3g}<extra>" + name + "</extra>",
        row=1,
        col=column,
    )


def curves_table(looked: list[Looked], layer: int, head: int) -> pd.DataFrame:
    """One row a model, key and score."""
    parts = []
    for m in looked:
        if m.curves is None:
            continue
        x, own = m.curves.x[layer, head], m.curves.own[layer, head]
        keys = np.repeat([place_of(k, m.grid) for k in range(len(own))], len(x))
        parts.append(pd.DataFrame({"model": m.word, "key": keys, "score": np.tile(x, len(own)), "value": own.ravel()}))
    columns = ["model", "key", "score", "value"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
