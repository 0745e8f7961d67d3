"""What is gained and what is forgotten, in one picture: every ability's change against dense, better to the right."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from analysis.forgetting import DOMAIN, changes, measures, shown
from analysis.forgetting_arms import arm_key, arm_label, family
from analysis.forgetting_frontier import LOOKS, OTHER
from analysis.numbers import percent, sig3
from analysis.palette import GROUPS
from analysis.style import LOSES, QUIET, quiet, say

_STEP, _ROOM = 9, 22
"""Pixels between the arms of one ability, and around them."""
_SECOND = {"focus": (GROUPS[3], "square"), "lora": (GROUPS[13], "star")}
"""Looks of a second arm of one family."""


def gain_and_loss(dense: dict[str, Any] | None, others: Sequence[dict[str, Any]]) -> go.Figure:
    """One line an ability, one mark an arm: its change against dense with the paired 95 % interval.

    Perplexities change by per cent (a fall is better and lies to the right), shares by percentage points. What is
    dense by definition is hollow: it could not change. What is better when it is less is left to the table.
    """
    figure = go.Figure()
    if dense is None or not others:
        return quiet(say(figure, "Nothing has been recorded yet."), height=320)
    rows = [one for one in measures(dense) if not one.lower]
    names = [one.label for one in rows]
    count, reach = len(others), 5.0
    tall = max(40, _ROOM + _STEP * (count - 1))
    seen: set[str] = set()
    for number, document in enumerate(others):
        kind = family(document)
        first = LOOKS.get(kind, OTHER)
        colour, symbol = first if kind not in seen else _SECOND.get(kind, first)
        seen.add(kind)
        found = {c.measure.key: c for c in changes(dense, document)}
        here = [found[one.key] for one in rows if one.key in found]
        lift = _STEP / tall * ((count - 1) / 2 - number)
        label = escape(arm_label(document))
        reach = max([reach, *(abs(c.change) * 100 for c in here), *(abs(c.low or 0) * 100 for c in here)])
        figure.add_scatter(
            x=[c.change * 100 for c in here],
            y=[len(names) - 1 - names.index(c.measure.label) + lift for c in here],
            name=label,
            mode="markers",
            marker={
                "size": 11 if count < 4 else 9,
                "color": colour,
                "symbol": [f"{symbol}-open" if c.by_definition else symbol for c in here],
                "line": {"width": 2, "color": colour},
            },
            error_x={
                "type": "data",
                "array": [0 if c.high is None or c.by_definition else (c.high - c.change) * 100 for c in here],
                "arrayminus": [0 if c.low is None or c.by_definition else (c.change - c.low) * 100 for c in here],
                "color": colour,
                "thickness": 1.5,
                "width": 4,
            },
            customdata=[
                [
                    c.measure.label,
                    shown(c.value, c),
                    shown(c.dense, c),
                    _interval(c),
                    f"{c.of:,} {'tokens' if c.measure.key[0] == 'texts' else 'items'}",
                    arm_key(document),
                ]
                for c in here
            ],
            hovertemplate=(
                f"<b>{label}</b><br>%{{customdata[0]}}: %{{customdata[1]}}, dense %{{customdata[2]}}<br>"
                "%{customdata[3]}, %{customdata[4]}<extra></extra>"
            ),
        )
    reach *= 1.08
    figure.add_vrect(x0=-reach, x1=0, fillcolor=LOSES, line_width=0, layer="below")
    figure.add_vline(x=0, line={"dash": "dash", "width": 1, "color": QUIET})
    domain = sum(one.group == DOMAIN for one in rows)
    figure.add_hline(y=len(names) - domain - 0.5, line={"width": 1, "color": QUIET})
    for words, x, anchor in (("← forgotten", 0.0, "left"), ("gained →", 1.0, "right")):
        figure.add_annotation(
            text=words, x=x, y=1.0, xref="paper", yref="paper", yanchor="bottom", xanchor=anchor, showarrow=False,
            font={"color": QUIET},
        )  # fmt: skip
    figure.update_xaxes(title="Better than dense, % or points", range=[-reach, reach])
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=[escape(n) for n in reversed(names)], range=[-0.6, len(names) - 0.4]
    )
    quiet(figure, height=130 + tall * len(names))
    figure.update_layout(legend={"y": 1.06}, margin={"t": 76})
    return figure


def _interval(change: Any) -> str:
    if change.by_definition:
        return "dense by definition: it fits into window and first tokens"
    unit = "%" if change.measure.key[0] == "texts" else " points"
    if change.low is None or change.high is None:
        return f"change {sig3(change.change * 100)}{unit}"
    ends = " to ".join(percent(end, signed=True).replace(" %", "") for end in (change.low, change.high))
    return f"better by {percent(change.change, signed=True).replace(' %', '')}{unit} ({ends})"
