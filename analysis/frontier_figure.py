"""The recorded frontier as a picture: pairs kept across, change of perplexity up, one mark a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from textwrap import wrap

import plotly.graph_objects as go

from analysis.frontier_marks import GOALS, METHODS, Mark, of
from analysis.lines import colour
from analysis.numbers import NONE, percent
from analysis.palette import KEPT
from analysis.style import LOSES, QUIET, quiet, say

EMPTY = "Nothing is recorded of this text at this length."
_SYMBOLS = {
    "focus": "circle",
    "tables": "star",
    "shared": "circle-open",
    "window": "square",
    "longformer": "square-open",
    "bigbird": "diamond",
    "routing": "triangle-up",
    "kmeans": "triangle-down",
    "random": "x",
    "xattention": "cross",
}
_SWEPT = ("focus", "window", "longformer", "bigbird", "kmeans")
"""Methods whose marks are one setting at several values: a line joins them."""


def plane(found: Iterable[Mark], text: str, context: int) -> go.Figure:
    """Pairs kept against the change of perplexity, on one text at one length.

    Args:
        found: every mark; see :func:`analysis.frontier_marks.marks`.
        text: a key of ``TEXTS``.
        context: tokens of a window.

    Returns:
        Both axes in %; bars are one standard error; dense is the line at zero, and above it the ground is shaded.
    """
    figure, here = go.Figure(), of(found, text, context)
    if not here:
        return quiet(say(figure, EMPTY), height=460)
    for method in (*METHODS, *sorted({mark.method for mark in here} - set(METHODS))):
        group = [mark for mark in here if mark.method == method]
        if group:
            figure.add_trace(_trace(method, group))
    most = max(100 * (mark.change + (mark.error or 0)) for mark in here)
    least = min(100 * (mark.change - (mark.error or 0)) for mark in here)
    room = 0.08 * (max(most, 0) - min(least, 0)) or 1.0
    low, high, wide = min(least, 0) - 2 * room, max(most, 0) + room, 108 * max(mark.kept for mark in here)
    figure.add_shape(type="rect", x0=0, x1=wide, y0=0, y1=high, fillcolor=LOSES, line_width=0, layer="below")
    line = {"dash": "dash", "width": 1, "color": QUIET}
    figure.add_shape(type="line", x0=0, x1=wide, y0=0, y1=0, line=line, layer="below")
    note = {"showarrow": False, "font": {"size": 12, "color": QUIET}}
    figure.add_annotation(x=0, y=0, text="dense", xanchor="left", yanchor="top", **note)
    figure.add_annotation(x=wide, y=high, text="predicts worse", xanchor="right", yanchor="top", **note)
    if goal := GOALS.get(context):
        edge = {"dash": "dot", "width": 1, "color": QUIET}
        figure.add_shape(type="line", x0=100 * goal, x1=100 * goal, y0=low, y1=0, line=edge, layer="below")
        aim = f"aim: here and left, {percent(goal)}"
        figure.add_annotation(x=100 * goal, y=low, text=aim, xanchor="right", yanchor="bottom", xshift=-4, **note)
    figure.update_xaxes(title="Pairs kept, % of causal pairs", range=[0, wide])
    figure.update_yaxes(title="Perplexity against dense, %", ticksuffix=" ", range=[low, high])
    quiet(figure, height=500)
    # Below the picture and above the figure's foot, whichever width the names leave it.
    legend = {"yref": "container", "yanchor": "bottom", "y": 0, "font": {"size": 12}}
    return figure.update_layout(margin={"t": 16, "b": 64}, legend=legend)


def _trace(method: str, group: Sequence[Mark]) -> go.Scatter:
    shade = KEPT if method in ("tables", "shared") else colour(method)
    spreads = [None if mark.error is None else 100 * mark.error * (1 + mark.change) for mark in group]
    return go.Scatter(
        x=[100 * mark.kept for mark in group],
        y=[100 * mark.change for mark in group],
        error_y={"type": "data", "array": spreads, "color": shade, "thickness": 1.2, "width": 4}
        if any(spreads)
        else None,
        name=METHODS.get(method, method),
        mode="lines+markers" if method in _SWEPT else "markers",
        line={"color": shade, "width": 1, "dash": "dot"},
        marker={
            "size": 13 if method in ("focus", "tables") else 10,
            "color": shade,
            "symbol": _SYMBOLS.get(method, "hexagram"),
            "line": {"width": 2 if _SYMBOLS.get(method, "").endswith("-open") else 1, "color": shade},
        },
        customdata=[[escape(mark.name), hover(mark)] for mark in group],
        hovertemplate="<b>%{customdata[0]}</b> (recorded)<br>%{customdata[1]}<extra></extra>",
    )


def hover(mark: Mark) -> str:
    """What pointing at a mark tells: figures, adapter, settings, where and when, and the command."""
    spread = "one or two windows, no spread" if mark.error is None else f"{mark.windows} windows"
    where = mark.where
    command = "<br>".join(escape(line) for line in wrap(str(mark.document.get("command", NONE)), 88))
    return "<br>".join(
        (
            f"perplexity {mark.changed()} ({spread}), {percent(mark.kept)} of the pairs",
            f"adapter: {escape(mark.adapter or 'none')}",
            *(escape(line) for line in wrap(mark.settings(), 88)),
            escape(f"{mark.document.get('dtype', '')}, {where.get('device') or 'CPU'}, {str(where.get('time'))[:10]}"),
            command,
        )
    )
