"""What XAttention's thresholds keep and lose on an image's tokens: words, table and figure of a recorded sweep."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from analysis.numbers import percent
from analysis.palette import GROUPS, KEPT, LOST
from analysis.style import QUIET, quiet


def sweeps(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs with XAttention's thresholds."""
    return [run for run in document.get("runs", []) if run.get("xattention")]


def dense(run: dict[str, Any]) -> float:
    """Accuracy with all pairs on the sweep's own images, which are a part of the test images."""
    whole = [row["accuracy"] for row in run["xattention"] if row["kept_pairs"] > 0.9999]
    return whole[0] if whole else run["accuracy"]


def sweep_figure(run: dict[str, Any]) -> go.Figure:
    """Accuracy against pairs kept, a line for every number of warm-up layers."""
    fig = go.Figure()
    for color, warm in zip(
        (KEPT, LOST, GROUPS[5], GROUPS[4]), sorted({r["warm_up"] for r in run["xattention"]}), strict=False
    ):
        rows = [r for r in run["xattention"] if r["warm_up"] == warm]
        fig.add_scatter(
            x=[100 * r["kept_pairs"] for r in rows],
            y=[100 * r["accuracy"] for r in rows],
            mode="lines+markers",
            name=f"{warm} dense first layer{'' if warm == 1 else 's'}",
            line={"color": color},
            text=[f"threshold {r['threshold']:g}" for r in rows],
            hovertemplate="%{text}: %{x:.1f} % of pairs, %{y:.2f} % right<extra></extra>",
        )
    fig.add_hline(y=100 * dense(run), line_dash="dot", line_color=QUIET, annotation_text="dense")
    quiet(fig, height=380)
    fig.update_xaxes(title_text="pairs kept, % of all layers'")
    return fig.update_yaxes(title_text="right, %")


def sweep_table(run: dict[str, Any]) -> pd.DataFrame:
    """One row a threshold and number of warm-up layers."""
    return pd.DataFrame(
        {
            "dense first layers": [r["warm_up"] for r in run["xattention"]],
            "threshold": [r["threshold"] for r in run["xattention"]],
            "pairs kept": [percent(r["kept_pairs"]) for r in run["xattention"]],
            "right": [percent(r["accuracy"]) for r in run["xattention"]],
        }
    )


def sweep_sentence(run: dict[str, Any]) -> str:
    """The fewest pairs that cost at most half a point of accuracy."""
    whole = dense(run)
    good = [r for r in run["xattention"] if r["accuracy"] >= whole - 0.005]
    if not good:
        return f"No setting stays within half a point of dense attention's {percent(whole)}."
    best = min(good, key=lambda r: r["kept_pairs"])
    return (
        f"With threshold {best['threshold']:g} and {best['warm_up']} dense first layers, {percent(best['kept_pairs'])} "
        f"of the pairs give {percent(best['accuracy'])}; dense attention gives {percent(whole)}."
    )
