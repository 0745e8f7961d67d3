"""Figures of groups: groups x parts of speech, who may see whom, agreement over the layers."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from analysis.agreement import BASELINES, MEASURES, Agreement
from analysis.groups import Sight
from analysis.numbers import percent
from analysis.palette import BETTER, GROUPS, LOST, group_label
from analysis.parts import KINDS
from analysis.style import QUIET, SEQUENTIAL, quiet, say

NAMES = {"groups": "Learned groups", "kmeans": "k-means, untrained", **BASELINES}
_DASHES = {"kmeans": "dash", "lookup": "dashdot", "frequency": "longdashdot", "shuffled": "dot", "random": "dot"}
_SYMBOLS = {
    "groups": "circle",
    "kmeans": "square",
    "lookup": "triangle-up",
    "frequency": "diamond",
    "shuffled": "x-thin",
    "random": "cross-thin",
}
_COLOURS = {
    "groups": BETTER,
    "kmeans": GROUPS[13],
    "lookup": GROUPS[4],
    "frequency": LOST,
    "shuffled": QUIET,
    "random": "#8d7f96",
}


def kinds_heatmap(counts: np.ndarray, picked: int | None = None, *, height: int = 430) -> go.Figure:
    """Groups x kinds of token: the share of a group's tokens that are of each kind.

    Args:
        counts: (K, kinds) tokens, of ``groups.kinds_by_group``.
        picked: the group to outline.
        height: in pixels.
    """
    figure = go.Figure()
    present = np.flatnonzero(counts.sum(0))
    if not present.size:
        return quiet(say(figure, "No token of this text has a part of speech."), height=height)
    size = counts.sum(1, keepdims=True)
    share = counts[:, present] / np.maximum(size, 1)
    letters = [group_label(g) for g in range(len(counts))]
    figure.add_heatmap(
        z=100 * share,
        x=[KINDS[i] for i in present],
        y=letters,
        xgap=1,
        ygap=1,
        zmin=0,
        zmax=100,
        colorscale=SEQUENTIAL,
        colorbar={"title": {"text": "of the group's tokens, %", "side": "right"}, "thickness": 12, "outlinewidth": 0},
        text=[[f"{int(c):,} of {int(size[g, 0]):,}" for c in row] for g, row in enumerate(counts[:, present])],
        hovertemplate="group %{y}, %{x}<br>%{text} tokens, %{z:.3g} %<extra></extra>",
    )
    _outline(figure, picked, len(present))
    figure.update_xaxes(tickangle=-40, showgrid=False)
    figure.update_yaxes(title="Group", autorange="reversed", showgrid=False, dtick=1)
    return quiet(figure, height=height).update_layout(margin_t=12)


def sight_heatmap(sight: Sight, picked: int | None = None, *, height: int = 430) -> go.Figure:
    """Who may see whom: key group of the query token x the group it looks into.

    Args:
        sight: of ``groups.who_sees_whom``.
        picked: the key group to outline.
        height: in pixels.
    """
    figure, k = go.Figure(), len(sight.may)
    letters = [group_label(g) for g in range(k)]
    said = [
        [
            f"{percent(sight.may[a, b])} of its tokens look there<br>{int(sight.pairs[a, b]):,} of "
            f"{int(sight.possible[a, b]):,} far pairs are kept"
            for b in range(k)
        ]
        for a in range(k)
    ]
    figure.add_heatmap(
        z=100 * sight.may,
        x=letters,
        y=letters,
        xgap=1,
        ygap=1,
        zmin=0,
        zmax=100,
        colorscale=SEQUENTIAL,
        colorbar={"title": {"text": "of the group's tokens, %", "side": "right"}, "thickness": 12, "outlinewidth": 0},
        text=said,
        hovertemplate="tokens in %{y} looking into %{x}<br>%{text}<extra></extra>",
    )
    _outline(figure, picked, k)
    figure.update_xaxes(title="… may look into group", showgrid=False, dtick=1)
    figure.update_yaxes(title="A token in group …", autorange="reversed", showgrid=False, dtick=1)
    return quiet(figure, height=height).update_layout(margin_t=12)


def _outline(figure: go.Figure, picked: int | None, columns: int) -> None:
    if picked is not None:
        figure.add_shape(
            type="rect",
            x0=-0.5,
            x1=columns - 0.5,
            y0=picked - 0.5,
            y1=picked + 0.5,
            line={"width": 2.5, "color": LOST},
        )


def agreement_curve(found: Agreement, measure: str, layer: int | None = None, *, height: int = 430) -> go.Figure:
    """A measure over the layers, with its 95 % interval, beside its baselines.

    Args:
        found: of ``agreement.agreement``.
        measure: one of ``MEASURES``.
        layer: the layer to mark.
        height: in pixels.
    """
    figure = go.Figure()
    curves = found.curves[measure]
    groups = curves["groups"]
    figure.add_scatter(
        x=np.concatenate([groups.layers, groups.layers[::-1]]),
        y=np.concatenate([groups.high, groups.low[::-1]]),
        fill="toself",
        fillcolor="rgba(47, 127, 224, 0.18)",
        mode="lines",
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
    )
    for key in sorted(curves, key=list(NAMES).index):
        curve, main = curves[key], key == "groups"
        interval = [f"<br>{a:.3f} to {b:.3f}" for a, b in zip(curve.low, curve.high, strict=True)] if main else None
        figure.add_scatter(
            x=curve.layers,
            y=curve.value,
            name=NAMES[key],
            mode="lines+markers",
            line={"color": _COLOURS[key], "width": 3 if main else 1.8, "dash": _DASHES.get(key)},
            marker={
                "size": 7 if main else 5,
                "symbol": _SYMBOLS[key],
                "line": {"width": 1.5, "color": _COLOURS[key]},
            },
            text=interval,
            hovertemplate=f"{NAMES[key]}<br>layer %{{x}}: %{{y:.3f}}{'%{text}' if main else ''}<extra></extra>",
        )
    if layer is not None:
        figure.add_vline(x=layer, line={"color": QUIET, "width": 1, "dash": "dot"})
    figure.update_xaxes(title="Layer", dtick=1 if len(groups.layers) <= 16 else 2)
    figure.update_yaxes(title=MEASURES[measure], rangemode="tozero")
    return quiet(figure, height=height)
