"""How every figure looks: transparent, quiet, readable on a light and on a dark page."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

QUIET = "rgba(128, 132, 149, 0.9)"
GRID = "rgba(128, 132, 149, 0.22)"
LOSES = "rgba(230, 126, 34, 0.13)"
SEQUENTIAL = "Cividis"
DIVERGING = [[0.0, "#2166ac"], [0.5, "rgba(140, 140, 150, 0.25)"], [1.0, "#d6604d"]]


def quiet(figure: go.Figure, *, height: int, **layout: Any) -> go.Figure:
    """Apply the common layout: no background of its own, light grid, legend above, room for labels."""
    figure.update_layout(
        height=height,
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        margin={"l": 64, "r": 24, "t": 48, "b": 56},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        hoverlabel={"align": "left"},
        **layout,
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False, automargin=True)
    figure.update_yaxes(gridcolor=GRID, zeroline=False, automargin=True)
    return figure


def say(figure: go.Figure, text: str) -> go.Figure:
    """Put one sentence in an empty figure, so that it is never blank."""
    figure.add_annotation(text=text, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper", font={"color": QUIET})
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure
