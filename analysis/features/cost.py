"""What few features save: products by formula and as counted, time as measured, bytes of the cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.numbers import percent, sig3, times, with_spread
from analysis.palette import GROUPS, KEPT, LOST, WINDOW
from analysis.style import QUIET, quiet
from analysis.timing import FASTER, SLOWER, verdict

_MARKS = (
    ("circle-open", "bottom right"),
    ("circle", "top left"),
    ("diamond", "bottom center"),
    ("square", "bottom right"),
    ("x", "top left"),
)
"""Symbol of each line, and where its numbers stand, so that none covers another."""


def shares(errors: dict[str, Any], features: int) -> dict[str, float | None]:
    """Products as shares of dense's: of a score by formula and counted on a text, and with the values' products.

    Args:
        errors: a result of ``focus_core.evaluation.feature_error``.
        features: k.
    """
    dim, counted = errors["head_dim"], None
    if features in errors["grid"]:
        counted = float(np.mean(errors["shared"][errors["grid"].index(features)])) / dim
    predicted = (features / dim) ** 2
    whole = None if counted is None else (counted + 1) / 2
    return {"predicted": predicted, "counted": counted, "with values": whole}


def time_ratio(row: dict[str, Any]) -> dict[str, float]:
    """A timed row's time over dense's, as ``analysis.timing`` reads it."""
    low, high = 1 / row["speedup_p90"], 1 / row["speedup_p10"]
    return {"median": 1 / row["speedup"], "p10": low, "p90": high, "n": row["repeats"]}


def features_of(speed: dict[str, Any]) -> list[int]:
    """The numbers of features that were timed."""
    return sorted({row["config"]["features"] for row in speed["rows"]})


def longest(speed: dict[str, Any], phase: str) -> int | None:
    """The longest length that was timed in a phase."""
    return max((row["length"] for row in speed["rows"] if row["phase"] == phase), default=None)


def timed(speed: dict[str, Any], phase: str, features: int, length: int | None) -> dict[str, Any] | None:
    """The row of one phase, number of features and length."""
    wanted = (phase, features, length)
    return next((r for r in speed["rows"] if (r["phase"], r["config"]["features"], r["length"]) == wanted), None)


def cost_figure(errors: dict[str, Any], speed: dict[str, Any]) -> go.Figure:
    """Everything as a share of dense's: products by formula, counted, with the values', and both times."""
    sizes = features_of(speed)
    names = [f"{k} of {errors['head_dim']} features" for k in sizes]
    found = [shares(errors, k) for k in sizes]
    lines: list[tuple[str, str, list[float | None], list[dict[str, float]] | None]] = [
        ("Products of a score, k²/d²", GROUPS[3], [f["predicted"] for f in found], None),
        ("Products of a score, counted", KEPT, [f["counted"] for f in found], None),
        ("With the values' products", WINDOW, [f["with values"] for f in found], None),
    ]
    for phase, color in (("prefill", LOST), ("decode", GROUPS[13])):
        length = longest(speed, phase)
        rows = [timed(speed, phase, k, length) for k in sizes]
        if length and all(rows):
            ratios = [time_ratio(row) for row in rows if row]
            lines.append((f"Time, {phase} at {length:,} tokens", color, [r["median"] for r in ratios], ratios))
    figure = go.Figure()
    for (label, color, values, runs), (symbol, place) in zip(lines, _MARKS, strict=False):
        spread = None
        if runs is not None:
            spread = {
                "type": "data",
                "array": [r["p90"] - r["median"] for r in runs],
                "arrayminus": [r["median"] - r["p10"] for r in runs],
                "thickness": 1.5,
                "width": 4,
            }
        figure.add_scatter(
            x=names,
            y=values,
            name=label,
            mode="lines+markers+text",
            line={"color": color, "width": 1.5, "dash": "dot" if runs is None else "solid"},
            marker={"color": color, "size": 12, "symbol": symbol},
            error_y=spread,
            text=["" if v is None else times(v) for v in values],
            textposition=place,
            cliponaxis=False,
            hovertemplate=f"{label}<br>%{{x}}: %{{y:.3f}} of dense<extra></extra>",
        )
    quiet(figure, height=430)
    # Below, and not beside: a narrow page would leave the lines no room.
    figure.update_layout(legend={"y": -0.16, "yanchor": "top"}, margin={"t": 24})
    figure.add_hline(y=1, line={"color": QUIET, "dash": "dot", "width": 1.5})
    figure.add_annotation(
        text="dense", x=0, xref="paper", xanchor="left", y=0, yanchor="bottom", showarrow=False, font={"color": QUIET}
    )
    figure.update_yaxes(title="share of dense's", type="log", dtick=1)
    figure.update_xaxes(range=[-0.35, len(names) - 0.65])
    return figure


def cost_sentence(errors: dict[str, Any], speed: dict[str, Any], features: int) -> str:
    """The three figures of one number of features together, and whether time is saved."""
    sizes = features_of(speed)
    k = min(sizes, key=lambda size: abs(size - features))
    found = shares(errors, k)
    counted = "" if found["counted"] is None else f", {percent(found['counted'])} as counted on this text"
    text = f"{k} of {errors['head_dim']} features need {percent(found['predicted'])} of a score's products{counted}. "
    said = []
    for phase, what in (("prefill", "a prefill of {:,} tokens"), ("decode", "one token decoded over {:,}")):
        length = longest(speed, phase)
        row = timed(speed, phase, k, length)
        if row is None:
            continue
        ratio = time_ratio(row)
        word = {FASTER: "faster", SLOWER: "slower"}.get(verdict(ratio) or "", "not clearly different")
        said.append(f"{what.format(length)} takes {times(ratio['median'])} dense's time ({word})")
    return text + (f"On the CPU that was timed {', and '.join(said)}." if said else "")


def what_timed(speed: dict[str, Any]) -> str:
    """What the times are of: the part of a model, heads, numbers, threads, repeats and the command."""
    row, env = speed["rows"][0], speed["environment"]
    command = f": {speed['command']}" if speed.get("command") else ""
    return (
        f"Timed is the attention of one layer alone: {_heads(row)}, {_numbers(row)}, {row['dtype']}, batch "
        f"{row['batch']}, {_threads(env)}, median of {row['repeats']} interleaved runs{command}."
    )


def other_record(speed: dict[str, Any], other: dict[str, Any] | None, features: int) -> str:
    """How a second record's time of the same prefill differs, with what it was measured on; empty where it has none.

    Args:
        speed: the times that are shown.
        other: a document of ``focus_core bench``, from which Compare's Choose takes its speeds; or None.
        features: k.
    """
    rows = [r for r in (other or {}).get("rows", []) if r["variant"] == "sfa" and r["phase"] == "prefill"]
    k = min(features_of(speed), key=lambda size: abs(size - features))
    row = next((r for r in rows if r["config"]["features"] == k and r["length"] == longest(speed, "prefill")), None)
    if row is None or other is None:
        return ""
    took, faster = times(1 / row["speedup"]), times(row["speedup"])
    return (
        f"Choose on the page Compare reads another record, {other['command']}: {_heads(row)}, {_numbers(row)}, "
        f"{_threads(other['environment'])}, {row['repeats']} runs. There {k} features take {took} dense's time for "
        f"that prefill, which Choose writes as a speed of {faster}."
    )


def _heads(row: dict[str, Any]) -> str:
    return f"{row['heads']} query heads on {row['kv_heads']} key heads of {row['head_dim']} numbers"


def _numbers(row: dict[str, Any]) -> str:
    model = row.get("activations")
    return f"queries and keys of {model}" if model and model != "random" else "random queries and keys"


def _threads(environment: dict[str, Any]) -> str:
    count = environment["threads"]
    return f"{count} thread{'s' if count > 1 else ''} of {environment['device']}"


def no_gain(speed: dict[str, Any]) -> str:
    """The plain sentence about a prefill's time where nothing is gained; empty where something is."""
    rows = [row for row in speed["rows"] if row["phase"] == "prefill"]
    if not rows or any(verdict(time_ratio(row)) == FASTER for row in rows):
        return ""
    return (
        "There is no gain in the time of a prefill here: a processor multiplies zeros as fast as numbers, so the exact "
        "way is dense work on codes with their zeros filled in. What is saved is the cache."
    )


def cache_table(errors: dict[str, Any]) -> pd.DataFrame:
    """Bytes a token over all layers and KV heads: of the live cache, and by the formula."""
    dense = {line["itemsize"]: line["measured"] for line in errors["cache"] if line["features"] is None}
    rows = []
    for line in errors["cache"]:
        k = line["features"]
        rows.append(
            {
                "kept": "dense" if k is None else f"{k} {'features' if line['select'] == 'features' else 'as pairs'}",
                "bits": 8 * line["itemsize"],
                "formula": line["formula"],
                "measured": line["measured"],
                "share": line["measured"] / dense[line["itemsize"]],
            }
        )
    return pd.DataFrame(rows)


def cache_sentence(errors: dict[str, Any], features: int) -> str:
    """The live cache beside dense's, in the smallest type that was measured."""
    lines = [c for c in errors["cache"] if c["select"] == "features"]
    if not lines:
        return "This model has layers with a window of their own: its cache was not measured."
    size = min(c["itemsize"] for c in lines)
    lines = [c for c in lines if c["itemsize"] == size]
    line = min(lines, key=lambda c: abs(c["features"] - features))
    dense = next(c for c in errors["cache"] if c["features"] is None and c["itemsize"] == size)
    agrees = (
        "as the formula says" if line["measured"] == line["formula"] else f"the formula says {line['formula']:,.0f}"
    )
    return (
        f"With {line['features']} features the live cache holds {line['measured']:,.0f} bytes a token in {8 * size} "
        f"bits, {agrees}: {percent(line['measured'] / dense['measured'])} of dense's {dense['measured']:,.0f}."
    )


def speed_table(speed: dict[str, Any]) -> pd.DataFrame:
    """One row a phase, length and number of features."""
    rows = []
    for row in speed["rows"]:
        rows.append(
            {
                "phase": row["phase"],
                "tokens": row["length"],
                "features": row["config"]["features"],
                "ms": row["ms"],
                "dense ms": row["baseline_ms"],
                "time / dense": with_spread(time_ratio(row), sig3),
                "largest error": row["max_error"],
            }
        )
    return pd.DataFrame(rows)
