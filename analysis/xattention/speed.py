"""The recorded time of XAttention's cpu path beside dense attention."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from analysis.numbers import percent, sig3
from analysis.palette import KEPT
from analysis.style import LOSES, QUIET, quiet


def sentence(found: dict[str, Any]) -> str:
    """How much faster, and what choosing costs."""
    rows, about = found["rows"], found["about"]
    gains = sorted(row["speedup"]["median"] for row in rows)
    kept = sorted(row["density"] for row in rows)
    cost = found["verdict"]["largest_select_share"]
    return (
        f"At {about['tokens']:,} tokens attention is {sig3(gains[0])} to {sig3(gains[-1])} times as fast as dense, "
        f"with {percent(kept[0])} to {percent(kept[-1])} of the pairs; choosing the blocks costs at most "
        f"{percent(cost)} of dense attention's time."
    )


def where(found: dict[str, Any]) -> str:
    """What was measured, where and how."""
    about, env = found["about"], found["about"]["environment"]
    config = about["config"]
    threads = f"{env['threads']} thread" + ("s" if env["threads"] > 1 else "")
    return (
        f"{about['model']}, {about['text']}, stride {config['stride']}, threshold {config['threshold']:g}, blocks of "
        f"{config['block']} · {env['device']}, {threads}, torch {env['torch']} · {env['time'][:10]} · "
        f"{about['repeats']} interleaved runs against causal SDPA · {about['command']}"
    )


def figure(found: dict[str, Any]) -> go.Figure:
    """Speed-up against the share of pairs kept, one point a layer with its spread; the bound that pairs alone set."""
    rows = sorted(found["rows"], key=lambda row: row["density"])
    x, y = [100 * row["density"] for row in rows], [row["speedup"]["median"] for row in rows]
    fig = go.Figure()
    bound = [max(3, x[0] * 0.8) + step * (100 - max(3, x[0] * 0.8)) / 60 for step in range(61)]
    fig.add_scatter(
        x=bound,
        y=[100 / share for share in bound],
        mode="lines",
        name="if time fell as the pairs do",
        line={"color": QUIET, "dash": "dot"},
        hoverinfo="skip",
    )
    fig.add_scatter(
        x=x,
        y=y,
        mode="markers+text",
        name="measured, a layer",
        text=[str(row["layer"]) for row in rows],
        textposition="middle right",
        marker={"size": 10, "color": KEPT},
        error_y={
            "array": [row["speedup"]["p90"] - row["speedup"]["median"] for row in rows],
            "arrayminus": [row["speedup"]["median"] - row["speedup"]["p10"] for row in rows],
            "color": KEPT,
            "thickness": 1,
        },
        customdata=[row["select_share"]["median"] * 100 for row in rows],
        hovertemplate="layer %{text}<br>%{x:.3g} % of pairs<br>%{y:.3g} times faster<br>choice: %{customdata:.3g} % of "
        "dense<extra></extra>",
    )
    fig.add_hrect(y0=0, y1=1, fillcolor=LOSES, line_width=0, annotation_text="slower than dense")
    fig.update_xaxes(title="Pairs kept, %", range=[0, 100])
    fig.update_yaxes(title="Times faster than dense attention", range=[0, max(3.0, 1.25 * max(y))])
    return quiet(fig, height=380)


def table(found: dict[str, Any]) -> pd.DataFrame:
    """One row a layer."""
    rows = [
        {
            "Layer": row["layer"],
            "Pairs kept, %": 100 * row["density"],
            "Dense, ms": row["dense_ms"]["median"],
            "Choice, ms": row["select_ms"]["median"],
            "Choice, % of dense": 100 * row["select_share"]["median"],
            "Whole, ms": row["whole_ms"]["median"],
            "Times faster": row["speedup"]["median"],
            "10th percentile": row["speedup"]["p10"],
            "90th percentile": row["speedup"]["p90"],
        }
        for row in found["rows"]
    ]
    return pd.DataFrame(rows)
