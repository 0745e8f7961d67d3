"""What a training run has told so far: its steps in order, its curves, its groups' loads, and one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.numbers import percent, sig3
from analysis.palette import KEPT, LOST, group_color, group_label
from analysis.style import QUIET, quiet, say
from focus_core.trace import Trace

WAITING = "The first step has not ended yet."


def history_of(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps in order; of a step that was told twice (after a resume) the last word counts."""
    found: dict[int, dict[str, Any]] = {}
    for part in parts:
        if "step" in part:
            found[part["step"]] = {**found.get(part["step"], {}), **part}
    return [found[step] for step in sorted(found)]


def about_of(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What the run said of itself before its first step."""
    return next((part["about"] for part in parts if "about" in part), {})


def dense_ppl(history: list[dict[str, Any]]) -> float | None:
    """Perplexity of the dense model on the validation windows."""
    return next((part["dense_ppl"] for part in history if part.get("dense_ppl")), None)


def served(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps at which the served mask was measured."""
    return [part for part in history if "served_ppl" in part]


def looks(history: list[dict[str, Any]]) -> list[int]:
    """The steps whose groups were kept."""
    return [part["step"] for part in history if "look" in part]


def answer(history: list[dict[str, Any]], steps: int) -> str:
    """The run so far in one sentence."""
    measured, dense = served(history), dense_ppl(history)
    if not measured or dense is None:
        return "Nothing is measured yet."
    first, last = measured[0], measured[-1]
    now = f"perplexity {sig3(last['served_ppl'])} with {percent(last['kept_pairs'])} of the pairs"
    tail = f"dense attention has {sig3(dense)} with all"
    if last is first:
        return f"Untrained groups serve {now}; {tail}."
    before = f"{sig3(first['served_ppl'])} with {percent(first['kept_pairs'])} untrained"
    return f"After {last['step']} of {steps} steps the groups serve {now} ({before}); {tail}."


def best(history: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The trained step whose adapter is kept: the lowest served perplexity."""
    measured = [part for part in served(history) if part["step"] > 0]
    return min(measured, key=lambda part: part["served_ppl"]) if measured else None


def gain(history: list[dict[str, Any]]) -> str:
    """Both figures of the untrained and of the kept step side by side, and whether that is a gain; empty before both.

    A mask with more pairs predicts better by itself, so perplexities with other pairs do not rank the two.
    """
    kept, measured = best(history), served(history)
    if kept is None or measured[0]["step"] != 0:
        return ""
    first = measured[0]

    def pair(part: dict[str, Any]) -> str:
        return f"perplexity {sig3(part['served_ppl'])} with {percent(part['kept_pairs'])} of the pairs"

    both = f"Untrained (step 0): {pair(first)}. Kept (step {kept['step']}): {pair(kept)}."
    change = kept["served_ppl"] / first["served_ppl"] - 1
    moved = f"{abs(change):.1%} {'more' if change > 0 else 'less'} perplexity".replace("%", " %")
    fewer = kept["kept_pairs"] < first["kept_pairs"]
    same = kept["kept_pairs"] == first["kept_pairs"]
    spoken = f"Training {'lowered' if fewer else 'left' if same else 'raised'} the pairs"
    if change > 0 and fewer:
        return f"{both} {spoken} at {moved}: no gain in quality, and at other pairs neither is the better one."
    if change > 0:
        return f"{both} {spoken} and has {moved}: no gain."
    if fewer or same:
        return f"{both} {spoken} and has {moved}: a gain."
    return f"{both} {spoken} and has {moved}: at other pairs neither is the better one."


def curves(history: list[dict[str, Any]], steps: int, shown: int | None = None, *, height: int = 330) -> go.Figure:
    """Training loss above, served perplexity against dense below, over the steps."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.12, row_heights=[0.45, 0.55])
    told = [part for part in history if "loss" in part]
    measured, dense = served(history), dense_ppl(history)
    quiet(figure, height=height, showlegend=False)
    if not history:
        return say(figure, WAITING)
    figure.add_scatter(
        x=[p["step"] for p in told],
        y=[p["loss"] for p in told],
        name="training loss",
        mode="lines",
        line={"color": KEPT},
        hovertemplate="step %{x}: loss %{y:.3f}<extra></extra>",
        row=1,
        col=1,
    )
    figure.add_scatter(
        x=[p["step"] for p in measured],
        y=[p["served_ppl"] for p in measured],
        name="served perplexity",
        customdata=[percent(p["kept_pairs"]) for p in measured],
        mode="lines+markers+text",
        text=[percent(p["kept_pairs"]) for p in measured],
        textposition="top center",
        textfont={"size": 10, "color": QUIET},
        line={"color": LOST},
        cliponaxis=False,
        hovertemplate="step %{x}: served perplexity %{y:.2f}, %{customdata} of the pairs<extra></extra>",
        row=2,
        col=1,
    )
    if dense is not None:
        figure.add_hline(
            y=dense,
            line={"color": QUIET, "dash": "dash", "width": 1},
            annotation={"text": f"dense {sig3(dense)}", "font": {"color": QUIET, "size": 11}},
            annotation_position="bottom right",
            row=2,
            col=1,
        )
    if shown is not None:
        figure.add_vline(x=shown, line={"color": QUIET, "width": 1})
    figure.update_layout(margin={"t": 16, "b": 44})
    figure.update_xaxes(range=[-0.02 * steps, 1.02 * steps])
    figure.update_xaxes(title_text="step", row=2, col=1)
    figure.update_yaxes(title_text="loss", row=1, col=1)
    figure.update_yaxes(title_text="perplexity", row=2, col=1)
    return figure


def shares(history: list[dict[str, Any]], layer: int, router: int) -> pd.DataFrame:
    """Share of the training tokens in each group (columns) after each step (index), of one layer and router.

    Step s counts the groups that its forward pass finds, before it corrects them: they are those after s - 1 steps.
    """
    told = [part for part in history if "load" in part and part["step"] > 0]
    if not told:
        return pd.DataFrame()
    load = np.array([p["load"][min(layer, len(p["load"]) - 1)] for p in told], float)
    load = load[:, min(router, load.shape[1] - 1)]
    share = load / load.sum(-1, keepdims=True).clip(1e-9)
    return pd.DataFrame(share, [p["step"] - 1 for p in told], [group_label(g) for g in range(share.shape[1])])


def loads(
    history: list[dict[str, Any]], layer: int, router: int, steps: int, shown: int | None = None, *, height: int = 330
) -> go.Figure:
    """Stacked share of the training tokens in each group, over the steps."""
    figure = quiet(go.Figure(), height=height, showlegend=False)
    table = shares(history, layer, router)
    if table.empty:
        return say(figure, WAITING)
    for group, name in enumerate(table.columns):
        figure.add_scatter(
            x=table.index,
            y=table[name],
            name=name,
            mode="lines",
            stackgroup="one",
            line={"width": 0.5, "color": group_color(group)},
            fillcolor=group_color(group),
            hovertemplate=f"group {name}, step %{{x}}: %{{y:.1%}}<extra></extra>",
        )
    for edge in range(1, len(table.columns)):
        figure.add_hline(y=edge / len(table.columns), line={"color": "rgba(255,255,255,0.35)", "width": 0.5})
    if shown is not None:
        figure.add_vline(x=shown, line={"color": QUIET, "width": 1})
    figure.update_layout(margin={"t": 16, "b": 44})
    figure.update_xaxes(title_text="step", range=[0, steps])
    figure.update_yaxes(title_text=f"share of tokens, layer {layer}", tickformat=".0%", range=[0, 1])
    return figure


def look_trace(base: Trace, path: str | Path) -> Trace:
    """The probe text with the groups and points of one look, as the strip and the map take it."""
    with np.load(path, allow_pickle=False) as data:
        arrays = {name: data[name] for name in data.files}
    return Trace(base.provenance, base.text, base.tokens, {**base.arrays, **arrays})


def moved(before: Trace, now: Trace, layer: int, router: int = 0) -> float:
    """Share of the probe's tokens whose key group is another than in ``before``."""
    a, b = (trace.arrays["key_bits"][layer, router] for trace in (before, now))
    return float((a != b).mean())
