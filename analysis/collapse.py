"""Does one group take everything? The experiment's records as curves, and what was measured in one sentence each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.numbers import percent, sig3
from analysis.palette import GROUPS, KEPT, LOST, WINDOW, group_color
from analysis.style import QUIET, quiet, say

NAMES = {
    "none": "No balancing",
    "loss": "Balance loss",
    "sinkhorn": "Sinkhorn (causal)",
    "bias": "Hard-load bias",
    "paper": "Sinkhorn in the forward pass",
}
"""The balancings as people read them, softest first; the last one is the paper's and sees later tokens."""
COLOURS = {"none": LOST, "loss": GROUPS[4], "sinkhorn": WINDOW, "bias": KEPT, "paper": GROUPS[13]}
PARTS = {
    "centroids": "Centroid drift",
    "projection": "Projection bypass",
    "hidden": "Representational bypass",
}
MEANING = {
    "centroids": "the centroids move until one is nearest to every token",
    "projection": "the small projection folds, so that all tokens land in one place",
    "hidden": "the model itself changes the hidden states that are routed",
}
COLLAPSED = 0.5
"""Share of the tokens in the fullest group from which it is called collapsed (K = 8: four times its share)."""
WAITING = "The first step has not ended yet."


def by_balance(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The records of each balancing, in order of steps; balancings softest first."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for record in records:
        found.setdefault(record["balance"], {})[record["step"]] = record
    return {name: [found[name][s] for s in sorted(found[name])] for name in NAMES if name in found}


def last_step(records: list[dict[str, Any]]) -> int:
    """The last step that all balancings have reached."""
    return min((rows[-1]["step"] for rows in by_balance(records).values()), default=0)


def shares(rows: list[dict[str, Any]], layer: int | None) -> np.ndarray:
    """(T, K) share of the tokens in each group after each step.

    Args:
        rows: the records of one balancing.
        layer: one layer, its groups as they are; None is the mean over layers of groups ordered by size.
    """
    load = np.array([row["load"] for row in rows], float)
    return -np.sort(-load, -1).mean(1) if layer is None else load[:, min(layer, load.shape[1] - 1)]


def largest(row: dict[str, Any]) -> float:
    """Share of the tokens in the fullest group, mean over layers, as the method assigns them in training."""
    return float(np.mean([max(layer) for layer in row["load"]]))


def settled(rows: list[dict[str, Any]]) -> float:
    """The fullest group's share over the last tenth of the steps: one step's windows are few tokens."""
    return float(np.mean([largest(row) for row in rows[-max(1, len(rows) // 10) :]]))


def panels(
    records: list[dict[str, Any]],
    steps: int,
    *,
    layer: int | None = None,
    shown: int | None = None,
    moves_from: int | None = None,
    height: int = 300,
) -> go.Figure:
    """Group shares over the steps, stacked: one panel a balancing, one scale for all.

    Args:
        records: of the experiment, or what of it has arrived.
        steps: of the whole experiment, for the axis.
        layer: see ``shares``.
        shown: draw up to this step only; None draws all.
        moves_from: step from which the model's weights move, drawn as a line.
        height: pixels.
    """
    runs = by_balance(records)
    if not runs:
        return say(quiet(go.Figure(), height=height), WAITING)
    figure = make_subplots(
        rows=1,
        cols=len(runs),
        shared_yaxes=True,
        horizontal_spacing=0.014,
        subplot_titles=[NAMES[name] for name in runs],
    )
    for column, (name, rows) in enumerate(runs.items(), start=1):
        rows = [row for row in rows if shown is None or row["step"] <= shown]
        table, x = shares(rows, layer), [row["step"] for row in rows]
        for group in range(table.shape[1]):
            what = f"group {group + 1} by size" if layer is None else f"group {group + 1}"
            figure.add_scatter(
                x=x,
                y=table[:, group],
                stackgroup=name,
                name=f"{NAMES[name]}, {what}",
                mode="lines",
                line={"width": 0.4, "color": group_color(group)},
                fillcolor=group_color(group),
                hovertemplate=f"{NAMES[name]}, step %{{x}}<br>{what}: %{{y:.1%}}<extra></extra>",
                row=1,
                col=column,
            )
        count = table.shape[1]
        figure.add_hline(y=1 / count, line={"color": QUIET, "dash": "dot", "width": 1}, row=1, col=column)
        if moves_from:
            figure.add_vline(x=moves_from, line={"color": QUIET, "dash": "dash", "width": 1}, row=1, col=column)
    quiet(figure, height=height, showlegend=False)
    figure.update_layout(margin={"t": 40, "b": 44})
    figure.update_annotations(font={"size": 13})
    figure.update_xaxes(range=[0, steps], title={"text": "step", "standoff": 4})
    figure.update_yaxes(range=[0, 1], tickformat=".0%")
    figure.update_yaxes(title_text="share of the tokens", row=1, col=1)
    return figure


def looks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps at which the moving parts were looked at."""
    return [row for row in rows if "back" in row]


def bypass_curves(
    records: list[dict[str, Any]], steps: int, shown: int | None = None, *, height: int = 300
) -> go.Figure:
    """The fullest group with one part put back to how it began, one panel a part; the part that matters falls."""
    runs = by_balance(records)
    figure = make_subplots(
        rows=1,
        cols=3,
        shared_yaxes=True,
        horizontal_spacing=0.02,
        subplot_titles=[f"{PARTS[part]}: {_BACK[part]}" for part in PARTS],
    )
    quiet(figure, height=height)
    if not any(looks(rows) for rows in runs.values()):
        return say(figure, WAITING)
    for name, rows in runs.items():
        seen = [row for row in looks(rows) if shown is None or row["step"] <= shown]
        x = [row["step"] for row in seen]
        for column, part in enumerate(PARTS, start=1):
            common = {"x": x, "mode": "lines", "legendgroup": name, "row": 1, "col": column}
            figure.add_scatter(
                y=[row["largest"] for row in seen],
                line={"color": COLOURS[name], "width": 1, "dash": "dot"},
                name=f"{NAMES[name]}, as it is",
                showlegend=False,
                hovertemplate=f"{NAMES[name]}, step %{{x}}<br>as it is: %{{y:.1%}}<extra></extra>",
                **common,
            )
            figure.add_scatter(
                y=[row["back"][part] for row in seen],
                line={"color": COLOURS[name], "width": 2},
                name=NAMES[name],
                showlegend=column == 1,
                hovertemplate=f"{NAMES[name]}, step %{{x}}<br>put back: %{{y:.1%}}<extra></extra>",
                **common,
            )
    figure.update_layout(legend={"y": 1.12}, margin={"t": 84, "b": 44})
    figure.update_annotations(font={"size": 13})
    figure.update_xaxes(range=[0, steps], title={"text": "step", "standoff": 4})
    figure.update_yaxes(range=[0, 1], tickformat=".0%")
    figure.update_yaxes(title_text="fullest group", row=1, col=1)
    return figure


_BACK = {"centroids": "centroids put back", "projection": "projection put back", "hidden": "hidden states put back"}


def carrier(row: dict[str, Any]) -> str | None:
    """The part whose return to its start evens the groups most, where it takes at least a third of the way to even."""
    even = 1 / len(row["load"][0])
    gain = {part: row["largest"] - row["back"][part] for part in PARTS}
    part = max(gain, key=lambda name: gain[name])
    excess = row["largest"] - even
    return part if excess > 0.1 and gain[part] >= excess / 3 else None


def answer(records: list[dict[str, Any]], moving: str) -> str:
    """What was measured, in one sentence.

    Args:
        records: of the experiment.
        moving: ``frozen``, ``moving`` or ``late``.
    """
    runs = by_balance(records)
    if not runs:
        return "Nothing has run yet."
    ends = {name: settled(rows) for name, rows in runs.items()}
    fell = [n for n in ends if ends[n] >= COLLAPSED]
    held = [n for n in ends if ends[n] < COLLAPSED]
    what = _WITH.get(moving, _WITH["moving"])
    said = _listed([f"{_low(NAMES[n])} ({percent(ends[n])})" for n in fell])
    even = _listed([f"{_low(NAMES[n])} ({percent(ends[n])})" for n in held])
    if not fell:
        return f"No collapse {what}: the fullest group holds {even}."
    if not held:
        return f"One group takes most tokens whatever balances, {what}: {said}."
    return f"One group takes most tokens {what} under {said}; not under {even}."


def verdict(documents: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What of the seeds' story the recorded experiments show, one sentence a claim.

    Args:
        documents: the records by experiment: ``frozen``, ``moving``, ``late``.
    """
    ends = {
        (kind, name): settled(rows) for kind, records in documents.items() for name, rows in by_balance(records).items()
    }

    def among(name: str) -> str:
        said = [f"{percent(ends[kind, name])} {_KINDS[kind]}" for kind in documents if (kind, name) in ends]
        return ", ".join(said)

    lines = []
    if ("frozen", "none") in ends:
        lines.append(f"**Without balancing one group takes over**: {among('none')}. Reproduced.")
    if ("frozen", "loss") in ends and ("moving", "loss") in ends:
        worse = ends["moving", "loss"] > ends["frozen", "loss"] + 0.05
        lines.append(
            f"**A balance loss is evaded when the model can move**: {among('loss')}. "
            + ("Reproduced." if worse else "Not reproduced: it fails most where the model is frozen.")
        )
    if ("frozen", "sinkhorn") in ends:
        holds = max(ends[kind, "sinkhorn"] for kind in documents) < COLLAPSED
        lines.append(
            f"**Sinkhorn holds**: as causal duals {among('sinkhorn')}; in the forward pass {among('paper')}. "
            + ("Reproduced." if holds else "In part: it is far from even in some settings.")
        )
    if ("frozen", "bias") in ends:
        lines.append(f"**The hard-load bias**, which this project trains with: {among('bias')}.")
    return lines


_WITH = {
    "frozen": "with the model frozen",
    "moving": "with all weights moving",
    "late": "with the model freed half-way",
}
_KINDS = {"frozen": "frozen", "moving": "moving", "late": "freed half-way"}


def parts_table(records: list[dict[str, Any]], step: int | None = None) -> pd.DataFrame:
    """What moved by a step, a balancing a row."""
    found = []
    for name, rows in by_balance(records).items():
        seen = [row for row in looks(rows) if step is None or row["step"] <= step]
        if not seen:
            continue
        row = seen[-1]
        part = carrier(row)
        found.append(
            {
                "Balancing": NAMES[name],
                "Step": row["step"],
                "Fullest group, served": percent(row["largest"]),
                "Centroids turned": f"{sig3(row['moved']['centroids'])}°",
                "Projection changed": percent(row["moved"]["projection"]),
                "Hidden states turned": sig3(row["moved"]["hidden"]),
                "Spread of points": sig3(row["spread"]["projection"]),
                "What carries it": PARTS[part] if part else "–",
                "Served perplexity": sig3(row["served_ppl"]),
                "Dense": sig3(row["dense_ppl"]),
                "Pairs kept": percent(row["kept_pairs"]),
            }
        )
    return pd.DataFrame(found)


def carried(records: list[dict[str, Any]], step: int | None = None) -> str:
    """Which bypass the curves show at a step, in one sentence."""
    found: dict[str, list[str]] = {}
    for name, rows in by_balance(records).items():
        seen = [row for row in looks(rows) if step is None or row["step"] <= step]
        part = carrier(seen[-1]) if seen else None
        if part:
            found.setdefault(part, []).append(_low(NAMES[name]))
    if not found:
        return "No part that moved carries a collapse here."
    said = [f"{PARTS[part]} under {_listed(names)} ({MEANING[part]})" for part, names in found.items()]
    return "Seen here: " + "; ".join(said) + "."


def _low(name: str) -> str:
    return name if name.startswith("Sinkhorn") else name[:1].lower() + name[1:]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1] if names else ""
