"""Figures of what was measured on a GPU: speed-up and share of the pair limit by length, and where the time goes."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import log10
from typing import Any

import plotly.graph_objects as go

from analysis.comparison import by_line, is_baseline, median
from analysis.gpu_results import (
    Row,
    form_of,
    kernel_name,
    method_of,
    named,
    setting_of,
    shape_of,
    stages_of,
    with_kernel_starts,
)
from analysis.lines import DASHES, SYMBOLS, colour
from analysis.numbers import duration, length, percent, sig3, times
from analysis.palette import GROUPS, KEPT, WINDOW
from analysis.style import LOSES, QUIET, quiet, say

NOTHING = "Nothing is recorded of a GPU here."
PICTURES = {"speed": "Speed-up", "limit": "Share of the pair limit", "stages": "Where the time goes"}
_SHADES = (KEPT, GROUPS[13], GROUPS[4], GROUPS[9], GROUPS[2], GROUPS[15])
_STAGES = {"plan": GROUPS[1], "gather": GROUPS[13], "selection": GROUPS[4], "group pass": KEPT, "attention": GROUPS[0]}
_STAGES |= {"window pass and merge": WINDOW, "merge": GROUPS[15]}
_MEASURES = {"speed": "Times faster than dense", "limit": "Share of the pair limit, %"}
Series = list[tuple[str, list[Row]]]


def series_of(rows: Iterable[Row]) -> Series:
    """Rows of forwards by what was measured, each by length; the latest where one was measured twice."""
    found: dict[str, dict[int, Row]] = {}
    for row in sorted(rows, key=lambda row: row.run.time):
        if row.kept and row["phase"] == "prefill" and row.method != "model" and row.speedup() is not None:
            found.setdefault(named(row), {})[row["tokens"]] = row
    series = [(name, [by[n] for n in sorted(by)]) for name, by in found.items()]
    return sorted(series, key=lambda one: (one[1][0].method != "focus", -len(one[1]), one[0]))


def by_length(rows: Iterable[Row], picture: str, cpu: dict[str, Any] | None = None, origin: str = "") -> go.Figure:
    """Times faster than dense, or the share of the pair limit, by length.

    Args:
        rows: of GPU results.
        picture: ``speed`` or ``limit``.
        cpu: a comparison on a CPU whose attention is drawn beside them (``speed`` alone); None for none.
        origin: how that comparison is called: ``live`` or ``recorded``.

    Returns:
        Filled points are the library as it is called, open ones both sides replayed as CUDA graphs; dotted is the pair
        limit; the part where a variant loses to dense is shaded.
    """
    figure, series = go.Figure(), series_of(rows)
    if not series:
        return quiet(say(figure, NOTHING), height=440)
    for at, (name, found) in enumerate(series):
        shade, symbol = _SHADES[at % len(_SHADES)], SYMBOLS[at % len(SYMBOLS)]
        _line(figure, name, found, "", picture, {"color": shade, "symbol": symbol, "size": 11})
        replayed = {"color": shade, "symbol": f"{symbol}-open", "size": 11, "line": {"width": 2}}
        _line(figure, name, found, "_graph", picture, replayed)
        if picture == "speed":
            _limit(figure, name, found, shade)
    if picture == "speed" and cpu is not None:
        _beside(figure, cpu, origin, {found[0].method for _, found in series})
    for name, line, marker in (
        (
            "both as CUDA graphs",
            {"dash": "dash", "color": QUIET},
            {"symbol": "circle-open", "color": QUIET, "size": 10},
        ),
        ("pair limit at dense's rate", {"dash": "dot", "color": QUIET, "width": 1.5}, None),
    ):
        if marker is not None or picture == "speed":
            mode = "lines+markers" if marker else "lines"
            figure.add_scatter(x=[None], y=[None], name=name, mode=mode, line=line, marker=marker)
    sizes = sorted({int(x) for trace in figure.data for x in trace.x if x})
    figure.update_xaxes(type="log", title="Tokens", tickvals=sizes, ticktext=[length(n) for n in sizes])
    figure.update_yaxes(title=_MEASURES[picture])
    if picture == "speed":
        _losing(figure)
    else:
        figure.update_yaxes(rangemode="tozero")
        figure.add_hline(y=100, line={"dash": "dash", "width": 1, "color": QUIET})
    # Below the picture and above the figure's foot, whichever width the names leave it.
    legend = {"yref": "container", "yanchor": "bottom", "y": 0, "font": {"size": 12}}
    return quiet(figure, height=520).update_layout(margin={"t": 16, "b": 64}, legend=legend)


def above_limit(rows: Iterable[Row]) -> str:
    """Which lines cross their pair limit and by how much at most, as a sentence; empty where none does."""
    found: dict[str, tuple[float, int]] = {}
    for name, line in series_of(rows):
        for row in line:
            limit, gained = row.limit(), max(filter(None, (row["speedup"], row["speedup_graph"])), default=0.0)
            if limit and gained > limit:
                found[name] = max(found.get(name, (0.0, 0)), (gained / limit, row["tokens"]))
    if not found:
        return ""
    most = "; ".join(f"{name}, {times(over)} its limit at {tokens:,} tokens" for name, (over, tokens) in found.items())
    return f"Above it, at a higher rate than dense's: {most}."


def _value(row: Row, suffix: str, picture: str) -> float | None:
    faster, limit = row[f"speedup{suffix}"], row.limit()
    if faster is None or picture == "speed":
        return faster
    return 100 * faster / limit if limit else None


def _line(figure: go.Figure, name: str, rows: list[Row], suffix: str, picture: str, marker: dict[str, Any]) -> None:
    found = [row for row in rows if _value(row, suffix, picture) is not None]
    if not found:
        return
    how = "both as CUDA graphs" if suffix else "as it is called"
    figure.add_scatter(
        x=[row["tokens"] for row in found],
        y=[_value(row, suffix, picture) for row in found],
        mode="lines+markers",
        name=escape(name),
        legendgroup=name,
        showlegend=not suffix,
        line={"color": marker["color"], "width": 1.5 if suffix else 2.5, "dash": "dash" if suffix else "solid"},
        marker=marker,
        customdata=[
            [
                times(row[f"speedup{suffix}"]),
                row.baseline(suffix),
                duration(row.median(f"ms{suffix}")),
                times(row.limit()),
                percent(row[f"speedup{suffix}"] / row.limit()) if row.limit() else "",
                f"{row.run.card}, {row.run.date}",
            ]
            for row in found
        ],
        hovertemplate=(
            f"<b>{escape(name)}</b> (recorded, {how})<br>%{{x:,}} tokens: %{{customdata[0]}} as fast as "
            "%{customdata[1]}, %{customdata[2]}<br>pair limit %{customdata[3]}, %{customdata[4]} of it"
            "<br>%{customdata[5]}<extra></extra>"
        ),
    )


def _limit(figure: go.Figure, name: str, rows: list[Row], shade: str) -> None:
    found = [row for row in rows if row.limit()]
    figure.add_scatter(
        x=[row["tokens"] for row in found],
        y=[row.limit() for row in found],
        mode="lines",
        legendgroup=name,
        showlegend=False,
        line={"color": shade, "width": 1.5, "dash": "dot"},
        hovertemplate=f"{escape(name)}: the kept pairs alone, at dense's rate, would give %{{y:.3g}}×<extra></extra>",
    )


def _beside(figure: go.Figure, cpu: dict[str, Any], origin: str, methods: set[str]) -> None:
    """A comparison on a CPU: attention alone, of the methods that the GPU's rows are of."""
    device = str(cpu.get("about", {}).get("environment", {}).get("device") or "CPU")
    for at, line in enumerate(by_line(cpu)):
        rows = [row for row in line if median(row, "attention_ratio") and not is_baseline(row)]
        if not rows or rows[0]["variant"] not in methods:
            continue
        label = escape(rows[0]["label"])
        figure.add_scatter(
            x=[row["length"] for row in rows],
            y=[1 / row["attention_ratio"]["median"] for row in rows],
            mode="lines+markers",
            name=f"{label}, {origin} on a CPU",
            line={"color": colour(rows[0]["variant"]), "width": 1.5, "dash": DASHES[(at + 2) % len(DASHES)]},
            marker={"symbol": "x-thin-open", "size": 8, "line": {"width": 2}},
            customdata=[[times(1 / row["attention_ratio"]["median"])] for row in rows],
            hovertemplate=(
                f"<b>{label}</b> ({origin}, {escape(device)})<br>%{{x:,}} tokens: %{{customdata[0]}} as fast as dense, "
                "attention and routing alone<extra></extra>"
            ),
        )


def _losing(figure: go.Figure) -> None:
    """A logarithmic axis of ratios with the losing side shaded."""
    values = [float(y) for trace in figure.data for y in trace.y if y]
    low, high = min(0.7, min(values) / 1.25), max(2.0, 1.35 * max(values))
    ticks = [x for x in (0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32, 64) if low <= x <= high]
    figure.add_shape(type="rect", xref="paper", x0=0, x1=1, y0=low, y1=1, fillcolor=LOSES, line_width=0, layer="below")
    line = {"dash": "dash", "width": 1, "color": QUIET}
    figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=1, y1=1, line=line, layer="below")
    note = {"showarrow": False, "font": {"size": 12, "color": QUIET}, "xanchor": "right", "yanchor": "bottom"}
    figure.add_annotation(xref="paper", x=1, y=log10(low), text="slower than dense", **note)
    figure.update_yaxes(
        type="log", range=[log10(low), log10(high)], tickvals=ticks, ticktext=[f"{sig3(x, 2)}×" for x in ticks]
    )


def stage_bars(rows: Iterable[Row]) -> go.Figure:
    """Share of each stage in the time of a forward, one bar a shape and length; the time as called is in the hover."""
    figure = go.Figure()
    found = [row for _, series in series_of(rows) for row in series if stages_of(row)]
    if not found:
        return quiet(say(figure, NOTHING), height=320)
    names = list(dict.fromkeys(name for row in found for name in stages_of(row)))
    labels = _stage_labels(found)
    totals = [sum(stages_of(row).values()) for row in found]
    for at, name in enumerate(names):
        ms = [stages_of(row).get(name, 0.0) for row in found]
        shares = [100 * part / whole for part, whole in zip(ms, totals, strict=True)]
        figure.add_bar(
            y=labels,
            x=shares,
            orientation="h",
            name=name,
            marker={"color": _STAGES.get(name, _SHADES[at % len(_SHADES)])},
            text=[f"{share:.0f} %" if share >= 8 else "" for share in shares],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            customdata=[
                [duration(part), percent(share / 100), escape(named(row)), duration(row.median("ms"))]
                for part, share, row in zip(ms, shares, found, strict=True)
            ],
            hovertemplate=(
                f"<b>{name}</b>: %{{customdata[0]}}, %{{customdata[1]}}<br>%{{customdata[2]}}"
                "<br>the whole as called: %{customdata[3]}<extra></extra>"
            ),
        )
    for label, whole in zip(labels, totals, strict=True):
        note = {"showarrow": False, "xanchor": "left", "font": {"size": 12, "color": QUIET}}
        figure.add_annotation(x=101, y=label, text=duration(whole), **note)
    figure.update_xaxes(title="Share, %; at the right the whole", range=[0, 116])
    figure.update_xaxes(tickvals=[0, 25, 50, 75, 100])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    uniform = {"minsize": 10, "mode": "hide"}
    quiet(figure, height=130 + 34 * len(found), barmode="stack", uniformtext=uniform)
    return figure.update_layout(legend={"traceorder": "normal"})


def _stage_labels(rows: list[Row]) -> list[str]:
    """A bar's name: length, method, and its shape and settings as far as they tell the method's bars apart."""
    shapes = {method: {shape_of(row) for row in rows if row.method == method} for method in {r.method for r in rows}}
    labels = []
    for row in rows:
        shape = shape_of(row) if len(shapes[row.method]) > 1 else ""
        called = ", as called" if with_kernel_starts(row) else ""
        parts = (length(row["tokens"]), method_of(row), shape, (form_of(row) or setting_of(row)) + called)
        labels.append(" · ".join(filter(None, parts)))
    if len(set(labels)) < len(labels):
        return [f"{length(row['tokens'])} · {named(row)}" for row in rows]
    return labels


def starting(rows: Iterable[Row]) -> str:
    """What the stages and what a call takes, at the shortest length timed as graphs: a sentence, or nothing."""
    found = [row for _, series in series_of(rows) for row in series if stages_of(row) and row["ms_graph"] is not None]
    row = min(found, key=lambda row: row["tokens"], default=None)
    if row is None:
        return ""
    whole, called = sum(stages_of(row).values()), row.median("ms")
    if called is None or whole >= called:
        return ""
    return (
        f"Starting kernels is not in the bars: at {row['tokens']:,} tokens the stages take {duration(whole)} and a "
        f"call {duration(called)}."
    )


def model_cases(rows: Iterable[Row]) -> dict[str, tuple[str, str]]:
    """What was run of whole models, as people read it: ``SmolLM2-135M, prefill`` for its model and phase."""
    found = [(row["model"], row["phase"]) for row in rows if row.method == "model" and row["phase"] is not None]
    return {f"{model}, {phase}": (model, phase) for model, phase in dict.fromkeys(found)}


def model_bars(rows: Iterable[Row], model: str, phase: str) -> go.Figure:
    """A whole model's time as a share of dense's: attention, appending to the cache, and all else."""
    found = [row for row in rows if row.method == "model" and (row["model"], row["phase"]) == (model, phase)]
    found = [row for row in found if row.median("ms")]
    found.sort(key=lambda row: row["tokens"])
    labels = [f"{length(row['tokens'])} · {_line_of(row)}" for row in found]
    dense = [row.median("dense_ms") or 1.0 for row in found]
    whole = [row.median("ms") or 0.0 for row in found]
    attention = [row.median("attention_ms") or 0.0 for row in found]
    append = [row.median("append_ms") or 0.0 for row in found]
    rest = [max(0.0, a - b - c) for a, b, c in zip(whole, attention, append, strict=True)]
    figure = go.Figure()
    for name, parts, shade in (
        ("attention and routing", attention, KEPT),
        ("appending to the cache", append, GROUPS[1]),
        ("all else", rest, QUIET),
    ):
        if not any(parts):
            continue
        figure.add_bar(
            y=labels,
            x=[100 * part / base for part, base in zip(parts, dense, strict=True)],
            orientation="h",
            name=name,
            marker={"color": shade},
            customdata=[[duration(part), percent(part / ms)] for part, ms in zip(parts, whole, strict=True)],
            hovertemplate=f"<b>{name}</b><br>%{{y}}<br>%{{customdata[0]}}, %{{customdata[1]}} of all<extra></extra>",
        )
    ends = [100 * ms / base for ms, base in zip(whole, dense, strict=True)]
    note = {"showarrow": False, "xanchor": "left", "font": {"size": 12}}
    for label, end, row in zip(labels, ends, found, strict=True):
        text = f"{duration(row.median('ms'))}, {times(row['speedup'])}"
        # Never across the line of dense's time.
        figure.add_annotation(x=max(end, 100.0), y=label, text=text, xshift=4, **note)
    top = max([100.0, *ends]) * 1.35
    figure.add_vrect(x0=100, x1=top, fillcolor=LOSES, line_width=0, layer="below")
    figure.add_vline(x=100, line={"dash": "dash", "width": 1, "color": QUIET})
    figure.update_xaxes(title="Time, % of dense's", range=[0, top])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return quiet(figure, height=150 + 34 * len(found), barmode="stack")


def _line_of(row: Row) -> str:
    return f"{row['line']} ({kernel_name(row['kernel'])})" if row["kernel"] else str(row["line"])
