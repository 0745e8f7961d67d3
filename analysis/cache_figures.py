"""The KV cache page's figures of a measurement: bytes a token by variant, and errors by layer and number format."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import plotly.graph_objects as go

from analysis.cache import (
    APPROXIMATE,
    EXACT,
    GATE,
    GRADES,
    ROUNDING,
    bytes_in,
    dense_of,
    dtypes,
    error_text,
    grade,
    is_gqa,
    mha_times,
    others,
    own_format,
)
from analysis.cache import LOST as OVERFLOWN
from analysis.numbers import memory, percent, sig3
from analysis.palette import GROUPS, KEPT, LOST, WINDOW
from analysis.style import QUIET, SEQUENTIAL, quiet, say

COLOURS = {EXACT: KEPT, ROUNDING: WINDOW, OVERFLOWN: GROUPS[6], APPROXIMATE: LOST}
MARKS = {EXACT: "●", ROUNDING: "◐", OVERFLOWN: "✕", APPROXIMATE: "≈"}
EMPTY = "Nothing measured yet. Press Run."


def bars(result: dict[str, Any], dtype: str | None = None) -> go.Figure:
    """Bytes a token of every cache, dense first, each with how exact it is in a number format; smaller is better."""
    dtype = dtype or own_format(result)
    figure, dense = go.Figure(), dense_of(result)
    if dense is None or "bytes_per_token" not in dense:
        return quiet(say(figure, EMPTY), height=320)
    about, size = result["about"], bytes_in(result, dense, dtype)
    lines: list[tuple[str, float, str, str, str]] = []
    if is_gqa(about):
        lines.append(
            (
                "with a key for every query head",
                size * mha_times(about),
                QUIET,
                f"{memory(size * mha_times(about))} · counted",
                f"{about['heads']} keys and values a layer and token instead of {about['kv_heads']} (counted)",
            )
        )
    own = "dense, as the model is" + (" (GQA)" if is_gqa(about) else " (MHA)")
    mine = grade(result, dense, dtype)
    lines.append(
        (own, size, COLOURS[mine.word] if mine else KEPT, f"{memory(size)} · {_mark(mine)}", _hover(dense, mine))
    )
    for row in reversed(others(result, dtype)):
        found, own_size = grade(result, row, dtype), bytes_in(result, row, dtype)
        colour = COLOURS[found.word] if found else QUIET
        lines.append(
            (
                escape(row["label"]),
                own_size,
                colour,
                f"{memory(own_size)} · {_mark(found)}",
                _hover(row, found),
            )
        )
    for name, value, colour, text, hover in lines:
        figure.add_bar(
            x=[value / 1e3],
            y=[name],
            orientation="h",
            name=name,
            marker={"color": colour, "pattern": {"shape": "/" if colour == QUIET else ""}},
            text=[text],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"<b>{name}</b><br>{hover}<extra></extra>",
            showlegend=False,
        )
    for word, colour in COLOURS.items():
        figure.add_bar(x=[None], y=[lines[0][0]], orientation="h", name=f"{MARKS[word]} {word}", marker_color=colour)
    figure.update_layout(legend_itemwidth=30)
    top = max(value for _, value, *_ in lines) / 1e3
    figure.update_xaxes(title=f"kB of cache a token, all layers, {dtype}", range=[0, 1.7 * top])
    figure.update_yaxes(autorange="reversed", type="category", **_broken([name for name, *_ in lines]))
    quiet(figure, height=140 + 34 * len(lines), barmode="overlay", bargap=0.3)
    # A line of the grid would run through every bar's text.
    return figure.update_yaxes(showgrid=False)


def _mark(found: Any) -> str:
    if found is None:
        return "?"
    if found.error == 0 or not math.isfinite(found.error):
        return f"{MARKS[found.word]} {found.word if found.error == 0 else error_text(found.error)}"
    return f"{MARKS[found.word]} error {error_text(found.error)}"


def _hover(row: dict[str, Any], found: Any) -> str:
    parts = [f"measured {memory(row['bytes_per_token'])} a token, counted {memory(row['counted'])}"]
    if found is None and row["variant"] != "dense":
        parts.append("exactness not measured yet")
    if found is not None:
        parts.append(f"{found.word}: {GRADES[found.word]}")
        parts.append(f"largest error {error_text(found.error)}, layer {found.layer}")
    if "agree" in row:
        parts.append(f"says dense's next token {percent(row['agree'])} of the time")
    return "<br>".join(parts)


def layer_errors(result: dict[str, Any], key: str) -> go.Figure:
    """Error of one cache by layer, a line a number format, with dense's own rounding below it; a log axis."""
    figure, dense = go.Figure(), dense_of(result)
    row = next((r for r in result.get("rows", []) if r["key"] == key and r.get("layers")), None)
    if row is None or dense is None:
        return quiet(say(figure, "Layer by layer it has not been measured yet."), height=340)
    shades = (KEPT, WINDOW, LOST)
    for shade, dtype in zip(shades, dtypes(result), strict=False):
        for which, name, dash in ((row, f"{row['label']}, {dtype}", "solid"), (dense, f"dense, {dtype}", "dot")):
            if which is dense and (row is dense or dtype not in row["layers"]):
                continue
            errors = which["layers"].get(dtype, {}).get("error", [])
            shown = [e if e else None for e in errors]
            if not any(shown):
                continue
            figure.add_scatter(
                x=list(range(len(errors))),
                y=shown,
                mode="lines+markers" if dash == "solid" else "lines",
                name=escape(name),
                line={"color": shade, "dash": dash, "width": 2 if dash == "solid" else 1.5},
                marker={"size": 7},
                customdata=[[error_text(math.inf if e is None else e)] for e in errors],
                hovertemplate=f"{escape(name)}, layer %{{x}}: %{{customdata[0]}}<extra></extra>",
            )
        overflows = [n for n, e in enumerate(row["layers"].get(dtype, {}).get("error", [])) if e is None]
        if overflows:
            figure.add_scatter(
                x=overflows,
                y=[1.0] * len(overflows),
                mode="markers",
                name=f"{dtype}: overflows",
                marker={"symbol": "x", "size": 11, "color": shade},
                hovertemplate=f"{dtype}, layer %{{x}}: overflows<extra></extra>",
            )
    if not figure.data:
        return quiet(say(figure, "Equal to dense to the last bit in every layer."), height=340)
    figure.add_hline(y=GATE, line={"dash": "dash", "width": 1, "color": QUIET})
    # On a logarithmic axis a text's place is a logarithm, a line's is not.
    at = {"x": 0, "xref": "paper", "xanchor": "left", "y": math.log10(GATE), "yanchor": "bottom"}
    figure.add_annotation(text=f"{100 * GATE:g} %", showarrow=False, font={"color": QUIET}, **at)
    figure.update_yaxes(type="log", title="Largest error of a decoded token", **_percents(range(-8, 2)))
    figure.update_xaxes(title="Layer", dtick=max(1, round(len(dense["by_layer"]) / 15)))
    return quiet(figure, height=360)


def layer_map(result: dict[str, Any], dtype: str) -> go.Figure:
    """Every cache's error by layer in one number format, as a map; the scale is logarithmic and the same for all."""
    figure = go.Figure()
    rows = [row for row in [dense_of(result), *others(result)] if row and row.get("layers", {}).get(dtype)]
    if not rows:
        return quiet(say(figure, "Layer by layer nothing has been measured yet."), height=240)
    values = [[_log(e) for e in row["layers"][dtype]["error"]] for row in rows]
    figure.add_heatmap(
        z=values,
        y=(names := [escape(row["label"]) for row in rows]),
        x=list(range(max(map(len, values)))),
        zmin=-8,
        zmax=0,
        colorscale=SEQUENTIAL,
        customdata=[
            [
                [error_text(math.inf if e is None else e), memory(size)]
                for e, size in zip(row["layers"][dtype]["error"], row["layers"][dtype]["bytes"], strict=True)
            ]
            for row in rows
        ],
        hovertemplate="<b>%{y}</b>, layer %{x}<br>error %{customdata[0]}, %{customdata[1]} a token<extra></extra>",
        colorbar={
            "title": "error",
            "tickvals": [-8, -6, -4, -2, 0],
            "ticktext": ["≤ 0.000001 %", "0.0001 %", "0.01 %", "1 %", "≥ 100 %"],
        },
    )
    few = max(map(len, values)) <= 15
    figure.update_xaxes(title=f"Layer, in {dtype}", dtick=1 if few else None, nticks=15)
    figure.update_yaxes(autorange="reversed", type="category", **_broken(names))
    return quiet(figure, height=130 + 30 * len(rows))


def _percents(powers: range) -> dict[str, list[Any]]:
    """Ticks at powers of ten, as per cent like every other error."""
    return {"tickvals": [10.0**n for n in powers], "ticktext": [f"{sig3(10.0 ** (n + 2), 1)} %" for n in powers]}


def _broken(names: list[str]) -> dict[str, list[str]]:
    """Ticks whose adapter stands on a line of its own, so that a narrow page keeps its room for the picture."""
    return {"tickvals": names, "ticktext": [name.replace(" (", "<br>(") for name in names]}


def _log(error: float | None) -> float:
    return 0.0 if error is None else math.log10(min(1.0, max(error, 1e-8)))
