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
TITLES = NAMES | {"sinkhorn": "Sinkhorn, causal", "paper": "Sinkhorn, paper"}
TITLES = {name: title.replace(" ", "<br>", 1) for name, title in TITLES.items()}
"""Names short enough to stand above narrow panels, in two lines."""
COLOURS = {"none": LOST, "loss": GROUPS[4], "sinkhorn": WINDOW, "bias": KEPT, "paper": GROUPS[13]}
PARTS = {
    "centroids": "Centroid drift",
    "projection": "Projection bypass",
    "hidden": "Representational bypass",
}
BACK = {
    "centroids": "Centroids<br>put back",
    "projection": "Projection<br>put back",
    "hidden": "Hidden states<br>put back",
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
    """The fullest group's share as training assigns it, over the last tenth of the steps: one step has few tokens."""
    return float(np.mean([largest(row) for row in rows[-max(1, len(rows) // 10) :]]))


def served(rows: list[dict[str, Any]]) -> float | None:
    """The fullest group's share as decoding has it, each token by itself on held-back windows, at the last look."""
    return next((float(row["largest"]) for row in reversed(rows) if "largest" in row), None)


def share_rows(records: list[dict[str, Any]], experiment: str) -> pd.DataFrame:
    """What the panels draw, all layers of it, as a table: one row a balancing, step, layer and group."""
    columns = ["balancing", "experiment", "layer", "group", "step", "share"]
    found = [
        (NAMES[name], experiment, layer, group + 1, row["step"], share)
        for name, rows in by_balance(records).items()
        for row in rows
        for layer, load in enumerate(row["load"])
        for group, share in enumerate(load)
    ]
    return pd.DataFrame(found, columns=columns)


def part_rows(records: list[dict[str, Any]], experiment: str) -> pd.DataFrame:
    """What the curves of the parts draw as a table: the fullest group's share as it is, and with one part put back."""
    columns = ["balancing", "experiment", "panel", "step", "as it is (dotted)", "put back (solid)"]
    found = [
        (NAMES[name], experiment, BACK[part], row["step"], row["largest"], row["back"][part])
        for name, rows in by_balance(records).items()
        for row in looks(rows)
        for part in PARTS
    ]
    return pd.DataFrame(found, columns=columns)


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
        subplot_titles=[TITLES[name] for name in runs],
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
    figure.update_layout(margin={"t": 52, "b": 44})
    figure.update_annotations(font={"size": 12})
    # The last step has no label: it would stand on the next panel's 0.
    ticks = [0, round(steps / 3), round(2 * steps / 3)]
    figure.update_xaxes(range=[0, steps], tickvals=ticks, title={"text": "step", "standoff": 4})
    figure.update_yaxes(range=[0, 1], tickformat=".0%")
    figure.update_yaxes(title_text="share of the tokens", row=1, col=1)
    return figure


def looks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps at which the moving parts were looked at."""
    return [row for row in rows if "back" in row]


def bypass_curves(
    records: list[dict[str, Any]], steps: int, shown: int | None = None, *, height: int = 330
) -> go.Figure:
    """The fullest group with one part put back to how it began, one panel a part; the part that matters falls."""
    runs = by_balance(records)
    figure = make_subplots(
        rows=1,
        cols=3,
        shared_yaxes=True,
        horizontal_spacing=0.02,
        subplot_titles=[BACK[part] for part in PARTS],
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
    figure.update_layout(legend={"y": 1.2}, margin={"t": 104, "b": 44})
    figure.update_annotations(font={"size": 12})
    ticks = [0, round(steps / 3), round(2 * steps / 3)]
    figure.update_xaxes(range=[0, steps], tickvals=ticks, title={"text": "step", "standoff": 4})
    figure.update_yaxes(range=[0, 1], tickformat=".0%")
    figure.update_yaxes(title_text="fullest group", row=1, col=1)
    return figure


def carrier(row: dict[str, Any]) -> str | None:
    """The part whose return to its start evens the groups most, where it takes at least a third of the way to even.

    It says what moved furthest here, not what a method does: centroids begun 50 times smaller beside a projection 10
    times larger are the same function at first, and then the centroids carry what the projection carries here.
    """
    even = 1 / len(row["load"][0])
    gain = {part: row["largest"] - row["back"][part] for part in PARTS}
    part = max(gain, key=lambda name: gain[name])
    excess = row["largest"] - even
    return part if excess > 0.1 and gain[part] >= excess / 3 else None


def answer(records: list[dict[str, Any]], moving: str) -> str:
    """What was measured, in one sentence: the fullest group as training assigns it, mean over layers.

    The paper's assignment sees later tokens while it trains and cannot when it serves, so it is said apart, with both.

    Args:
        records: of the experiment.
        moving: ``frozen``, ``moving`` or ``late``.
    """
    runs = by_balance(records)
    if not runs:
        return "Nothing has run yet."
    ends = {name: settled(rows) for name, rows in runs.items() if name != "paper"}
    apart = f" {_paper(runs['paper'])}" if "paper" in runs else ""
    fell = [n for n in ends if ends[n] >= COLLAPSED]
    held = [n for n in ends if ends[n] < COLLAPSED]
    what = _WITH.get(moving, _WITH["moving"])
    said = _listed([f"{_low(NAMES[n])} ({percent(ends[n])})" for n in fell])
    even = _listed([f"{_low(NAMES[n])} ({percent(ends[n])})" for n in held])
    if not fell:
        return f"No collapse {what}: the fullest group holds, mean over layers, {even}.{apart}"
    if not held:
        return f"One group takes most tokens whatever balances, {what}, mean over layers: {said}.{apart}"
    return f"One group takes most tokens {what}, mean over layers, under {said}; not under {even}.{apart}"


def _paper(rows: list[dict[str, Any]]) -> str:
    """Both figures of the paper's balancing, each by its name."""
    end = served(rows)
    now = "" if end is None else f"; {percent(end)} as served, each token by itself"
    return f"{NAMES['paper']}: {percent(settled(rows))} as assigned in training, which sees later tokens{now}."


def verdict(documents: dict[str, list[dict[str, Any]]], settings: dict[str, Any] | None = None) -> list[str]:
    """What of the seeds' story the recorded experiments show, one sentence a claim.

    Args:
        documents: the records by experiment: ``frozen``, ``moving``, ``late``.
        settings: of the experiments, to say what the result rests on.
    """
    runs = {(kind, name): rows for kind, records in documents.items() for name, rows in by_balance(records).items()}
    ends = {key: settled(rows) for key, rows in runs.items()}

    def among(name: str, figure: Any = settled) -> str:
        said = [(figure(runs[kind, name]), _KINDS[kind]) for kind in documents if (kind, name) in runs]
        return ", ".join(f"{percent(value)} {kind}" for value, kind in said if value is not None)

    if not runs:
        return []
    lines = ["Shares are of the fullest group as training assigns it, mean over layers, unless said otherwise."]
    if ("frozen", "none") in ends:
        lines.append(f"**Without balancing one group takes over**: {among('none')}. Reproduced.")
    if ("frozen", "loss") in ends and ("moving", "loss") in ends:
        worse = ends["moving", "loss"] > ends["frozen", "loss"] + 0.05
        lines.append(
            f"**A balance loss is evaded when the model can move**: {among('loss')}. "
            + ("Reproduced" if worse else "Not reproduced: it fails most where the model is frozen")
            + _rests_on(runs["frozen", "loss"], runs, settings or {})
        )
        lines += _undecided(runs["frozen", "loss"])
    if ("frozen", "sinkhorn") in ends:
        holds = max(ends[kind, "sinkhorn"] for kind in documents) < COLLAPSED
        lines.append(
            f"**Sinkhorn holds**: as causal duals {among('sinkhorn')}. In the forward pass, as the paper has it: as "
            f"assigned in training, which sees later tokens, {among('paper')}; as served {among('paper', served)}. "
            + ("Reproduced." if holds else "In part: it is far from even in some settings.")
        )
    if ("frozen", "bias") in ends:
        lines.append(f"**The hard-load bias**, which this project trains with: {among('bias')}.")
    return lines


def _rests_on(frozen: list[dict[str, Any]], runs: dict[tuple[str, str], Any], settings: dict[str, Any]) -> str:
    """One seed, one weight, so many steps; what a mean over layers hides; and what moving weights cost by itself."""
    weight = f", one weight ({settings['balance_weight']})" if "balance_weight" in settings else ""
    layers = " ".join(f"{max(layer):.2f}".lstrip("0") for layer in frozen[-1]["load"])
    said = f", with one seed{weight} and {frozen[-1]['step']} steps; frozen, the layers end at {layers}"
    dense = {
        kind: [rows[-1]["dense_ppl"] for (k, _), rows in runs.items() if (k != "frozen") == kind and looks(rows[-1:])]
        for kind in (False, True)
    }
    if not all(dense.values()):
        return said + "."
    begun, low, high = (sig3(x) for x in (min(dense[False]), min(dense[True]), max(dense[True])))
    cost = f"Moving weights also raise dense perplexity, from {begun} to {low}–{high}: more than one thing differs."
    return f"{said}. {cost}"


def _undecided(rows: list[dict[str, Any]]) -> list[str]:
    """What the balance loss is met by, as recorded."""
    seen = [row for row in looks(rows) if "soft_largest" in row]
    if not seen:
        return []
    row = seen[-1]
    return [
        f"Frozen, the loss does not get what it asks for: at the end the fullest group's mean soft share is "
        f"{percent(row['soft_largest'])}, a token's largest soft share is {percent(row['certainty'])} on average, and "
        f"the fullest group as served holds {percent(row['largest'])}."
    ]


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
    """Which part evens the groups when it is put back, at a step, and how far that goes; empty without a look."""
    found: dict[str, list[str]] = {}
    looked = False
    for name, rows in by_balance(records).items():
        seen = [row for row in looks(rows) if step is None or row["step"] <= step]
        looked = looked or bool(seen)
        part = carrier(seen[-1]) if seen else None
        if part:
            found.setdefault(part, []).append(_low(NAMES[name]))
    if not looked:
        return ""
    if not found:
        return "No part that moved carries a collapse here."
    said = [f"{PARTS[part].lower()} under {_listed(names)}" for part, names in found.items()]
    return f"Here: {'; '.join(said)}. Which part carries it depends on how fast each part learns here."


def _low(name: str) -> str:
    return name if name.startswith("Sinkhorn") else name[:1].lower() + name[1:]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1] if names else ""
