"""What editing groups changed: two Traces of one text, before and after."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.numbers import percent
from analysis.palette import BETTER, group_label
from analysis.style import QUIET, quiet
from focus_core.trace import Trace

NOTICED = 0.01
"""Nats from which a token's likelihood counts as changed: one per cent."""


@dataclass(frozen=True)
class Effect:
    """Before and after.

    Attributes:
        kept: (before, after) share of causal pairs that are kept, mean over layers and heads.
        kept_here: the same for the edited layers alone.
        ppl: (before, after) perplexity. change: relative change. spread: its standard error, paired over tokens.
        change_of: (N,) change of each token's log-likelihood in nats, negative where it became less likely; the first
            token is not scored.
        noticed: number of tokens that changed by ``NOTICED`` or more.
    """

    kept: tuple[float, float]
    kept_here: tuple[float, float]
    ppl: tuple[float, float]
    change: float
    spread: float
    change_of: np.ndarray
    noticed: int

    def most_changed(self, count: int = 8) -> list[int]:
        """Tokens that changed most, whichever way."""
        order = np.argsort(-np.abs(self.change_of), kind="stable")[:count]
        return [int(t) for t in order if abs(self.change_of[t]) > 0]


def effect(before: Trace, after: Trace, layers: list[int]) -> Effect:
    """What became of the figures.

    Args:
        before: the run without edits.
        after: the same run with them.
        layers: the edited layers.
    """
    a, b = before.arrays["nll"].astype(np.float64), after.arrays["nll"].astype(np.float64)
    difference = b - a
    ratio = math.exp(float(difference.mean()))
    spread = ratio * float(difference.std(ddof=1)) / math.sqrt(len(a)) if len(a) > 1 else math.inf
    change_of = np.concatenate([[0.0], -difference])
    pairs = [trace.arrays["kept_pairs"] for trace in (before, after)]
    return Effect(
        (float(pairs[0].mean()), float(pairs[1].mean())),
        (float(pairs[0][layers].mean()), float(pairs[1][layers].mean())),
        (math.exp(float(a.mean())), math.exp(float(b.mean()))),
        ratio - 1,
        spread,
        change_of,
        int((np.abs(change_of) >= NOTICED).sum()),
    )


def say(edit: dict, tokens: list[str]) -> str:
    """One edit in words."""
    where = f"layer {edit['layer']}, router {edit['router']}"
    if "merge" in edit:
        gone, into = edit["merge"]
        return f"merge {group_label(gone)} into {group_label(into)} ({where})"
    text = tokens[edit["token"]].strip() or tokens[edit["token"]].replace("\n", "↵").replace(" ", "␣")
    return f"move “{text}” (token {edit['token'] + 1:,}) to {group_label(edit['to'])} ({where})"


@dataclass(frozen=True)
class Next:
    """One candidate for the next token: its text, and its probability before and after; None where not recorded."""

    text: str
    before: float | None
    after: float | None


def next_tokens(before: Trace, after: Trace, token: int, count: int = 8) -> list[Next]:
    """The likeliest next tokens after ``token``, before and after, by the larger of both; empty without records."""
    if any("top_ids" not in trace.arrays for trace in (before, after)):
        return []
    found: dict[int, list[float | None]] = {}
    for place, trace in enumerate((before, after)):
        ids, shares = trace.arrays["top_ids"][token], trace.arrays["top_p"][token].astype(float)
        for i, p in zip(ids.tolist(), shares.tolist(), strict=True):
            found.setdefault(i, [None, None])[place] = p
    texts = {**before.top_text, **after.top_text}
    rows = [Next(texts.get(i, f"id {i}"), *pair) for i, pair in found.items()]
    return sorted(rows, key=lambda row: -max(row.before or 0, row.after or 0))[:count]


def next_figure(rows: list[Next], labels: list[str]) -> go.Figure:
    """Bars of the likeliest next tokens, before and after, named by ``labels`` as people read them."""
    figure = go.Figure()
    places = list(range(len(rows)))
    for name, colour, values in (
        ("before", QUIET, [row.before for row in rows]),
        ("after", BETTER, [row.after for row in rows]),
    ):
        figure.add_bar(
            y=places,
            x=[100 * (p or 0) for p in values],
            name=name,
            orientation="h",
            marker_color=colour,
            text=[percent(p) for p in values],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"{name}: %{{text}}<extra></extra>",
        )
    quiet(figure, height=90 + 44 * len(rows), barmode="group", bargap=0.3)
    figure.update_layout(margin={"r": 64, "b": 40})
    figure.update_xaxes(title="probability, %", rangemode="tozero")
    figure.update_yaxes(
        tickvals=places, ticktext=[escape(label) for label in labels], autorange="reversed", showgrid=False
    )
    return figure


def next_table(rows: list[Next], actual: str | None) -> pd.DataFrame:
    """The same as a table; probabilities 0 to 1, empty where they were not recorded."""
    return pd.DataFrame(
        {
            "token": [row.text for row in rows],
            "before": [row.before for row in rows],
            "after": [row.after for row in rows],
            "follows": [row.text == actual for row in rows],
        }
    )
