"""How many groups the queries of each layer and KV head look into, as a heatmap."""

from __future__ import annotations

import plotly.graph_objects as go

from analysis.looks import Table
from analysis.palette import LOST
from analysis.style import SEQUENTIAL, quiet


def looks_by_head(table: Table, picked: tuple[int, int] | None = None) -> go.Figure:
    """Heatmap of a table of looks.

    Args:
        table: groups looked into, by layer and router.
        picked: the (layer, router) to outline.
    """
    heads = [list(row) for row in zip(*table, strict=True)]
    figure = go.Figure()
    figure.add_heatmap(
        z=heads,
        x=list(range(len(table))),
        y=list(range(len(heads))),
        xgap=1,
        ygap=1,
        zmin=0,
        colorscale=SEQUENTIAL,
        colorbar={"title": {"text": "groups", "side": "right"}, "thickness": 12, "outlinewidth": 0},
        text=heads,
        texttemplate="%{text}",
        hovertemplate="layer %{x}, KV head %{y}<br>looks into %{z} groups<extra></extra>",
    )
    if picked is not None:
        layer, head = picked
        line = {"width": 2.5, "color": LOST}
        figure.add_shape(type="rect", x0=layer - 0.5, x1=layer + 0.5, y0=head - 0.5, y1=head + 0.5, line=line)
    figure.update_xaxes(title="Layer", dtick=1 if len(table) <= 40 else None, showgrid=False)
    figure.update_yaxes(title="KV head", dtick=1, autorange="reversed", showgrid=False)
    return quiet(figure, height=110 + 38 * len(heads)).update_layout(margin_t=16)
