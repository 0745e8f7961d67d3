"""Peak memory of a training step by rank: words and figure of a recorded training's ``cost.memory_by_rank``."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from analysis.numbers import memory, sig3, times
from analysis.palette import KEPT
from analysis.style import GRID, QUIET, quiet, say


def rank_figure(document: dict[str, Any]) -> go.Figure:
    """Peak memory of a step of the published ViT-Tiny shape by rank, beside softmax."""
    rows = (document.get("cost") or {}).get("memory_by_rank", [])
    rows = [row for row in rows if row.get("peak_memory_bytes")]
    if not rows:
        return say(quiet(go.Figure(), height=200), "Memory was not measured: it needs a GPU.")
    names = ["softmax" if row["rank"] is None else _rank(row, "G3B, ") for row in rows]
    fig = go.Figure(
        go.Bar(
            x=[row["peak_memory_bytes"] / 1e9 for row in rows],
            y=names,
            orientation="h",
            marker_color=[QUIET if row["rank"] is None else KEPT for row in rows],
            text=[f"{memory(row['peak_memory_bytes'])}, {sig3(row['step_ms']['median'])} ms a step" for row in rows],
            textposition="auto",
            hovertemplate="%{y}: %{x:.3g} GB<extra></extra>",
        )
    )
    quiet(fig, height=90 + 44 * len(rows)).update_layout(margin_t=12)
    fig.update_yaxes(autorange="reversed", gridcolor=GRID)
    return fig.update_xaxes(title_text="peak memory of a training step, GB")


def rank_sentence(document: dict[str, Any]) -> str:
    """Peak memory of every rank over softmax's."""
    rows = [row for row in (document.get("cost") or {}).get("memory_by_rank", []) if row.get("peak_memory_bytes")]
    base = next((row["peak_memory_bytes"] for row in rows if row["rank"] is None), None)
    if base is None:
        return "Peak memory was not measured: it needs a GPU."
    parts = [f"{_rank(r)} {times(r['peak_memory_bytes'] / base)}" for r in rows if r["rank"] is not None]
    shape = f"ViT-Tiny's shape at 224 pixels, batch {rows[0]['batch']}"
    return f"A training step in {shape}, takes, of softmax's memory: {', '.join(parts)}."


def _rank(row: dict[str, Any], before: str = "") -> str:
    return "full operator" if row["attention"] == "full" else f"{before}rank {row['rank']}"
