"""What a model needs on a card with each variant: weights, cache and one layer's attention."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from analysis.choose import Ask, Choice
from analysis.numbers import memory
from analysis.palette import KEPT, LOST, WINDOW
from analysis.style import QUIET, quiet, say

_PARTS = (("weights", "Weights", QUIET), ("cache", "Cache", KEPT), ("workspace", "One layer's attention", WINDOW))


def bytes_on_a_card(choices: Sequence[Choice], ask: Ask) -> go.Figure:
    """Bytes by variant, stacked, with the card as a line; what cannot run for another reason is left out."""
    figure = go.Figure()
    shown = [c for c in choices if c.needs is not None]
    if not shown:
        return quiet(say(figure, "The model's shape is not known yet."), height=360)
    # Two settings of one variant may have one label, and bars of one name would lie on each other.
    names = [escape(c.line.label) for c in shown]
    places = [name + "\u200b" * names[:i].count(name) for i, name in enumerate(names)]
    for field, name, shade in _PARTS:
        figure.add_bar(
            y=places,
            x=[getattr(c, field) / 1e9 for c in shown],
            orientation="h",
            name=name,
            marker={"color": shade, "opacity": [0.35 if c.why_not else 1 for c in shown]},
            customdata=[[memory(getattr(c, field)), memory(c.needs)] for c in shown],
            hovertemplate=f"%{{y}}<br>{name}: %{{customdata[0]}} of %{{customdata[1]}}<extra></extra>",
        )
    if ask.card is not None:
        figure.add_vline(x=ask.card / 1e9, line={"dash": "dash", "color": LOST}, annotation_text="the card")
    figure.update_xaxes(title="GB", rangemode="tozero")
    figure.update_yaxes(title="Variant", autorange="reversed")
    return quiet(figure, height=140 + 26 * len(shown), barmode="stack")
