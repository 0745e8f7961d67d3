"""Codes inside kept pairs: is the loss of both the sum of the losses?"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from analysis.numbers import percent, sig3, signed
from analysis.palette import DROPPED, GROUPS, KEPT, LOST
from analysis.style import QUIET, quiet

NAMES = {"focus": "Focus", "xattention": "XAttention"}
PARTS = {"pairs": "fewer pairs alone", "codes": "codes alone", "sum": "sum of the two", "both": "both together"}
_COLORS = {"pairs": GROUPS[3], "codes": KEPT, "sum": DROPPED, "both": LOST}


def groups(result: dict[str, Any]) -> list[dict[str, Any]]:
    """For each choice of pairs and number of features the rows alone and together.

    Returns:
        ``{pairs, features, alone, codes, both}`` with rows of the result, and ``sum``, ``together``: change of the mean
        negative log-likelihood, in nats a token.
    """
    rows = {(row["pairs"], row["features"]): row for row in result["rows"]}
    found = []
    for pairs, features in rows:
        alone, codes, both = rows.get((pairs, None)), rows.get((None, features)), rows[pairs, features]
        if pairs is None or features is None or alone is None or codes is None:
            continue
        added = alone["nll_diff"] + codes["nll_diff"]
        found.append(
            {
                "pairs": pairs,
                "features": features,
                "alone": alone,
                "codes": codes,
                "both": both,
                "sum": added,
                "sum_se": math.hypot(alone["nll_se"], codes["nll_se"]),
                "together": both["nll_diff"],
            }
        )
    return found


def pairs_figure(result: dict[str, Any]) -> go.Figure:
    """Loss in nats a token: each alone, their sum, and what both together really lose."""
    found = groups(result)
    names = [f"{NAMES[g['pairs']]}, {g['features']} features" for g in found]
    values = {
        "pairs": [(g["alone"]["nll_diff"], g["alone"]["nll_se"]) for g in found],
        "codes": [(g["codes"]["nll_diff"], g["codes"]["nll_se"]) for g in found],
        "sum": [(g["sum"], g["sum_se"]) for g in found],
        "both": [(g["together"], g["both"]["nll_se"]) for g in found],
    }
    figure = go.Figure()
    for part, pairs in values.items():
        figure.add_bar(
            x=names,
            y=[value for value, _ in pairs],
            error_y={
                "type": "data",
                "array": [2 * error for _, error in pairs],
                "thickness": 1.5,
                "width": 4,
                "color": QUIET,
            },
            name=PARTS[part],
            marker={"color": _COLORS[part]},
            text=[signed(value) for value, _ in pairs],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"{PARTS[part]}<br>%{{x}}: %{{y:+.3f}} nats a token<extra></extra>",
        )
    quiet(figure, height=400, bargap=0.25, barmode="group")
    figure.add_hline(y=0, line={"color": QUIET, "width": 1.2})
    figure.update_yaxes(title="loss against dense, nats a token")
    # What a narrow page leaves no room for stands in the table.
    figure.update_layout(margin={"t": 48, "b": 40}, uniformtext={"minsize": 9, "mode": "hide"})
    return figure


def pairs_sentence(result: dict[str, Any]) -> str:
    """Whether both together lose what the two lose alone."""
    found = groups(result)
    if not found:
        return "Nothing was recorded for this model."
    said = []
    for pairs in dict.fromkeys(g["pairs"] for g in found):
        own = [g for g in found if g["pairs"] == pairs]
        words = [f"{nats(g['together'])} where the sum is {nats(g['sum'])} ({g['features']} features)" for g in own]
        said.append(f"{NAMES[pairs]}: {', '.join(words)}")
    alike = sum(abs(g["together"] - g["sum"]) <= 2 * math.hypot(g["sum_se"], g["both"]["nll_se"]) for g in found)
    head = f"In {alike} of {len(found)} cases both together lose what the two lose alone, within two standard errors"
    return f"{head}. In nats a token, {'. '.join(said)}."


def nats(value: float) -> str:
    """A change of loss with its sign."""
    return signed(value, 3)


def pairs_table(result: dict[str, Any]) -> pd.DataFrame:
    """One row a line: perplexity, pairs kept, cache bytes, and the command."""
    rows = [
        {
            "attention": row["variant"],
            "features": "all" if row["features"] is None else str(row["features"]),
            "perplexity": row["ppl"],
            "change": percent(row["ppl"] / row["dense_ppl"] - 1, signed=True),
            "pairs kept": percent(row["kept_pairs"]),
            "cache, 16 bit": f"{sig3(row['cache_bytes'])} B ({percent(row['cache_bytes'] / row['dense_cache_bytes'])})",
            "command": row["command"],
        }
        for row in result["rows"]
    ]
    if rows:
        one = result["rows"][0]
        size = f"{sig3(one['dense_cache_bytes'])} B (100 %)"
        dense = {"attention": "dense", "features": "all", "perplexity": one["dense_ppl"], "change": "0 %"}
        rows.insert(0, {**dense, "pairs kept": "100 %", "cache, 16 bit": size, "command": one["command"]})
    return pd.DataFrame(rows)
