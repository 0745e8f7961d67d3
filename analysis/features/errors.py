"""Error of the attention output by number of features, beside short embeddings of the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.features.codes import Codes, Head, change
from analysis.numbers import percent
from analysis.palette import GROUPS, KEPT, LOST, WINDOW
from analysis.style import quiet

LABELS = {
    "features": "Top features",
    "pairs": "Top rotary pairs",
    "keys": "Top features of keys alone",
    "mapped": "Top features after fitted maps",
    "trained": "Top features after trained maps",
    "short": "Short embedding, fitted",
    "pca": "Short embedding, keys' directions (PCA)",
    "plain": "Short embedding, first dimensions",
}
SHORT = ("short", "pca", "plain")
_LOOK = {
    "features": (KEPT, "solid", "circle"),
    "pairs": (WINDOW, "solid", "square"),
    "keys": (GROUPS[4], "solid", "diamond"),
    "mapped": (GROUPS[15], "solid", "triangle-up"),
    "trained": (GROUPS[6], "solid", "star"),
    "short": (LOST, "dash", "x"),
    "pca": (GROUPS[13], "dash", "cross"),
    "plain": (GROUPS[9], "dot", "triangle-down"),
}
BY = {"bytes": "Bytes of a key", "features": "Features kept"}


def key_bytes(method: str, features: int) -> float:
    """Bytes of one head's key in a 16-bit type: values, and one-byte dimensions (a pair has one; short rows none)."""
    return 2 * features + (0 if method in SHORT else features / 2 if method == "pairs" else features)


def errors_of(result: dict[str, Any], method: str, layer: int | None) -> list[float | None]:
    """Relative error at every size of the grid: of a layer, or the mean over the layers; None where there is none."""
    found = []
    for by_layer in result["errors"][method]:
        chosen = by_layer if layer is None else [by_layer[result["layers"].index(layer)]]
        known = [value for value in chosen if value is not None]
        found.append(float(np.mean(known)) if known else None)
    return found


def error_figure(result: dict[str, Any], by: str, layer: int | None) -> go.Figure:
    """One line a method: error of the attention output against bytes of a key, or against features kept."""
    figure = go.Figure()
    for method in LABELS:
        if method not in result["errors"]:
            continue
        color, dash, symbol = _LOOK[method]
        points = [
            (key_bytes(method, k) if by == "bytes" else k, error, k)
            for k, error in zip(result["grid"], errors_of(result, method, layer), strict=True)
            if error is not None and (by == "features" or key_bytes(method, k) <= 2 * result["head_dim"])
        ]
        figure.add_scatter(
            x=[p[0] for p in points],
            y=[p[1] for p in points],
            customdata=[p[2] for p in points],
            name=LABELS[method],
            mode="lines+markers",
            line={"color": color, "width": 2.5, "dash": dash},
            marker={"symbol": symbol, "size": 9},
            hovertemplate=f"<b>{LABELS[method]}</b><br>%{{customdata}} numbers, %{{x}} "
            + ("bytes" if by == "bytes" else "features")
            + ": error %{y:.1%}<extra></extra>",
        )
    quiet(figure, height=430, hovermode="closest")
    # Below, and not beside: a narrow page would leave the lines no room.
    figure.update_layout(legend={"y": -0.26, "yanchor": "top"}, margin={"t": 16, "r": 12})
    dense = 2 * result["head_dim"] if by == "bytes" else result["head_dim"]
    figure.update_xaxes(
        title="bytes of a key in one head, 16 bit" if by == "bytes" else "features (or dimensions) kept",
        range=[0, dense * 1.04],
    )
    figure.add_vline(
        x=dense, line={"color": KEPT, "dash": "dot", "width": 1}, annotation={"text": "dense", "xanchor": "right"}
    )
    figure.update_yaxes(title="error of the attention output", tickformat=".0%", range=[0, 1.25])
    return figure


def same_bytes(result: dict[str, Any], features: int) -> tuple[float, int, float, float] | None:
    """Codes of k features beside the fitted short embedding of the same 16-bit bytes, mean over the layers.

    Returns:
        Bytes, the short embedding's dimensions, error of the codes and of the short embedding; None where the grid
        does not hold both.
    """
    wide = features * 3 // 2
    if features not in result["grid"] or wide not in result["grid"] or features % 2:
        return None
    errors = [errors_of(result, m, None)[result["grid"].index(k)] for m, k in (("features", features), ("short", wide))]
    if errors[0] is None or errors[1] is None:
        return None
    return key_bytes("features", features), wide, errors[0], errors[1]


def error_sentence(result: dict[str, Any], features: int) -> str:
    """What the figure says, in one sentence."""
    grid = result["grid"]
    near = min((k for k in grid if same_bytes(result, k)), key=lambda k: abs(k - features), default=None)
    if near is None:
        return "The error of the attention output falls as more features are kept."
    size, wide, codes, short = same_bytes(result, near)  # type: ignore[misc]
    better = "less" if short < codes else "more"
    return (
        f"In the same {size:.0f} bytes a key, {near} features leave an error of {percent(codes)}, and a fitted short "
        f"embedding of {wide} dimensions {percent(short)}: {better} than codes, on weights that were not adapted."
    )


def error_table(result: dict[str, Any]) -> pd.DataFrame:
    """One row a method, size and layer."""
    return pd.DataFrame(
        [
            {"method": m, "features": k, "key_bytes": key_bytes(m, k), "layer": layer, "error": error}
            for m, by_size in result["errors"].items()
            for k, by_layer in zip(result["grid"], by_size, strict=True)
            for layer, error in zip(result["layers"], by_layer, strict=True)
        ]
    )


def head_curve(head: Head, ways: dict[str, Codes], grid: list[int], rows: int = 96) -> pd.DataFrame:
    """Attention that lands on other keys, of one head, by number of features and way of choosing them."""
    return pd.DataFrame(
        [
            {
                "way": label,
                "features": k,
                "moved": change(head, Codes(k, codes.select, codes.sparse, codes.no_overlap), rows).moved,
            }
            for label, codes in ways.items()
            for k in grid
            if codes.select != "pairs" or k % 2 == 0
        ]
    )


def head_figure(curve: pd.DataFrame) -> go.Figure:
    """The curve of :func:`head_curve`."""
    figure = go.Figure()
    looks = {"Top features": "features", "Top rotary pairs": "pairs", "Top features of keys alone": "keys"}
    for label, rows in curve.groupby("way", sort=False):
        color, dash, symbol = _LOOK[looks.get(str(label), "trained")]
        figure.add_scatter(
            x=rows["features"],
            y=rows["moved"],
            name=str(label),
            mode="lines+markers",
            line={"color": color, "width": 2.5, "dash": dash},
            marker={"symbol": symbol, "size": 8},
            hovertemplate=f"<b>{label}</b><br>%{{x}} features: %{{y:.1%}} lands elsewhere<extra></extra>",
        )
    quiet(figure, height=320)
    figure.update_xaxes(title="features kept")
    figure.update_yaxes(title="attention that lands elsewhere", tickformat=".0%", rangemode="tozero")
    return figure
