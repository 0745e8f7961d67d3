"""A figure's data as one table, for a CSV beside the picture."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.palette import group_label, groups_of
from focus_core.trace import Trace


def figure_rows(figure: go.Figure) -> pd.DataFrame:
    """What the figure draws, one row a point or cell: the series that it belongs to, and columns named as the axes are.

    A figure of several panels has the panel's title too.
    """
    tables = [_rows(figure, trace, i) for i, trace in enumerate(figure.data)]
    tables = [table for table in tables if len(table)]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["series", "x", "y"])


def token_rows(trace: Trace, layer: int, router: int = 0) -> pd.DataFrame:
    """One row a token of a run: its text, its place, its groups at one layer and router, and how likely it was.

    ``place`` counts from 1; ``nll`` and ``dense_nll`` are in nats and belong to the token as it was predicted.
    """
    arrays, n = trace.arrays, len(trace)
    columns: dict[str, object] = {"place": np.arange(1, n + 1), "token": list(trace.tokens)}
    if "token_ids" in arrays:
        columns["id"] = arrays["token_ids"]
    if "byte_span" in arrays:
        columns |= {"first_byte": arrays["byte_span"][:, 0], "end_byte": arrays["byte_span"][:, 1]}
    for name, bits in (("groups", "key_bits"), ("looks_for", "query_bits")):
        if bits in arrays:
            columns[name] = [" ".join(map(group_label, groups_of(int(b)))) for b in arrays[bits][layer, router]]
    for name in ("nll", "dense_nll"):
        if name in arrays:
            columns[name] = np.concatenate([[np.nan], arrays[name]])
    return pd.DataFrame(columns)


def _rows(figure: go.Figure, trace: go.Trace, index: int) -> pd.DataFrame:
    name = trace.name or f"{trace.type} {index + 1}"
    titles = {axis: _title(figure, trace, axis) for axis in "xy"}
    if getattr(trace, "z", None) is not None and np.ndim(trace.z) == 2:
        return _cells(trace, name, titles)
    columns = {}
    for field in ("x", "y", "text"):
        value = getattr(trace, field, None)
        # A series of the legend alone has one point that is nowhere.
        if value is not None and not isinstance(value, str) and any(v is not None for v in value):
            # An axis of two levels has a list for each.
            levels = field in "xy" and all(isinstance(v, (list, tuple, np.ndarray)) for v in value)
            columns[titles.get(field, field)] = (
                [", ".join(map(str, v)) for v in zip(*value, strict=True)] if levels else list(value)
            )
    for field in ("error_x", "error_y"):
        error = getattr(trace, field, None)
        for side in ("array", "arrayminus"):
            value = getattr(error, side, None) if error is not None else None
            if value is not None:
                end = {"array": "above", "arrayminus": "below"}[side]
                columns[f"{titles[field[-1]]}, error {end}"] = list(value)
    table = pd.DataFrame({field: pd.Series(values, dtype=object) for field, values in columns.items()})
    table.insert(0, "series", name)
    if panel := _panel(figure, trace):
        table.insert(1, "panel", panel)
    return table


def _title(figure: go.Figure, trace: go.Trace, axis: str) -> str:
    """Title of one of a trace's axes; panels that share an axis have its title once. ``x`` or ``y`` without any."""
    name = _layout_name(trace, axis)
    own, ident = figure.layout[name], name.replace("axis", "")
    every = figure.select_xaxes() if axis == "x" else figure.select_yaxes()
    shared = [
        found for found in every if found.matches == ident or own.matches == found.plotly_name.replace("axis", "")
    ]
    for found in (own, figure.layout[f"{axis}axis"], *shared):
        if found is not None and found.title.text:
            return found.title.text
    return axis


def _layout_name(trace: go.Trace, axis: str) -> str:
    return f"{axis}axis{(getattr(trace, f'{axis}axis', None) or axis)[1:]}"


def _panel(figure: go.Figure, trace: go.Trace) -> str:
    """Title of the trace's panel: the note that stands over the middle of its x axis; empty in a single figure."""
    domain = figure.layout[_layout_name(trace, "x")].domain
    if not domain or tuple(domain) == (0, 1):
        return ""
    middle = sum(domain) / 2
    over = [n.text for n in figure.layout.annotations if n.xref == "paper" and abs((n.x or 0) - middle) < 1e-6]
    return over[0] if over else ""


def _cells(trace: go.Trace, name: str, titles: dict[str, str]) -> pd.DataFrame:
    z = np.asarray(trace.z, dtype=object)
    high, wide = z.shape
    x = list(trace.x) if trace.x is not None and len(trace.x) == wide else list(range(wide))
    y = list(trace.y) if trace.y is not None and len(trace.y) == high else list(range(high))
    shown = trace.colorbar.title.text or "value"
    rows = {
        titles["x"]: np.tile(np.asarray(x, object), high),
        titles["y"]: np.repeat(np.asarray(y, object), wide),
        shown: z.ravel(),
    }
    return pd.DataFrame({"series": name, **rows})
