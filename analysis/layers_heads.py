"""Layers x heads: one number for every head of the model, as a heatmap."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from analysis import heads as measures
from analysis.numbers import percent, sig3
from analysis.palette import LOST
from analysis.style import DIVERGING, SEQUENTIAL, quiet, say
from focus_core.trace import Trace

FIELDS = {field: measure.title for field, measure in measures.MEASURES.items()}


def layers_by_heads(
    shares: np.ndarray,
    title: str,
    *,
    unit: str = "%",
    scale: tuple[float, float] | None = None,
    difference: bool = False,
    picked: tuple[int, int | None] | None = None,
    height: int = 420,
) -> go.Figure:
    """Heatmap of one number for every layer and query head.

    Args:
        shares: (layers, heads) shares, numbers in ``unit``, or differences of them.
        title: what is shown, for the colour bar and hover.
        unit: ``%`` for shares, 0 to 1; else the numbers' own.
        scale: lowest and highest number of the colours, for shares 0 and 1; give the same one to figures that are
            compared.
        difference: colours diverge around zero.
        picked: the (layer, head) to outline; head None outlines the whole layer.
        height: in pixels.
    """
    figure = go.Figure()
    shares = np.asarray(shares, float)
    if shares.size == 0:
        return quiet(say(figure, "This run did not record it."), height=height)
    layers, heads = shares.shape
    factor = 100 if unit == "%" else 1
    if difference:
        reach = float(np.nanmax(np.abs(shares))) or 1.0
        colours = {"colorscale": DIVERGING, "zmin": -reach * factor, "zmax": reach * factor}
    else:
        low, high = scale or ((0.0, 1.0) if unit == "%" else measures.scale(shares))
        colours = {"colorscale": SEQUENTIAL, "zmin": low * factor, "zmax": high * factor}
    figure.add_heatmap(
        z=shares * factor,
        x=list(range(heads)),
        y=list(range(layers)),
        xgap=1,
        ygap=1,
        colorbar={"title": {"text": f"{title}, {unit}", "side": "right"}, "thickness": 12, "outlinewidth": 0},
        text=[[_text(v, unit, difference) for v in row] for row in shares],
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
    shares = trace.arrays.get(field, np.zeros((0, 0)))
    unit = measures.MEASURES[field].unit
    return layers_by_heads(shares, FIELDS[field], unit=unit, picked=picked, height=height)


def _text(value: float, unit: str, signed: bool) -> str:
    if unit == "%":
        return percent(value, signed=signed)
    return f"{'+' if signed and value > 0 else ''}{sig3(value)} {unit}"
