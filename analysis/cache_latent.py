"""Latent attention: what a latent of each rank keeps and loses, and the published models that were made with one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from analysis.numbers import memory, percent, sig3
from analysis.palette import KEPT, WINDOW
from analysis.style import QUIET, quiet, say

if TYPE_CHECKING:
    import pandas as pd

NATIVE = (
    ("DeepSeek-V2's 16B", 110_600, 15_600),
    ("DeepSeek-V2's 250B", 860_200, 34_600),
)
"""Cached numbers a token with multi-head and with latent attention (arXiv 2405.04434, table 9)."""
WIDTH, LATENT, ROTARY = 576, 512, 64
"""Of one layer and token of DeepSeek-V2: normalised latent and the one rotated key that all heads share."""


def figure(document: dict[str, Any]) -> go.Figure:
    """Perplexity by bytes a token, one point a rank, and where a latent was trained a little; dense as the cross-hair.

    Args:
        document: ``rows`` as ``focus_core.evaluation.latent_ranks.by_rank`` gives them, some with ``healed``.
    """
    drawn, dense, rows = go.Figure(), _dense(document), _ranks(document)
    if dense is None or not rows:
        return quiet(say(drawn, "No rank has been measured yet."), height=300)
    drawn.add_scatter(
        x=[row["bytes_per_token"] / 1e3 for row in rows],
        y=[row["ppl"] for row in rows],
        mode="lines+markers+text",
        text=[f"rank {row['rank']}" for row in rows],
        textposition="top right",
        cliponaxis=False,
        line={"color": KEPT, "width": 2},
        marker={"size": 10},
        customdata=[[memory(row["bytes_per_token"]), sig3(row["ppl"]), int(row["numbers"])] for row in rows],
        hovertemplate="<b>%{text}</b><br>%{customdata[0]} a token (%{customdata[2]} numbers a layer)<br>"
        "perplexity %{customdata[1]}<extra></extra>",
        name="as factorised",
    )
    healed = [row for row in rows if row.get("healed")]
    if healed:
        drawn.add_scatter(
            x=[row["bytes_per_token"] / 1e3 for row in healed],
            y=[row["healed"]["ppl"] for row in healed],
            mode="lines+markers",
            line={"color": WINDOW, "width": 2, "dash": "dot"},
            marker={"size": 11, "symbol": "diamond"},
            customdata=[
                [row["rank"], sig3(row["healed"]["ppl"]), f"{row['healed']['step']:,}", f"{row['healed']['tokens']:,}"]
                for row in healed
            ],
            hovertemplate="<b>rank %{customdata[0]}, trained a little</b><br>perplexity %{customdata[1]} after "
            "%{customdata[2]} steps, %{customdata[3]} tokens<extra></extra>",
            name="after a short training",
        )
    drawn.add_hline(
        y=dense["ppl"],
        line={"dash": "dash", "width": 1, "color": QUIET},
        annotation_text="dense",
        annotation_position="bottom right",
        annotation_font_color=QUIET,
    )
    drawn.add_vline(x=dense["bytes_per_token"] / 1e3, line={"dash": "dash", "width": 1, "color": QUIET})
    drawn.update_xaxes(title="kB of cache a token, all layers", rangemode="tozero")
    drawn.update_yaxes(title="Perplexity")
    return quiet(drawn, height=340)


def sentence(document: dict[str, Any]) -> str:
    """What the smallest latent that costs at most a tenth of perplexity keeps, or the largest one where none does."""
    dense, rows = _dense(document), _ranks(document)
    if dense is None or not rows:
        return "No rank has been measured yet."
    good = [row for row in rows if row["ppl"] <= 1.1 * dense["ppl"]]
    row = good[0] if good else rows[-1]
    share = percent(row["bytes_per_token"] / dense["bytes_per_token"])
    return (
        f"Without training, a latent of rank {row['rank']} keeps {memory(row['bytes_per_token'])} a token ({share}) at "
        f"perplexity {sig3(row['ppl'])}, where dense has {sig3(dense['ppl'])}."
    )


def native_table() -> pd.DataFrame:
    """Published models made with a latent."""
    import pandas as pd

    return pd.DataFrame(
        {
            "Model": [name for name, *_ in NATIVE],
            "Keys and values, numbers a token": [f"{mha:,}" for _, mha, _ in NATIVE],
            "Latent, numbers a token": [f"{mla:,}" for *_, mla in NATIVE],
            "Of it": [percent(mla / mha) for _, mha, mla in NATIVE],
        }
    )


def _dense(document: dict[str, Any]) -> dict[str, Any] | None:
    return next((row for row in document.get("rows", []) if row["rank"] is None), None)


def _ranks(document: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted((r for r in document.get("rows", []) if r["rank"] is not None), key=lambda r: r["bytes_per_token"])
