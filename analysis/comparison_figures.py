"""Further figures of a comparison: speed by length, soft to hard, memory."""

from __future__ import annotations

from math import log10
from typing import Any

import plotly.graph_objects as go

from analysis.comparison import by_line, change_interval, is_baseline, lengths, median, scored
from analysis.lines import DASHES, EMPTY, SYMBOLS, colour, name_of, turns
from analysis.numbers import memory, percent, sig3, times
from analysis.palette import KEPT, LOST
from analysis.style import LOSES, QUIET, quiet, say
from analysis.timing import crossover

_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10)


def speed_by_length(result: dict[str, Any], part: str = "model") -> go.Figure:
    """Time over dense's by length: measured (median and 10th to 90th percentile) and counted (dashed).

    Args:
        result: a comparison, complete or not.
        part: ``model`` for the whole prefill, ``attention`` for attention and routing alone.
    """
    figure = go.Figure()
    measure = "ratio" if part == "model" else "attention_ratio"
    turn_of, tops, found, crossings = turns(result), [1.15], False, []
    for line in by_line(result):
        rows = [r for r in line if median(r, measure) is not None]
        if not rows or is_baseline(rows[0]):
            continue
        found, label = True, name_of(rows[0])
        key, shade = rows[0]["key"], colour(rows[0]["variant"])
        turn = turn_of[key]
        sizes, middle = [r["length"] for r in rows], [median(r, measure) for r in rows]
        tops += [r[measure]["p90"] for r in rows]
        figure.add_scatter(
            x=sizes,
            y=middle,
            mode="lines+markers",
            name=label,
            legendgroup=key,
            line={"color": shade, "width": 2.5, "dash": DASHES[turn % len(DASHES)]},
            marker={"size": 10, "symbol": SYMBOLS[turn % len(SYMBOLS)]},
            error_y={
                "type": "data",
                "array": [r[measure]["p90"] - m for r, m in zip(rows, middle, strict=True)],
                "arrayminus": [m - r[measure]["p10"] for r, m in zip(rows, middle, strict=True)],
                "thickness": 1.5,
                "width": 5,
            },
            customdata=[
                [times(m), times(r[measure]["p10"]), times(r[measure]["p90"]), r[measure]["n"]]
                for r, m in zip(rows, middle, strict=True)
            ],
            hovertemplate=(
                f"<b>{label}</b>, measured<br>%{{x:,}} tokens: %{{customdata[0]}} dense's time "
                "(%{customdata[1]} to %{customdata[2]}, n=%{customdata[3]})<extra></extra>"
            ),
        )
        curve = [t for t in result.get("about", {}).get("theory", []) if t["key"] == key]
        figure.add_scatter(
            x=[t["length"] for t in curve],
            y=[t[part] for t in curve],
            mode="lines",
            name=f"{label}, counted",
            legendgroup=key,
            showlegend=False,
            line={"color": shade, "width": 1.5, "dash": "dot"},
            customdata=[[times(t[part])] for t in curve],
            hovertemplate=f"{label}, counted operations: %{{customdata[0]}} at %{{x:,}} tokens<extra></extra>",
        )
        cross = crossover({r["length"]: r[measure] for r in rows})
        if cross is not None:
            crossings.append((cross, shade))
    if not found:
        return quiet(say(figure, EMPTY), height=420)
    top = max(tops) * 1.08
    figure.add_hrect(
        y0=1,
        y1=top,
        fillcolor=LOSES,
        line_width=0,
        layer="below",
        annotation_text="slower than dense",
        annotation_position="top right",
        annotation_font_color=QUIET,
    )
    bottom = _crossings(figure, sorted(crossings), top)
    figure.add_hline(y=1, line={"dash": "dash", "width": 1, "color": QUIET})
    figure.add_scatter(
        x=[None], y=[None], mode="lines", name="counted operations", line={"dash": "dot", "width": 1.5, "color": QUIET}
    )
    sizes = lengths(result)
    figure.update_xaxes(type="log", title="Tokens", tickvals=sizes, ticktext=[f"{n:,}" for n in sizes])
    what = "Whole prefill" if part == "model" else "Attention and routing"
    step = next((s for s in _STEPS if top / s <= 8), top / 8)
    ticks = [round(i * step, 6) for i in range(int(top / step) + 1)]
    figure.update_yaxes(title=f"{what}, time over dense's", range=[bottom, top], tickvals=ticks)
    return quiet(figure, height=420)


def _crossings(figure: go.Figure, crossings: list[tuple[float, str]], top: float) -> float:
    """Mark where variants turn faster, and give the lower end of the y axis.

    Each label has a row of its own below zero, where no curve goes; a later crossing's line ends above the labels of
    the earlier ones, so that no line runs through a word.
    """
    bottom = -0.075 * top * len(crossings)
    for i, (cross, shade) in enumerate(crossings):
        foot = bottom + 0.075 * top * i
        line = {"dash": "dash", "width": 1, "color": shade}
        figure.add_shape(type="line", x0=cross, x1=cross, y0=foot, y1=1, line=line, layer="below")
        note = {"text": f" faster from {sig3(cross)} tokens", "font": {"color": shade, "size": 12}}
        place = {"x": log10(cross), "y": foot, "xanchor": "left", "yanchor": "bottom"}
        figure.add_annotation(showarrow=False, **place, **note)
    return bottom


def soft_to_hard(result: dict[str, Any], length: int, picked: str | None = None) -> go.Figure:
    """Perplexity change of each gate, from the softest to the served hard one.

    Args:
        result: a comparison whose rows differ in ``config.gate`` and ``config.temperature``.
        length: tokens.
        picked: key of the line to point out.
    """
    figure = go.Figure()
    rows = gate_rows(result, length)
    if not rows:
        return quiet(say(figure, "No gate has been measured yet: measure them below."), height=340)
    names = [gate_name(r) for r in rows]
    values = [r["ppl_change"] * 100 for r in rows]
    spans = [change_interval(r) for r in rows]
    figure.add_scatter(
        x=names,
        y=values,
        name="gates",
        mode="lines+markers",
        line={"color": QUIET, "width": 1},
        marker={
            "size": [20 if r["key"] == picked else 13 for r in rows],
            "color": [KEPT if r["served"] else QUIET if not r["leaks"] else LOST for r in rows],
            "symbol": ["circle" if r["served"] else "x" if r["leaks"] else "circle-open" for r in rows],
            "line": {"width": 2},
        },
        error_y={
            "type": "data",
            "array": [0 if s is None else s[1] * 100 - v for s, v in zip(spans, values, strict=True)],
            "arrayminus": [0 if s is None else v - s[0] * 100 for s, v in zip(spans, values, strict=True)],
            "thickness": 1.5,
            "width": 5,
        },
        customdata=[
            [
                sig3(r["ppl"]),
                percent(r["ppl_change"], signed=True),
                percent(r["kept_pairs"]),
                "served" if r["served"] else "leaks, not served" if r["leaks"] else "masked dense, not served",
            ]
            for r in rows
        ],
        hovertemplate=(
            "<b>%{x}</b> (%{customdata[3]})<br>perplexity %{customdata[0]}, %{customdata[1]} against dense<br>"
            "%{customdata[2]} of the pairs computed<extra></extra>"
        ),
        showlegend=False,
    )
    figure.add_hline(
        y=0,
        line={"dash": "dash", "width": 1, "color": QUIET},
        annotation_text="dense",
        annotation_position="bottom right",
        annotation_font_color=QUIET,
    )
    figure.update_yaxes(title="Perplexity change against dense, %")
    figure.update_xaxes(title="Gate, from soft to the one that is served", type="category")
    return quiet(figure, height=340)


def gate_rows(result: dict[str, Any], length: int) -> list[dict[str, Any]]:
    """Rows of Focus at one length, the paper's gate first, then soft from warm to cold, the hard one last."""
    rank = {"paper": 0, "soft": 1, "straight_through": 2, "hard": 3}
    rows = [r for r in scored(result, length) if "gate" in r["config"]]
    return sorted(rows, key=lambda r: (rank[r["config"]["gate"]], -r["config"]["temperature"]))


def gate_name(row: dict[str, Any]) -> str:
    """A gate as people read it."""
    gate = row["config"]["gate"]
    if gate == "soft":
        return f"soft {row['config']['temperature']:g}"
    return {"paper": "paper's soft", "hard": "hard (served)"}.get(gate, gate)


def memory_bars(result: dict[str, Any]) -> go.Figure:
    """Peak memory of the prefill by length, and the share of it that stays as the cache."""
    figure = go.Figure()
    turn_of = turns(result)
    for line in by_line(result):
        rows = [r for r in line if r.get("peak_bytes") is not None]
        if not rows:
            continue
        figure.add_bar(
            x=[f"{r['length']:,} tokens" for r in rows],
            y=[r["peak_bytes"] / 1e6 for r in rows],
            name=(label := name_of(rows[0])),
            marker={"color": colour(rows[0]["variant"]), "opacity": max(0.45, 1 - 0.25 * turn_of[rows[0]["key"]])},
            customdata=[
                [memory(r["peak_bytes"]), memory(r["cache_bytes"]), memory(r["kv_bytes_per_token"])] for r in rows
            ],
            hovertemplate=(
                f"<b>{label}</b>, %{{x}}<br>%{{customdata[0]}} at the peak, %{{customdata[1]}} kept as the cache"
                ", %{customdata[2]} a token<extra></extra>"
            ),
        )
    if not figure.data:
        return quiet(say(figure, EMPTY), height=360)
    some = any(r.get("served") and r.get("peak_bytes") is None for line in by_line(result) for r in line)
    figure.update_xaxes(title="Length; without a bar: not recorded" if some else "Length")
    figure.update_yaxes(title="Peak memory beyond the weights, MB")
    return quiet(figure, height=360, barmode="group")
