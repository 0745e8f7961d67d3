"""A figure's data as one table, for a CSV beside the picture."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.palette import group_label, groups_of
from focus_core.trace import Trace


def figure_rows(figure: go.Figure) -> pd.DataFrame:
    """What the figure draws, one row a point or cell, with the trace that it belongs to."""
    tables = [_rows(trace, i) for i, trace in enumerate(figure.data)]
    tables = [table for table in tables if len(table)]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["trace", "x", "y"])


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


def _rows(trace: go.Trace, index: int) -> pd.DataFrame:
    name = trace.name or f"{trace.type} {index + 1}"
    if getattr(trace, "z", None) is not None and np.ndim(trace.z) == 2:
        return _cells(trace, name)
    columns = {}
    for field in ("x", "y", "text"):
        value = getattr(trace, field, None)
        if value is not None and not isinstance(value, str) and len(value):
            columns[field] = list(value)
    for field in ("error_x", "error_y"):
        error = getattr(trace, field, None)
        for side in ("array", "arrayminus"):
            value = getattr(error, side, None) if error is not None else None
            if value is not None:
                columns[f"{field}_{side}"] = list(value)
    table = pd.DataFrame({field: pd.Series(values, dtype=object) for field, values in columns.items()})
    table.insert(0, "trace", name)
    return table


def _cells(trace: go.Trace, name: str) -> pd.DataFrame:
    z = np.asarray(trace.z, dtype=object)
    high, wide = z.shape
    x = list(trace.x) if trace.x is not None and len(trace.x) == wide else list(range(wide))
    y = list(trace.y) if trace.y is not None and len(trace.y) == high else list(range(high))
    rows = {"x": np.tile(np.asarray(x, object), high), "y": np.repeat(np.asarray(y, object), wide), "z": z.ravel()}
    return pd.DataFrame({"trace": name, **rows})
