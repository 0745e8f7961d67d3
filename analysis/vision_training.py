"""What was recorded of training vision models: words, tables and figures of ``data/results/vision-*.json``.

A document has ``summary`` (one row a size and arm), ``runs`` (one a training) and ``cost`` (time and memory); see
``data.build.vision``.
"""

from __future__ import annotations

import statistics
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.numbers import NONE, memory, percent, sig3, signed, times
from analysis.palette import GROUPS, KEPT, LOST
from analysis.style import GRID, QUIET, quiet, say

ARMS = {
    "softmax": "softmax",
    "G3B": "G3B: 3 frequencies, rank 12, per layer",
    "G3U": "G3U: shared by all layers",
    "G1B": "G1B: 1 frequency",
    "G5B": "G5B: 5 frequencies",
    "G3B-r2": "G3B, rank 2",
    "G3B-r4": "G3B, rank 4",
    "G3B-row": "G3B, rows on the simplex",
    "G3B-rank": "G3B, rank vector on the simplex",
    "bspline": "B-splines",
    "wavelet": "wavelets",
    "fractal": "fractal",
    "full": "full operator",
}
CURVES = ("softmax", "G3B", "G3U")
_SIZES = {"tiny": KEPT, "small": LOST, "digits": GROUPS[4]}


def arm_name(arm: str) -> str:
    """An arm for people."""
    return ARMS.get(arm, arm)


def sizes(document: dict[str, Any]) -> list[str]:
    """The sizes that have more than one arm, smallest first."""
    order = ["digits", "tiny", "small"]
    found = {row["size"] for row in document["summary"] if row["arm"] != "softmax"}
    return sorted(found, key=lambda size: order.index(size) if size in order else len(order))


def sentence(document: dict[str, Any]) -> str:
    """What learning the softmax did to accuracy at each size."""
    parts = []
    for size in sizes(document):
        rows = _rows(document, size)
        control, learned = rows.get("softmax"), rows.get("G3B")
        if control is None or learned is None:
            continue
        gap = learned["accuracy"] - control["accuracy"]
        word = verdict(gap, control, learned)
        parts.append(
            f"{size}: {percent(control['accuracy'])} with softmax, {percent(learned['accuracy'])} with "
            f"Fourier-KArAt G3B ({signed(100 * gap)} points, {word})"
        )
    if not parts:
        return "No size has both softmax and KArAt yet."
    return _first_up("; ".join(parts)) + "."


def verdict(gap: float, control: dict[str, Any], learned: dict[str, Any]) -> str:
    """A difference beside its spread over seeds: two standard errors decide."""
    spreads = [row["accuracy_sd"] for row in (control, learned)]
    if None in spreads or min(row["seeds"] for row in (control, learned)) < 2:
        return "one seed: no spread"
    error = sum(row["accuracy_sd"] ** 2 / row["seeds"] for row in (control, learned)) ** 0.5
    if abs(gap) <= 2 * error:
        return "within two standard errors"
    return "a gain beyond two standard errors" if gap > 0 else "a loss beyond two standard errors"


def _rows(document: dict[str, Any], size: str) -> dict[str, dict[str, Any]]:
    return {row["arm"]: row for row in document["summary"] if row["size"] == size}


def accuracy_figure(document: dict[str, Any]) -> go.Figure:
    """Accuracy by arm, one panel a size; a dot a seed, a bar at the mean, a band round softmax's."""
    shown = sizes(document)
    if not shown:
        return say(quiet(go.Figure(), height=200), "No runs were recorded.")
    fig = make_subplots(
        1, len(shown), subplot_titles=[_title(document, size) for size in shown], horizontal_spacing=0.2
    )
    most = 1
    for column, size in enumerate(shown, 1):
        rows = _rows(document, size)
        arms = [arm for arm in ARMS if arm in rows][::-1]
        most = max(most, len(arms))
        names = [arm_name(arm) for arm in arms]
        for arm, name in zip(arms, names, strict=True):
            seeds = [100 * run["accuracy"] for run in _runs(document, size, arm)]
            fig.add_scatter(
                x=seeds,
                y=[name] * len(seeds),
                mode="markers",
                marker={"color": QUIET, "size": 7},
                showlegend=False,
                hovertemplate="one seed: %{x:.2f} %<extra></extra>",
                row=1,
                col=column,
            )
        fig.add_scatter(
            x=[100 * rows[arm]["accuracy"] for arm in arms],
            y=names,
            error_x={"type": "data", "array": [100 * (rows[arm]["accuracy_sd"] or 0) for arm in arms], "thickness": 2},
            mode="markers",
            marker={"color": [QUIET if a == "softmax" else KEPT for a in arms], "size": 12, "symbol": "diamond"},
            showlegend=False,
            hovertemplate="%{y}: %{x:.2f} %<extra></extra>",
            row=1,
            col=column,
        )
        if "softmax" in rows:
            fig.add_vline(x=100 * rows["softmax"]["accuracy"], line_dash="dot", line_color=QUIET, row=1, col=column)
        fig.update_xaxes(title_text="right on the test images, %", row=1, col=column)
    return quiet(fig, height=150 + 30 * most)


def _title(document: dict[str, Any], size: str) -> str:
    runs = [run for run in document.get("runs", []) if run["size"] == size]
    if not runs:
        return size
    seeds = max(row["seeds"] for row in _rows(document, size).values())
    return f"{size}: width {runs[0]['model']['width']}, {seeds} seed{'' if seeds == 1 else 's'}"


def _runs(document: dict[str, Any], size: str, arm: str) -> list[dict[str, Any]]:
    rates = [run["rate"] for run in document.get("runs", []) if run["size"] == size and run["arm"] == arm]
    if not rates:
        return []
    usual = statistics.mode(rates)
    found = [r for r in document["runs"] if r["size"] == size and r["arm"] == arm and r["rate"] == usual]
    return sorted(found, key=lambda run: run["seed"])


def table(document: dict[str, Any]) -> pd.DataFrame:
    """One row a size and arm: accuracy, parameters, time and memory of a step, mass on the object."""
    costs = {(row["size"], row["arm"]): row for row in (document.get("cost") or {}).get("steps", [])}
    rows = []
    for size in sizes(document):
        for arm, row in _rows(document, size).items():
            cost = costs.get((size, arm), {})
            step = cost.get("step_ms")
            rows.append(
                {
                    "size": size,
                    "attention": arm_name(arm),
                    "seeds": row["seeds"],
                    "accuracy": with_sd(row["accuracy"], row["accuracy_sd"]),
                    "against softmax": NONE if row["gain"] is None else f"{signed(100 * row['gain'])} points",
                    "parameters": f"{row['parameters']:,}",
                    "step": NONE if not step else f"{sig3(step['median'])} ms",
                    "memory": memory(cost.get("peak_memory_bytes")),
                    "on the object": with_sd(row["object_mass"], row["object_mass_sd"]),
                    "loss roughness": sig3(row["roughness"]),
                }
            )
    return pd.DataFrame(rows)


def with_sd(mean: float, sd: float | None) -> str:
    """A share with its standard deviation over seeds."""
    return percent(mean) if sd is None else f"{percent(mean)} ± {sig3(100 * sd, 2)}"


def loss_figure(document: dict[str, Any], size: str) -> go.Figure:
    """Training loss by step of softmax, G3B and G3U: all seeds thin, the first thick."""
    fig = go.Figure()
    for arm, color in zip(CURVES, (QUIET, KEPT, LOST), strict=True):
        for place, run in enumerate(_runs(document, size, arm)):
            fig.add_scatter(
                x=run["loss"]["step"],
                y=run["loss"]["loss"],
                mode="lines",
                name=arm,
                legendgroup=arm,
                showlegend=place == 0,
                opacity=1 if place == 0 else 0.35,
                line={"color": color, "width": 2 if place == 0 else 1},
                hovertemplate=f"{arm}, seed {run['seed']}: %{{y:.3f}} at step %{{x:,}}<extra></extra>",
            )
    if not fig.data:
        return say(quiet(fig, height=200), "No loss curves were recorded.")
    quiet(fig, height=360)
    fig.update_xaxes(title_text="step")
    return fig.update_yaxes(title_text="training loss (smoothed labels)")


def loss_sentence(document: dict[str, Any], size: str) -> str:
    """Fast at first, slow later, spiky: each in numbers."""
    parts = []
    for arm in CURVES:
        runs = _runs(document, size, arm)
        if runs:
            spread = {
                k: statistics.fmean(run["loss_spread"][k] for run in runs) for k in ("early", "late", "roughness")
            }
            parts.append(
                f"{arm} {sig3(spread['early'])} to {sig3(spread['late'])}, roughness {sig3(spread['roughness'])}"
            )
    return f"Mean loss of the first to the last tenth: {'; '.join(parts)}." if parts else ""


def mass_figure(document: dict[str, Any]) -> go.Figure:
    """Attention mass on the object by arm with its spread over seeds, and what equal weights would have."""
    shown = sizes(document)
    fig = go.Figure()
    for size in shown:
        rows = _rows(document, size)
        arms = [arm for arm in ARMS if arm in rows][::-1]
        fig.add_scatter(
            x=[100 * rows[arm]["object_mass"] for arm in arms],
            y=[arm_name(arm) for arm in arms],
            error_x={"type": "data", "array": [100 * (rows[arm]["object_mass_sd"] or 0) for arm in arms]},
            mode="markers",
            name=size,
            marker={"color": _SIZES.get(size, QUIET), "size": 11, "symbol": "circle" if size == "tiny" else "diamond"},
            hovertemplate="%{y}, " + size + ": %{x:.2f} %<extra></extra>",
        )
    if not fig.data:
        return say(quiet(fig, height=200), "No maps were recorded.")
    quiet(fig, height=150 + 26 * len({y for trace in fig.data for y in trace.y}))
    if (equal := _equal(document)) is not None:
        fig.add_vline(x=100 * equal, line_dash="dot", line_color=QUIET, annotation_text="equal weights")
    return fig.update_xaxes(title_text="attention of the class token on the object's pixels, %")


def _equal(document: dict[str, Any]) -> float | None:
    found = [run["maps"]["uniform_mass"]["mean"] for run in document.get("runs", []) if run["size"] in sizes(document)]
    return statistics.fmean(found) if found else None


def mass_sentence(document: dict[str, Any]) -> str:
    """Whether the learned maps lie more on the object."""
    parts = []
    for size in sizes(document):
        rows = _rows(document, size)
        if "softmax" in rows and "G3B" in rows:
            parts.append(
                f"{size}: {with_sd(rows['softmax']['object_mass'], rows['softmax']['object_mass_sd'])} with softmax, "
                f"{with_sd(rows['G3B']['object_mass'], rows['G3B']['object_mass_sd'])} with G3B"
            )
    equal = _equal(document)
    tail = f"; equal weights have {percent(equal)}" if equal is not None else ""
    return f"On the object's pixels, {'; '.join(parts)}{tail}." if parts else ""


def rank_figure(document: dict[str, Any]) -> go.Figure:
    """Peak memory of a step of the published ViT-Tiny shape by rank, beside softmax."""
    rows = (document.get("cost") or {}).get("memory_by_rank", [])
    rows = [row for row in rows if row.get("peak_memory_bytes")]
    if not rows:
        return say(quiet(go.Figure(), height=200), "Memory was not measured: it needs a GPU.")
    names = ["softmax" if row["rank"] is None else f"G3B, rank {row['rank']}" for row in rows]
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
    quiet(fig, height=120 + 44 * len(rows))
    fig.update_yaxes(autorange="reversed", gridcolor=GRID)
    return fig.update_xaxes(
        title_text=f"peak memory of a training step, GB (ViT-Tiny at 224 pixels, batch {rows[0]['batch']})"
    )


def rank_sentence(document: dict[str, Any]) -> str:
    """Peak memory of every rank over softmax's."""
    rows = [row for row in (document.get("cost") or {}).get("memory_by_rank", []) if row.get("peak_memory_bytes")]
    base = next((row["peak_memory_bytes"] for row in rows if row["rank"] is None), None)
    if base is None:
        return "Peak memory was not measured: it needs a GPU."
    parts = [f"rank {r['rank']} {times(r['peak_memory_bytes'] / base)}" for r in rows if r["rank"] is not None]
    return f"A training step takes, of softmax's memory: {', '.join(parts)}."


def about(document: dict[str, Any]) -> str:
    """Where it was measured, and how."""
    runs = document.get("runs") or [{}]
    env = document.get("environment") or {}
    said = [str(env[k]) for k in ("time", "device") if env.get(k)]
    return f"{', '.join([*said, str(runs[0].get('precision', ''))]).strip(', ')}; {document.get('command', '')}"


def sweeps(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs with XAttention's thresholds."""
    return [run for run in document.get("runs", []) if run.get("xattention")]


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
    fig.add_hline(y=100 * run["accuracy"], line_dash="dot", line_color=QUIET, annotation_text="dense")
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
    good = [r for r in run["xattention"] if r["accuracy"] >= run["accuracy"] - 0.005]
    if not good:
        return f"No setting stays within half a point of dense attention's {percent(run['accuracy'])}."
    best = min(good, key=lambda r: r["kept_pairs"])
    return (
        f"With threshold {best['threshold']:g} and {best['warm_up']} dense first layers, {percent(best['kept_pairs'])} "
        f"of the pairs give {percent(best['accuracy'])}; dense attention gives {percent(run['accuracy'])}."
    )


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]
