"""What was recorded of training vision models: words, tables and figures of ``data/results/vision-*.json``.

A document has ``summary`` (one row a size and arm), ``runs`` (one a training) and ``cost`` (time and memory); see
``data.build.vision``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from analysis.numbers import NONE, memory, percent, sig3, signed
from analysis.palette import GROUPS, KEPT, LOST
from analysis.style import QUIET, quiet, say

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
SHORT = {
    "G3U": "G3U, shared",
    "G3B-r2": "G3B, rank 2",
    "G3B-r4": "G3B, rank 4",
    "G3B-row": "G3B, simplex",
    "G3B-rank": "G3B, simplex z",
    "bspline": "B-splines",
    "wavelet": "wavelets",
    "full": "full operator",
}
CURVES = ("softmax", "G3B", "G3U")
_SYMBOLS = ("circle", "diamond", "square")
_SIZES = {"tiny": KEPT, "small": LOST, "digits": GROUPS[4]}


def arm_name(arm: str) -> str:
    """An arm for people."""
    return ARMS.get(arm, arm)


def short_name(arm: str) -> str:
    """An arm in a table or on an axis."""
    return SHORT.get(arm, arm)


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
    bar = two_errors(control, learned)
    if bar is None:
        return "one seed: no spread"
    if abs(gap) <= bar:
        return "within two standard errors"
    return "a gain beyond two standard errors" if gap > 0 else "a loss beyond two standard errors"


def two_errors(control: dict[str, Any], learned: dict[str, Any]) -> float | None:
    """Two standard errors of the difference of two rows' accuracies; None where one has no spread."""
    rows = (control, learned)
    if any(row["accuracy_sd"] is None or row["seeds"] < 2 for row in rows):
        return None
    return 2 * float(sum(row["accuracy_sd"] ** 2 / row["seeds"] for row in rows)) ** 0.5


def arms_sentence(document: dict[str, Any]) -> str:
    """How many arms are ahead of softmax beyond two standard errors, and which are not; nothing of a single arm."""
    parts = []
    for size in sizes(document):
        rows = _rows(document, size)
        control = rows.pop("softmax", None)
        if control is None or len(rows) < 2:
            continue
        told: dict[str, list[str]] = {}
        for arm, row in rows.items():
            said = verdict(row["accuracy"] - control["accuracy"], control, row).split()
            told.setdefault({"a": said[1], "within": "within"}.get(said[0], "one seed"), []).append(short_name(arm))
        ahead = told.pop("gain", [])
        rest = "; ".join(f"{word}: {', '.join(name.replace(', ', ' ') for name in told[word])}" for word in told)
        parts.append(f"{size} {len(ahead)} of {len(rows)}{f' ({rest})' if rest else ''}")
    return f"Ahead of softmax at the same rate beyond two standard errors: {'; '.join(parts)}." if parts else ""


def rates_sentence(document: dict[str, Any]) -> str:
    """Softmax at other learning rates, so that nobody takes a badly set control for a gain: seed 0 at every rate."""
    parts = []
    for size in sizes(document):
        found = {row["rate"]: row["accuracy"] for row in document.get("rates") or [] if _seed(row["name"], size) == 0}
        if len(found) < 2:
            continue
        told = ", ".join(f"{percent(found[rate])} at {rate:g}" for rate in sorted(found))
        part = f"{size} {told}"
        learned, best = _rows(document, size).get("G3B"), max(found, key=lambda rate: found[rate])
        if learned is not None:
            part += f" (G3B's mean less the best: {signed(100 * (learned['accuracy'] - found[best]))} points)"
        parts.append(part)
    return f"Softmax alone was tried at other learning rates too, one seed each: {'; '.join(parts)}." if parts else ""


def _seed(name: str, size: str) -> int | None:
    tail = name.removeprefix(f"{size}-softmax-s").split("-")[0]
    return int(tail) if tail.isdecimal() else None


def made_sentence(document: dict[str, Any]) -> str:
    """Which planned runs were not made; nothing where all were."""
    missing = document.get("not_made") or []
    if not missing:
        return ""
    names: dict[str, dict[str, int]] = {}
    for name in missing:
        size, _, rest = name.partition("-")
        arm = rest.rpartition("-s")[0]
        arms = names.setdefault(size, {})
        arms[arm] = arms.get(arm, 0) + 1
    told = "; ".join(
        f"{size} {', '.join(f'{short_name(arm)} ({count})' for arm, count in arms.items())}"
        for size, arms in sorted(names.items(), reverse=True)
    )
    return f"{document['done']} of {document['planned']} planned runs were made; not made (how many seeds): {told}."


def _rows(document: dict[str, Any], size: str) -> dict[str, dict[str, Any]]:
    return {row["arm"]: row for row in document["summary"] if row["size"] == size}


def accuracy_figure(document: dict[str, Any]) -> go.Figure:
    """Accuracy of every arm against softmax of the same size: a dot a seed, a diamond at the mean."""
    fig = _arms_figure(document, "accuracy", "accuracy_sd", lambda size: _control(document, size))
    if fig.data:
        for place, size in enumerate(sizes(document)):
            base, color = _control(document, size), _SIZES.get(size, QUIET)
            found = [
                (100 * (run["accuracy"] - base), at)
                for arm, at in _places(document, place).items()
                for run in _runs(document, size, arm)
            ]
            fig.add_scatter(
                x=[x for x, _ in found],
                y=[y for _, y in found],
                mode="markers",
                marker={"color": color, "size": 5, "opacity": 0.6},
                showlegend=False,
                hovertemplate="one seed: %{x:+.2f} points<extra></extra>",
            )
        fig.add_vline(x=0, line_dash="dot", line_color=QUIET)
        fig.update_xaxes(title_text="points against softmax of the same size")
    return fig


def _control(document: dict[str, Any], size: str) -> float:
    row = _rows(document, size).get("softmax")
    return float(row["accuracy"]) if row else 0.0


def _shown_arms(document: dict[str, Any]) -> list[str]:
    known = {row["arm"] for row in document["summary"] if row["size"] in sizes(document)}
    return [arm for arm in ARMS if arm in known]


def _places(document: dict[str, Any], place: int) -> dict[str, float]:
    """Where an arm of the so-manieth size stands: sizes lie beside each other, so that their bars do not cover."""
    count = len(sizes(document))
    return {arm: y + 0.3 * (place - (count - 1) / 2) for y, arm in enumerate(_shown_arms(document))}


def _arms_figure(document: dict[str, Any], value: str, sd: str, base: Callable[[str], float]) -> go.Figure:
    """Means and standard deviations in per cent, less a base; arms downwards, a colour and a symbol a size."""
    fig, shown = go.Figure(), sizes(document)
    if not shown:
        return say(quiet(fig, height=200), "No runs were recorded.")
    for place, size in enumerate(shown):
        rows, at, color = _rows(document, size), _places(document, place), _SIZES.get(size, QUIET)
        arms = [arm for arm in at if arm in rows]
        fig.add_scatter(
            x=[100 * (rows[arm][value] - base(size)) for arm in arms],
            y=[at[arm] for arm in arms],
            error_x={"type": "data", "array": [100 * (rows[arm][sd] or 0) for arm in arms], "color": color},
            mode="markers",
            name=_title(document, size),
            marker={"color": color, "size": 11, "symbol": _SYMBOLS[place % len(_SYMBOLS)]},
            text=[
                f"{arm_name(arm)}, {size}: {with_sd(rows[arm][value], rows[arm][sd])} (n = {rows[arm]['seeds']})"
                for arm in arms
            ],
            hovertemplate="%{text}<extra></extra>",
        )
    names = _shown_arms(document)
    quiet(fig, height=130 + 34 * len(names))
    return fig.update_yaxes(
        tickvals=list(range(len(names))),
        ticktext=[_tick(document, arm) for arm in names],
        range=[len(names) - 0.4, -0.6],
    )


def _tick(document: dict[str, Any], arm: str) -> str:
    """An arm's short name, and its number of seeds where that gives no spread."""
    seeds = max(row["seeds"] for row in document["summary"] if row["arm"] == arm and row["size"] in sizes(document))
    return short_name(arm) + (", n = 1" if seeds == 1 else "")


def _title(document: dict[str, Any], size: str) -> str:
    runs = [run for run in document.get("runs", []) if run["size"] == size]
    return f"{size}, width {runs[0]['model']['width']}" if runs else size


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
        found = _rows(document, size)
        for arm, row in found.items():
            cost = costs.get((size, arm), {})
            step, captured = cost.get("step_ms"), cost.get("graph_step_ms")
            bar = two_errors(found["softmax"], row) if "softmax" in found else None
            gain = NONE if row["gain"] is None or arm == "softmax" else signed(100 * row["gain"])
            rows.append(
                {
                    "size": size,
                    "attention": short_name(arm),
                    "seeds": row["seeds"],
                    "accuracy": with_sd(row["accuracy"], row["accuracy_sd"]),
                    "against softmax": gain if bar is None or gain == NONE else f"{gain} ± {sig3(100 * bar, 2)}",
                    "parameters": f"{row['parameters']:,}",
                    "step": (f"{sig3(step['median'])} ms" if step else NONE)
                    + (f" ({sig3(captured['median'])})" if captured else ""),
                    "memory": memory(cost.get("peak_memory_bytes")),
                    "on the object": with_sd(row["object_mass"], row["object_mass_sd"]),
                    "roughness": sig3(row["roughness"]),
                }
            )
    return pd.DataFrame(rows)


def step_sentence(document: dict[str, Any]) -> str:
    """What the two times of a step are; nothing where none was captured."""
    if not any(row.get("graph_step_ms") for row in (document.get("cost") or {}).get("steps", [])):
        return ""
    return (
        "A step is started kernel by kernel, and its time is mostly the program's; in brackets it is captured as one "
        "CUDA graph, and its time is the card's own."
    )


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
    fig = _arms_figure(document, "object_mass", "object_mass_sd", lambda size: 0.0)
    if not fig.data:
        return fig
    if (equal := _equal(document)) is not None:
        fig.add_vline(x=100 * equal, line_dash="dot", line_color=QUIET)
    return fig.update_xaxes(title_text="class token's attention on the object, %")


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


def about(document: dict[str, Any], run: dict[str, Any] | None = None) -> str:
    """Where it was measured, and how: the whole record as it is now, or one run in the session that made it."""
    made = run or (document.get("runs") or [{}])[0]
    part = next((p for p in document.get("parts") or [] if run and run["name"] in p["runs"]), document)
    env = part.get("environment") or {}
    said = [str(env[k]) for k in ("time", "device") if env.get(k)]
    return f"{', '.join([*said, str(made.get('precision', ''))]).strip(', ')}; {part.get('command', '')}"


def made_on(document: dict[str, Any]) -> str:
    """The machine, the number format and the day, in one short line."""
    runs, env = document.get("runs") or [{}], document.get("environment") or {}
    said = (env.get("device"), runs[0].get("precision"), str(env.get("time") or "")[:10])
    return ", ".join(str(one) for one in said if one)


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]
