"""A threshold for every head, and the dynamic programme's steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.numbers import percent, sig3
from analysis.palette import LOST
from analysis.style import QUIET, SEQUENTIAL, quiet


def sentence(thresholds: np.ndarray, record: dict[str, Any]) -> str:
    """How the thresholds differ, in one sentence."""
    low, high = float(thresholds.min()), float(thresholds.max())
    wanted = record.get("recall")
    goal = f"For {percent(wanted)} of dense attention everywhere, " if wanted else ""
    return (
        f"{goal}{'h' if goal else 'H'}eads take thresholds from {sig3(low)} to {sig3(high)}, mean "
        f"{sig3(float(thresholds.mean()))}: one number for all would give some heads too much and others too little."
    )


def judged(fitted: dict[str, Any], plain: dict[str, Any], name: str = "fitted") -> str:
    """The fitted thresholds against one for all, from their two evaluations on the same windows.

    Args:
        fitted: what ``eval`` wrote with the adapter.
        plain: and without it.
        name: what the fit is called.
    """
    theirs = [np.log(row["ppl"]) for row in (fitted, plain)]
    change = float(np.exp(theirs[0] - theirs[1]) - 1)
    spread = _paired_error(fitted, plain)
    pairs = f"with {percent(fitted['kept_pairs'])} of the pairs against {percent(plain['kept_pairs'])}"
    text = (
        f"On {fitted['windows']} × {fitted['context']:,} tokens of *Persuasion*: perplexity {sig3(fitted['ppl'], 4)} "
        f"{name}, {sig3(plain['ppl'], 4)} with {plain['config']['threshold']:g} for all, "
        f"{sig3(fitted['dense_ppl'], 4)} dense, {pairs}."
    )
    if abs(change) <= 2 * spread:
        return f"{text} The two cannot be told apart ({percent(change, signed=True)} ± {percent(2 * spread)})."
    more = fitted["kept_pairs"] > plain["kept_pairs"] * 1.02
    if change < 0:
        return f"{text} Fitting is better by {percent(-change)}" + (", though it keeps more pairs." if more else ".")
    return f"{text} Fitting is worse by {percent(change)}."


def _paired_error(fitted: dict[str, Any], plain: dict[str, Any]) -> float:
    """Standard error of the relative change in perplexity, over the windows that both read."""
    pairs = zip(fitted["per_window"], plain["per_window"], strict=True)
    gaps = np.array([(a["nll"] - b["nll"]) / a["tokens"] for a, b in pairs])
    return float(gaps.std(ddof=1) / len(gaps) ** 0.5) if len(gaps) > 1 else 0.0


def steps(programme: dict[str, Any]) -> pd.DataFrame:
    """One row a reduction of the programme's best state: what was lowered, the score, the pairs kept."""
    table, kept, last = programme["table"], programme["kept"], len(programme["table"]) - 1
    rows = []
    for m in range(len(table[last])):
        lowered = [unit_name(programme["units"][u]) for u in state_of(programme["taken"], last, m)]
        rows.append(
            {
                "Lowered": m,
                "Perplexity": float(np.exp(-table[last][m])),
                "Pairs kept, %": 100 * kept[last][m],
                "Which": ", ".join(lowered) or "none",
            }
        )
    return pd.DataFrame(rows)


def cells(programme: dict[str, Any]) -> pd.DataFrame:
    """One row a cell of the table: its best state's mean log-likelihood, the pairs it keeps, what it lowers."""
    rows = [
        {
            "units_considered": u,
            "lowered": m,
            "log_likelihood": score,
            "perplexity": float(np.exp(-score)),
            "pairs_kept": programme["kept"][u][m],
            "which": ", ".join(unit_name(programme["units"][i]) for i in state_of(programme["taken"], u, m)),
        }
        for u, row in enumerate(programme["table"])
        for m, score in enumerate(row)
        if score is not None
    ]
    return pd.DataFrame(rows)


def state_of(taken: list[list[bool]], units: int, reductions: int) -> list[int]:
    """The lowered units behind a cell of the table, in the order of lowering."""
    found: list[int] = []
    while units and reductions:
        if taken[units][reductions]:
            found.append(units - 1)
            reductions -= 1
        units -= 1
    return found[::-1]


def unit_name(unit: list[int | None]) -> str:
    """A unit as people call it."""
    layer, head = unit
    return f"layer {layer}" if head is None else f"layer {layer} head {head}"


def programme_sentence(record: dict[str, Any]) -> str:
    """What the programme found, in one sentence."""
    found = steps(record["programme"])
    first, last = found.iloc[0], found.iloc[-1]
    change = last["Perplexity"] / first["Perplexity"] - 1
    return (
        f"Lowering {last['Which']} from {record['start']:g} to {record['start'] * record['factor']:.2g} takes "
        f"{sig3(first['Pairs kept, %'] - last['Pairs kept, %'])} points of the pairs and moves perplexity by "
        f"{percent(change, signed=True)} on the text it was chosen on, for {record['evaluations']} runs of the model."
    )


def programme_figure(record: dict[str, Any]) -> go.Figure:
    """The table D[u][m] as perplexity: units across, reductions up; the way to the best last cell is marked."""
    programme = record["programme"]
    table = np.array([[np.nan if v is None else np.exp(-v) for v in row] for row in programme["table"]])
    units, most = table.shape[0] - 1, table.shape[1] - 1
    text = [[_cell(programme, u, m) for u in range(units + 1)] for m in range(most + 1)]
    fig = go.Figure()
    fig.add_heatmap(
        z=table.T,
        x=list(range(units + 1)),
        y=list(range(most + 1)),
        xgap=1,
        ygap=1,
        colorscale=SEQUENTIAL,
        reversescale=True,
        text=text,
        hovertemplate="%{text}<extra></extra>",
        colorbar={"title": {"text": "Perplexity", "side": "right"}, "thickness": 12, "outlinewidth": 0},
    )
    way, m = [], most
    for u in range(units, -1, -1):
        way.append((u, m))
        if u and programme["taken"][u][m]:
            m -= 1
    fig.add_scatter(
        x=[u for u, _ in way],
        y=[m for _, m in way],
        mode="lines+markers",
        line={"color": LOST, "width": 2},
        marker={"size": 5, "color": LOST},
        hoverinfo="skip",
        showlegend=False,
    )
    fig.update_xaxes(title="Layers considered", showgrid=False)
    fig.update_yaxes(title="Layers lowered", dtick=1, showgrid=False, color=QUIET)
    return quiet(fig, height=260)


def _cell(programme: dict[str, Any], units: int, reductions: int) -> str:
    """What a cell of the table holds."""
    score = programme["table"][units][reductions]
    if score is None:
        return ""
    lowered = [unit_name(programme["units"][u]) for u in state_of(programme["taken"], units, reductions)]
    upto = f"up to {unit_name(programme['units'][units - 1])}" if units else "no layer yet"
    return (
        f"{upto}, {reductions} lowered<br>perplexity {sig3(float(np.exp(-score)), 5)}<br>"
        f"{percent(programme['kept'][units][reductions])} of pairs<br>lowered: {', '.join(lowered) or 'none'}"
    )
