"""Layers x heads: one number for every head of the model, as a heatmap."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from analysis.numbers import percent
from analysis.palette import LOST
from analysis.style import DIVERGING, SEQUENTIAL, quiet, say
from focus_core.trace import Trace

FIELDS = {
    "kept_pairs": "Pairs kept",
    "mass_kept": "Dense attention mass kept",
}


def layers_by_heads(
    shares: np.ndarray,
    title: str,
    *,
    scale: tuple[float, float] | None = None,
    difference: bool = False,
    picked: tuple[int, int | None] | None = None,
    height: int = 420,
) -> go.Figure:
    """Heatmap of a share for every layer and query head.

    Args:
        shares: (layers, heads) shares, or differences of shares.
        title: what is shown, for the colour bar and hover.
        scale: lowest and highest share of the colours; give the same one to figures that are compared.
        difference: colours diverge around zero.
        picked: the (layer, head) to outline; head None outlines the whole layer.
        height: in pixels.
    """
    figure = go.Figure()
    shares = np.asarray(shares, float)
    if shares.size == 0:
        return quiet(say(figure, "This run did not record it."), height=height)
    layers, heads = shares.shape
    if difference:
        reach = float(np.nanmax(np.abs(shares))) or 1.0
        colours = {"colorscale": DIVERGING, "zmin": -reach * 100, "zmax": reach * 100}
    else:
        low, high = scale or (0.0, 1.0)
        colours = {"colorscale": SEQUENTIAL, "zmin": low * 100, "zmax": high * 100}
    figure.add_heatmap(
        z=shares * 100,
        x=list(range(heads)),
        y=list(range(layers)),
        xgap=1,
        ygap=1,
        colorbar={"title": {"text": f"{title}, %", "side": "right"}, "thickness": 12, "outlinewidth": 0},
        text=[[percent(v, signed=difference) for v in row] for row in shares],
        hovertemplate=f"layer %{{y}}, head %{{x}}<br>{title}: %{{text}}<extra></extra>",
        **colours,
    )
    if picked is not None:
        layer, head = picked
        left, right = (-0.5, heads - 0.5) if head is None else (head - 0.5, head + 0.5)
        figure.add_shape(
            type="rect", x0=left, x1=right, y0=layer - 0.5, y1=layer + 0.5, line={"width": 2.5, "color": LOST}
        )
    figure.update_xaxes(title="Query head", dtick=1 if heads <= 16 else None, showgrid=False)
    figure.update_yaxes(title="Layer", autorange="reversed", showgrid=False)
    return quiet(figure, height=height)


def of_trace(trace: Trace, field: str, *, picked: tuple[int, int | None] | None = None, height: int = 420) -> go.Figure:
    """Heatmap of one of a Trace's ``FIELDS``; says so when the Trace has not recorded it."""
    return layers_by_heads(trace.arrays.get(field, np.zeros((0, 0))), FIELDS[field], picked=picked, height=height)
