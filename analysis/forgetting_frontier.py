"""Domain gain against general loss: every arm of every sweep, one panel for each thing that could be forgotten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.forgetting_arms import LORA, NAMES, SWEPT, arm_label, domain_gain, family, mark, training
from analysis.forgetting_losses import PANELS, Loss
from analysis.numbers import percent
from analysis.palette import GROUPS, KEPT, LOST
from analysis.style import LOSES, QUIET, quiet, say

LOOKS = {
    "focus": (KEPT, "circle"),
    "lora": (LOST, "diamond"),
    "full": (GROUPS[9], "triangle-up"),
    "focus-full": (GROUPS[4], "triangle-down"),
}
_BESIDE = {"lora": "bottom left", "full": "top right", "focus-full": "bottom left"}
"""Where a mark's words stand, so that those of two ways to train seldom meet."""
OTHER = (GROUPS[13], "star")


def frontier(dense: dict[str, Any] | None, others: Sequence[dict[str, Any]]) -> go.Figure:
    """Gain on the training domain to the right, change elsewhere upwards; a line joins the rates of one sweep."""
    found = [d for d in others if math.isfinite(domain_gain(d))]
    if dense is None or not found:
        return quiet(say(go.Figure(), "Nothing has been recorded yet."), height=320)
    # The unit stands under the title: beside the axis it would meet the panel to the left on a narrow screen.
    titles = [f"{name}<br><sup>{unit}</sup>" for name, (unit, _) in PANELS.items()]
    figure = make_subplots(2, 2, subplot_titles=titles, horizontal_spacing=0.11, vertical_spacing=0.16)
    kinds = (*NAMES, *sorted({family(d) for d in found} - set(NAMES)))
    for place, (unit, measure) in enumerate(PANELS.values()):
        row, column = place // 2 + 1, place % 2 + 1
        lowest = 0.0
        for kind in kinds:
            here = [(d, loss) for d in found if family(d) == kind and (loss := measure(dense, d)) is not None]
            for part in _lines(here):
                figure.add_trace(_trace(kind, part, unit, named=place == 0), row, column)
                lowest = min([lowest, *(loss.low for _, loss in part)])
        figure.add_hline(y=0, line={"dash": "dash", "width": 1, "color": QUIET}, row=row, col=column)
        figure.add_hrect(y0=lowest * 110, y1=0, fillcolor=LOSES, line_width=0, layer="below", row=row, col=column)
    seen: set[str] = set()
    for trace in figure.data:
        trace.showlegend = trace.legendgroup not in seen
        seen.add(trace.legendgroup)
    figure.update_xaxes(title={"text": "gained on the novel, %", "standoff": 4}, row=2)
    quiet(figure, height=660)
    figure.update_layout(legend={"y": 1.1}, margin={"t": 100, "b": 48})
    return figure


def _lines(arms: list[tuple[dict[str, Any], Loss]]) -> list[list[tuple[dict[str, Any], Loss]]]:
    """Arms that a line joins, by their learning rate; what differs otherwise stands alone."""
    sweep = [one for one in arms if family(one[0]) in SWEPT and training(one[0]).get("rank") in (None, 8)]
    sweep = sorted((one for one in sweep if "learning_rate" in training(one[0])), key=_rate)
    joined = {id(one[0]) for one in sweep}
    rest = [[one] for one in arms if id(one[0]) not in joined]
    return ([sweep] if sweep else []) + rest


def _rate(one: tuple[dict[str, Any], Loss]) -> float:
    return float(training(one[0])["learning_rate"])


def _trace(kind: str, arms: list[tuple[dict[str, Any], Loss]], unit: str, *, named: bool) -> go.Scatter:
    colour, symbol = LOOKS.get(kind, OTHER)
    alone = len(arms) == 1 and kind == LORA
    return go.Scatter(
        x=[100 * (1 - math.exp(-domain_gain(d))) for d, _ in arms],
        y=[100 * loss.change for _, loss in arms],
        error_y={
            "type": "data",
            "array": [100 * (loss.high - loss.change) for _, loss in arms],
            "arrayminus": [100 * (loss.change - loss.low) for _, loss in arms],
            "color": colour,
            "thickness": 1,
            "width": 3,
        },
        name=NAMES.get(kind, kind),
        legendgroup=kind,
        mode="lines+markers+text" if named else "lines+markers",
        text=[escape(mark(d)) for d, _ in arms],
        textposition="top left" if alone else _BESIDE.get(kind, "top right"),
        textfont={"size": 10, "color": QUIET},
        cliponaxis=False,
        line={"color": colour, "width": 1.5, "dash": "dot"},
        marker={
            "size": 10,
            "color": colour,
            "symbol": f"{symbol}-open" if alone else symbol,
            "line": {"width": 2, "color": colour},
        },
        customdata=[
            [escape(arm_label(d)), *(percent(v, signed=True) for v in (loss.change, loss.low, loss.high))]
            for d, loss in arms
        ],
        hovertemplate=(
            "<b>%{customdata[0]}</b><br>novel %{x:.2f} % better<br>"
            f"elsewhere %{{customdata[1]}} (%{{customdata[2]}} to %{{customdata[3]}}), {unit}<extra></extra>"
        ),
    )
