"""Pictures of codes: two tokens and their overlap, and which dimensions survive along a text."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis import palette
from analysis.features.codes import Overlap
from analysis.style import GRID, QUIET, SEQUENTIAL, quiet

_WIDTH = 0.86
_BAND = "rgba(128, 132, 149, 0.09)"
SHARED, KEPT, DROPPED = "both keep it", "one keeps it", "dropped"
_COLORS = {SHARED: palette.KEPT, KEPT: "#8fbaf0", DROPPED: "rgba(150, 154, 165, 0.42)"}


def order_of(dim: int, rotary: int) -> np.ndarray:
    """Dimensions in the order in which they are drawn: the two of a rotary pair (u, u + rotary / 2) side by side."""
    half = rotary // 2
    paired = np.arange(2 * half).reshape(2, half).T.ravel()
    return np.concatenate([paired, np.arange(2 * half, dim)])


def overlap_figure(found: Overlap, rotary: int, names: tuple[str, str]) -> go.Figure:
    """Both tokens' dimensions as bars, what survives in colour, and below what the shared ones give the score.

    Args:
        found: the overlap.
        rotary: dimensions that are rotated in pairs; 0 for none.
        names: what query and key are called.
    """
    dim = len(found.query)
    order = order_of(dim, rotary)
    figure = make_subplots(3, 1, shared_xaxes=True, vertical_spacing=0.045, row_heights=[1, 1, 1.1])
    place, shared = np.arange(dim), found.shared[order]
    rows = ((found.query, found.query_kept), (found.key, found.key_kept))
    for number, (values, kept) in enumerate(rows, start=1):
        for kind, chosen in _kinds(shared, kept[order]).items():
            figure.add_bar(
                x=place[chosen],
                y=values[order][chosen],
                width=_WIDTH,
                marker={"color": _COLORS[kind], "line": {"width": 0}},
                name=kind,
                legendgroup=kind,
                showlegend=number == 1,
                customdata=order[chosen],
                hovertemplate=f"{names[number - 1]}<br>dimension %{{customdata}}: %{{y:.2f}}, {kind}<extra></extra>",
                row=number,
                col=1,
            )
    for kind, chosen in ((SHARED, shared), (DROPPED, ~shared)):
        figure.add_bar(
            x=place[chosen],
            y=found.dense_products[order][chosen],
            width=_WIDTH,
            marker={"color": _COLORS[kind], "line": {"width": 0}},
            name=kind,
            legendgroup=kind,
            showlegend=False,
            customdata=order[chosen],
            hovertemplate=f"dimension %{{customdata}} would give %{{y:.3f}}, {kind}<extra></extra>"
            if kind == DROPPED
            else "dimension %{customdata} gives the score %{y:.3f}<extra></extra>",
            row=3,
            col=1,
        )
    quiet(figure, height=430, bargap=0.12, barmode="overlay", hovermode="closest")
    figure.update_layout(margin={"l": 58, "r": 12, "t": 34, "b": 44})
    figure.update_yaxes(zeroline=True, zerolinecolor=GRID, nticks=4)
    for number, title in enumerate(("query", "key", "product"), start=1):
        figure.update_yaxes(title={"text": title, "standoff": 4}, row=number, col=1)
    figure.update_xaxes(showgrid=False, range=[-0.6, dim - 0.4])
    _mark_pairs(figure, dim, rotary)
    return figure


def _kinds(shared: np.ndarray, kept: np.ndarray) -> dict[str, np.ndarray]:
    return {SHARED: shared, KEPT: kept & ~shared, DROPPED: ~kept}


def _mark_pairs(figure: go.Figure, dim: int, rotary: int) -> None:
    half, every = rotary // 2, max(1, dim // 16)
    if not half:
        ticks = np.arange(0, dim, max(1, dim // 8))
        figure.update_xaxes(tickvals=ticks, ticktext=ticks, row=3, col=1)
        figure.update_xaxes(title="dimension of the head", row=3, col=1)
        return
    for pair in range(0, half, 2):
        x = 2 * pair
        figure.add_shape(
            type="rect",
            xref="x",
            yref="paper",
            x0=x - 0.5,
            x1=x + 1.5,
            y0=0,
            y1=1,
            fillcolor=_BAND,
            line_width=0,
            layer="below",
        )
    pairs = np.arange(0, half, max(1, every // 2))
    figure.update_xaxes(tickvals=2 * pairs + 0.5, ticktext=pairs, row=3, col=1)
    figure.update_xaxes(title=f"rotary pair u, which positions rotate: dimensions u and u + {half}", row=3, col=1)


def overlap_table(found: Overlap) -> pd.DataFrame:
    """One row a dimension."""
    return pd.DataFrame(
        {
            "dimension": np.arange(len(found.query)),
            "query": found.query,
            "query_kept": found.query_kept,
            "key": found.key,
            "key_kept": found.key_kept,
            "dense_product": found.dense_products,
            "product": found.products,
        }
    )


def survive_figure(values: np.ndarray, kept: np.ndarray, first: int, labels: list[str], rotary: int) -> go.Figure:
    """Tokens down, dimensions across: the size of what survives; above it how many tokens of the text keep each.

    Args:
        values: (N, D) of the whole text.
        kept: (N, D) bool.
        first: first token that is drawn.
        labels: the drawn tokens as people read them.
        rotary: dimensions that are rotated in pairs; 0 for none.
    """
    dim = values.shape[1]
    order = order_of(dim, rotary)
    shown = slice(first, first + len(labels))
    size = np.where(kept[shown], np.abs(values[shown]), np.nan)[:, order]
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.02, row_heights=[0.22, 1])
    used = kept.mean(0)[order]
    figure.add_bar(
        x=np.arange(dim),
        y=used,
        marker={"color": palette.KEPT},
        showlegend=False,
        customdata=order,
        hovertemplate="dimension %{customdata}: kept by %{y:.1%} of the tokens<extra></extra>",
        row=1,
        col=1,
    )
    even = float(kept.mean())
    figure.add_hline(y=even, line={"color": QUIET, "dash": "dot", "width": 1}, row=1, col=1)
    figure.add_heatmap(
        z=size.astype(np.float32),
        x=np.arange(dim),
        y=np.arange(len(labels)),
        colorscale=SEQUENTIAL,
        colorbar={"title": {"text": "size", "side": "top"}, "thickness": 10, "len": 0.7, "y": 0.4},
        text=None,
        customdata=np.tile(order, (len(labels), 1)).astype(np.uint8),
        hovertemplate="%{y}, dimension %{customdata}: %{z:.2f}<extra></extra>",
        hoverongaps=False,
        row=2,
        col=1,
    )
    quiet(figure, height=120 + 11 * max(12, len(labels)), bargap=0.1)
    figure.update_yaxes(title="used", tickformat=".0%", nticks=3, row=1, col=1)
    ticks = np.arange(0, len(labels), 2 if len(labels) > 24 else 1)
    figure.update_yaxes(
        autorange="reversed", tickvals=ticks, ticktext=[labels[t] for t in ticks], showgrid=False, row=2, col=1
    )
    figure.update_layout(margin={"l": 90, "r": 12, "t": 12, "b": 44})
    figure.update_xaxes(showgrid=False)
    half = rotary // 2
    if half:
        pairs = np.arange(0, half, max(1, dim // 32))
        figure.update_xaxes(
            tickvals=2 * pairs + 0.5,
            ticktext=pairs,
            title=f"rotary pair (u, u + {half}), which positions rotate",
            row=2,
            col=1,
        )
    else:
        figure.update_xaxes(title="dimension of the head", row=2, col=1)
    return figure
