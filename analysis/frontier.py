"""The frontier: quality against cost, with the region where a variant loses."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from analysis.comparison import change_interval, cost_of, is_baseline, median, scored
from analysis.lines import EMPTY, SYMBOLS, colour, name_of, turns
from analysis.numbers import duration, memory, percent, sig3, times, with_spread
from analysis.style import LOSES, QUIET, quiet, say

MEASURES = {"time": "Time", "pairs": "Pairs kept", "memory": "Peak memory"}
RECORDED = "recorded elsewhere"
_AXIS = {
    "time": "Prefill time, as a share of dense's (left is faster)",
    "pairs": "Pairs kept, % of causal pairs",
    "memory": "Peak memory of the prefill, MB",
}


def _bars(value: float, low: float | None, high: float | None) -> dict[str, Any] | None:
    if low is None or high is None:
        return None
    return {"type": "data", "array": [high - value], "arrayminus": [value - low], "thickness": 1.5, "width": 5}


def _shown_cost(value: float, measure: str) -> float:
    return {"time": value, "pairs": value * 100, "memory": value / 1e6}[measure]


def _cost_text(row: dict[str, Any], measure: str) -> str:
    if measure == "time":
        ratio, ms = row["ratio"], row["ms"]
        return (
            f"{times(ratio['median'])} dense's time ({times(ratio['p10'])} to {times(ratio['p90'])}, n={ratio['n']})"
            f"<br>{with_spread(ms, duration)}"
        )
    if measure == "memory":
        return f"{memory(row['peak_bytes'])} at the peak"
    return f"{percent(row['kept_pairs'])} of the pairs"


def frontier(
    result: dict[str, Any],
    length: int,
    measure: str,
    *,
    recorded: bool = False,
    others: tuple[tuple[str, dict[str, Any]], ...] = (),
) -> go.Figure:
    """Quality against cost at one length: left and down is better.

    Args:
        result: a comparison, complete or not.
        length: tokens.
        measure: ``time``, ``pairs`` or ``memory``.
        recorded: whether ``result`` is a recorded one.
        others: (caption, row) of recorded measurements to draw beside it, as open squares; rows without this cost
            are left out.

    Returns:
        A figure whose y is the change of perplexity against dense, in %; the parts where a variant costs more than
        dense or predicts worse are shaded.
    """
    figure = go.Figure()
    rows = [r for r in scored(result, length) if cost_of(r, measure) is not None and r["served"]]
    if not rows:
        return quiet(say(figure, EMPTY), height=440)
    turn_of = turns(result)
    for row in rows:
        _point(figure, row, measure, turn_of[row["key"]], "recorded" if recorded else "live")
    if measure == "time":
        _counted_points(figure, result, rows)
    for caption, row in others:
        if cost_of(row, measure) is not None:
            _recorded_point(figure, row, measure, caption, first=not any(t.name == RECORDED for t in figure.data))
    dense = next((r for r in rows if is_baseline(r)), None)
    if dense is not None:
        _losing_region(figure, _shown_cost(cost_of(dense, measure), measure))
    figure.update_yaxes(title="Perplexity against dense, %", ticksuffix=" ")
    figure.update_xaxes(title=_AXIS[measure], ticksuffix="×" if measure == "time" else "")
    quiet(figure, height=460)
    # Below the picture, so that long names take none of it.
    return figure.update_layout(margin={"t": 16}, legend={"yanchor": "top", "y": -0.16, "font": {"size": 12}})


def _point(figure: go.Figure, row: dict[str, Any], measure: str, turn: int, origin: str) -> None:
    x = _shown_cost(cost_of(row, measure), measure)
    y = row["ppl_change"] * 100
    ratio, interval = row.get("ratio"), None if is_baseline(row) else change_interval(row)
    low, high = (None, None) if interval is None else (v * 100 for v in interval)
    across = _bars(x, ratio["p10"], ratio["p90"]) if measure == "time" and ratio and not is_baseline(row) else None
    spread = (
        "" if interval is None else f" ({percent(interval[0], signed=True)} to {percent(interval[1], signed=True)})"
    )
    change = "dense is the baseline" if is_baseline(row) else f"{percent(row['ppl_change'], signed=True)}{spread}"
    figure.add_scatter(
        x=[x],
        y=[y],
        error_x=across,
        error_y=_bars(y, low, high),
        mode="markers",
        name=name_of(row),
        legendgroup=row["key"],
        marker={
            "size": 14,
            "color": colour(row["variant"]),
            "symbol": "diamond" if is_baseline(row) else SYMBOLS[turn % len(SYMBOLS)],
            "opacity": 1 if row.get("complete") else 0.55,
            "line": {"width": 1.5, "color": "rgba(255, 255, 255, 0.7)"},
        },
        hovertemplate=(
            f"<b>{name_of(row)}</b> ({origin}{'' if row.get('complete') else ', partial'})<br>"
            f"{_cost_text(row, measure)}<br>perplexity {sig3(row['ppl'])}: {change}"
            f"<br>{row['scored']:,} tokens scored<extra></extra>"
        ),
    )


def _counted_points(figure: go.Figure, result: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    counted = {(t["key"], t["length"]): t["model"] for t in result.get("about", {}).get("theory", [])}
    first = True
    for row in rows:
        share = counted.get((row["key"], row["length"]))
        if share is None or is_baseline(row):
            continue
        y = row["ppl_change"] * 100
        figure.add_scatter(
            x=[share, median(row, "ratio")],
            y=[y, y],
            mode="lines+markers",
            name="counted operations",
            legendgroup="counted",
            showlegend=first,
            line={"dash": "dot", "width": 1.5, "color": colour(row["variant"])},
            marker={"symbol": ["line-ns-open", "line-ns"], "size": [16, 0], "color": colour(row["variant"])},
            hovertemplate=(
                f"{name_of(row)}: counted operations alone would give {times(share)} dense's time<extra></extra>"
            ),
        )
        first = False


def _recorded_point(figure: go.Figure, row: dict[str, Any], measure: str, caption: str, *, first: bool) -> None:
    figure.add_scatter(
        x=[_shown_cost(cost_of(row, measure), measure)],
        y=[row["ppl_change"] * 100],
        mode="markers",
        # One word for all in the legend: pointing at a square tells which it is.
        name=RECORDED,
        legendgroup="recorded",
        showlegend=first,
        marker={"size": 12, "symbol": "square-open", "color": colour(row["variant"]), "line": {"width": 2}},
        hovertemplate=(
            f"<b>{name_of(row)}</b> (recorded: {caption})<br>{_cost_text(row, measure)}<br>"
            f"perplexity {sig3(row['ppl'])}, {percent(row['ppl_change'], signed=True)}<extra></extra>"
        ),
    )


def _losing_region(figure: go.Figure, dense_cost: float) -> None:
    xs = [v for trace in figure.data for v in (trace.x or ())] + [dense_cost]
    ys = [v for trace in figure.data for v in (trace.y or ())] + [0.0]
    for trace in figure.data:
        if trace.error_y and trace.error_y.array:
            ys += [trace.y[0] + trace.error_y.array[0], trace.y[0] - trace.error_y.arrayminus[0]]
        if trace.error_x and trace.error_x.array:
            xs += [trace.x[0] + trace.error_x.array[0], trace.x[0] - trace.error_x.arrayminus[0]]
    wide, tall = (max(xs) - min(xs)) or max(abs(dense_cost), 1) * 0.5, (max(ys) - min(ys)) or 1.0
    # Both sides of dense are wide enough for the labels, so that its line runs through none of them.
    left = max(0.0, min(min(xs) - 0.12 * wide, dense_cost - 0.3 * wide))
    right = max(max(xs) + 0.12 * wide, dense_cost + 0.4 * wide)
    bottom, top = min(ys) - 0.18 * tall, max(ys) + 0.25 * tall
    figure.add_shape(
        type="rect", x0=dense_cost, x1=right, y0=bottom, y1=top, fillcolor=LOSES, line_width=0, layer="below"
    )
    figure.add_shape(type="rect", x0=left, x1=right, y0=0, y1=top, fillcolor=LOSES, line_width=0, layer="below")
    for line in (
        {"x0": dense_cost, "x1": dense_cost, "y0": bottom, "y1": top},
        {"x0": left, "x1": right, "y0": 0, "y1": 0},
    ):
        figure.add_shape(type="line", **line, line={"dash": "dash", "width": 1, "color": QUIET}, layer="below")
    note = {"showarrow": False, "font": {"size": 12, "color": QUIET}}
    for x, y, side, edge, text in (
        (right, top, "right", "top", "costs more and<br>predicts worse"),
        (right, bottom, "right", "bottom", "costs more"),
        (left, top, "left", "top", "predicts worse"),
        (*_free_end(figure, left, right, 0.09 * (top - bottom)), "dense's perplexity"),
    ):
        figure.add_annotation(x=x, y=y, text=text, xanchor=side, yanchor=edge, align=side, **note)
    figure.update_xaxes(range=[left, right])
    figure.update_yaxes(range=[bottom, top])


def _free_end(figure: go.Figure, left: float, right: float, room: float) -> tuple[float, float, str, str]:
    """Where below dense's line a label of that height meets no point and no counted line: x, y and its anchors."""
    wide = 0.24 * (right - left)
    for x, side, low, high in ((left, "left", left, left + wide), (right, "right", right - wide, right)):
        taken = any(
            min(trace.x) <= high and max(trace.x) >= low and -room <= min(trace.y) <= room / 2
            for trace in figure.data
            if trace.x
        )
        if not taken:
            return x, 0, side, "top"
    return left, 0, "left", "top"
