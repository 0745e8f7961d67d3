"""Pairs by the distance of query and key: what is kept, what dense attention wants, what is lost."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from analysis.masks import ByDistance
from analysis.numbers import percent
from analysis.palette import KEPT, LOST, WINDOW
from analysis.style import QUIET, quiet


def bins(found: ByDistance) -> list[str]:
    """Names of the bins: ``0`` is the token itself, then ``1``, ``2–3``, ``4–7`` and so on."""
    pairs = zip(found.low.tolist(), found.high.tolist(), strict=True)
    return ["itself" if high == 0 else f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in pairs]


def figure(found: ByDistance, window: int, *, height: int = 360) -> go.Figure:
    """Bars: dense attention in each bin of distances, kept and lost; line: share of the bin's pairs that is kept."""
    names = bins(found)
    drawn = go.Figure()
    if found.mass is not None:
        kept = found.mass - found.lost
        for part, name, colour in (
            (kept, "dense attention, on kept pairs", QUIET),
            (found.lost, "on dropped pairs", LOST),
        ):
            drawn.add_bar(
                x=names,
                y=100 * part,
                name=name,
                marker_color=colour,
                customdata=[percent(v) for v in part],
                hovertemplate=f"distance %{{x}}<br>{name}: %{{customdata}} of all<extra></extra>",
            )
    drawn.add_scatter(
        x=names,
        y=100 * found.kept,
        name="pairs kept, of this distance",
        mode="lines+markers",
        line={"color": KEPT, "width": 2.5},
        marker={"size": 7},
        yaxis="y2",
        customdata=[percent(v) for v in found.kept],
        hovertemplate="distance %{x}<br>pairs kept: %{customdata}<extra></extra>",
    )
    quiet(drawn, height=height, barmode="stack")
    drawn.update_layout(
        margin={"r": 64},
        xaxis={"title": "distance from query to key, tokens", "type": "category"},
        yaxis={"title": "dense attention, %", "rangemode": "tozero", "visible": found.mass is not None},
        yaxis2={
            "title": {"text": "pairs kept, %", "font": {"color": KEPT}},
            "overlaying": "y",
            "side": "right",
            "range": [0, 105],
            "tickvals": [0, 25, 50, 75, 100],
            "showgrid": False,
            "zeroline": False,
        },
    )
    inside = sum(1 for high in found.high.tolist() if high < window)
    if 0 < inside < len(names):
        at = {"x0": inside - 0.5, "x1": inside - 0.5, "y0": 0, "y1": 1, "yref": "paper"}
        drawn.add_shape(type="line", **at, line={"color": WINDOW, "width": 2, "dash": "dot"})
        drawn.add_annotation(
            x=inside - 0.5,
            y=1,
            yref="paper",
            text="window ends",
            showarrow=False,
            xanchor="left",
            font={"color": WINDOW},
        )
    return drawn


def table(found: ByDistance) -> pd.DataFrame:
    """What the figure draws, one row a bin of distances; shares are 0 to 1."""
    rows = pd.DataFrame({"distance_from": found.low, "distance_to": found.high, "pairs_kept": found.kept})
    if found.mass is not None:
        rows["dense_attention"], rows["dense_attention_on_dropped_pairs"] = found.mass, found.lost
    return rows


def sentence(found: ByDistance, window: int) -> str:
    """What the figure says: how much of dense attention lies beyond the window, and how much of that is lost."""
    if found.mass is None:
        return "How much dense attention lies at each distance is not in this recording."
    far = found.low >= window
    if not far.any():
        return "All distances lie within the window: no pair is dropped."
    wanted, lost = float(found.mass[far].sum()), float(found.lost[far].sum())
    if not window:
        return f"{percent(1 - lost / wanted)} of dense attention is still seen, over all distances."
    if wanted <= 0:
        return "Dense attention wants nothing beyond the window here."
    seen = percent(1 - lost / wanted)
    return f"{percent(wanted)} of dense attention lies beyond the window; {seen} of that is still seen."
