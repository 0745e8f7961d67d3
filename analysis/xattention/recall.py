"""How much of dense attention each scorer keeps for the pairs it spends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from analysis.numbers import percent
from analysis.palette import GROUPS, KEPT, LOST
from analysis.style import QUIET, quiet
from analysis.xattention.scores import MODES, kept_shares, select, served

THRESHOLDS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0)
COLOURS = {"antidiagonal": KEPT, "diagonal": LOST, "random": GROUPS[4], "oracle": QUIET}
OURS = "antidiagonal"
_SAID = {"diagonal": "diagonals", "random": "random places", "oracle": "the best blocks"}
_LEAST = 5e-4
"""Shares of dense attention that differ by less are called equal: a twentieth of a point."""


@dataclass(frozen=True)
class Comparison:
    """The scorers over the thresholds, on the same heads.

    Attributes:
        thresholds: (T,).
        density: (T,) a scorer: share of the pairs kept, mean over the heads.
        recall: (T,) a scorer: share of dense attention kept.
        gap: (T,) a scorer: dense attention that it keeps beyond the antidiagonals' for as many pairs, mean over heads.
        error: (T,) a scorer: standard error of that mean over the heads; 0 for one head.
        heads: how many heads.
    """

    thresholds: tuple[float, ...]
    density: dict[str, np.ndarray]
    recall: dict[str, np.ndarray]
    gap: dict[str, np.ndarray]
    error: dict[str, np.ndarray]
    heads: int

    def at(self, what: str, mode: str, threshold: float) -> float:
        """A table's value at a threshold, between the measured ones."""
        return float(np.interp(threshold, self.thresholds, getattr(self, what)[mode]))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        tables = ("density", "recall", "gap", "error")
        found = {t: {m: [round(float(x), 5) for x in v] for m, v in getattr(self, t).items()} for t in tables}
        return {"thresholds": list(self.thresholds), "heads": self.heads, **found}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Comparison:
        """Read what :meth:`to_json` wrote."""
        tables = ("density", "recall", "gap", "error")
        found = {t: {m: np.array(v) for m, v in document[t].items()} for t in tables}
        return cls(tuple(document["thresholds"]), heads=int(document["heads"]), **found)


def compare(
    scores: Mapping[str, np.ndarray],
    count: int,
    block: int,
    voters: str,
    thresholds: tuple[float, ...] = THRESHOLDS,
) -> Comparison:
    """Cut every scorer's blocks at every threshold.

    Args:
        scores: (H, n, n) a scorer of ``MODES``; ``oracle`` is also the truth that all are held against.
        count: tokens.
        block: tokens a side.
        voters: see :func:`analysis.xattention.scores.served`.
        thresholds: ascending.
    """
    true = scores["oracle"]
    pairs, mass = {}, {}
    for mode in MODES:
        found = [
            kept_shares(np.stack([served(select(one, t).mask, voters) for one in scores[mode]]), true, count, block)
            for t in thresholds
        ]
        pairs[mode], mass[mode] = (np.stack(part) for part in zip(*found, strict=True))
    gap, error = {}, {}
    heads = range(len(true))
    for mode in MODES:
        held = [_held(pairs[mode][:, h], mass[mode][:, h], pairs[OURS][:, h]) for h in heads]
        beyond = np.stack(held, 1) - mass[OURS]
        gap[mode] = beyond.mean(1)
        error[mode] = beyond.std(1, ddof=1) / len(heads) ** 0.5 if len(heads) > 1 else np.zeros(len(thresholds))
    density, recall = ({m: table.mean(1) for m, table in found.items()} for found in (pairs, mass))
    return Comparison(thresholds, density, recall, gap, error, len(heads))


def _held(density: np.ndarray, recall: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Recall at the wanted shares of pairs, between the measured thresholds."""
    order = np.argsort(density, kind="stable")
    return np.interp(wanted, density[order], np.maximum.accumulate(recall[order]))


def best_at(true: np.ndarray, count: int, block: int, voters: str, density: float) -> float:
    """Share of dense attention in the best blocks of one head for this share of the pairs."""
    found = [kept_shares(served(select(true, t).mask, voters), true, count, block) for t in THRESHOLDS]
    pairs, mass = np.array(found).T
    return float(_held(pairs, mass, np.array([density]))[0])


def sentence(found: Comparison, threshold: float) -> str:
    """How the antidiagonals stand against random places at a threshold, then the numbers of all scorers."""
    density, recall = (found.at(what, OURS, threshold) for what in ("density", "recall"))
    parts = []
    for mode, name in _SAID.items():
        gap, error = (found.at(what, mode, threshold) for what in ("gap", "error"))
        spread = f" ± {200 * error:.2g}" if error > 0 else ""
        if _alike(found, mode, threshold):
            parts.append(f"{name} as much ({100 * gap:+.2g}{spread} points)".replace("-", "−"))
        else:
            parts.append(f"{name} {100 * abs(gap):.2g}{spread} points {'more' if gap > 0 else 'less'}")
    return (
        f"{_verdict(found, threshold)} At threshold {threshold:g} the antidiagonals keep {percent(density)} of the "
        f"pairs and {percent(recall)} of dense attention; for as many pairs in every head {', '.join(parts)}."
    )


def _verdict(found: Comparison, threshold: float) -> str:
    """Whether antidiagonals are better than random places here."""
    if _alike(found, "random", threshold):
        return "Here antidiagonals are no better than random places."
    word = "worse" if found.at("gap", "random", threshold) > 0 else "better"
    return f"Here antidiagonals are {word} than random places."


def _alike(found: Comparison, mode: str, threshold: float) -> bool:
    """Whether a scorer keeps as much as the antidiagonals, up to two standard errors."""
    gap, error = (found.at(what, mode, threshold) for what in ("gap", "error"))
    return abs(gap) < max(_LEAST, 2 * error)


def figure(found: Comparison, threshold: float) -> go.Figure:
    """Recall against density, one line a scorer; the present threshold of the antidiagonals is marked."""
    fig = go.Figure()
    for mode in MODES:
        fig.add_scatter(
            x=100 * found.density[mode],
            y=100 * found.recall[mode],
            mode="lines+markers",
            name="oracle: the best blocks" if mode == "oracle" else mode,
            line={"color": COLOURS[mode], "dash": "dot" if mode == "oracle" else "solid", "width": 2},
            marker={"size": 5},
            customdata=found.thresholds,
            hovertemplate=f"{mode}<br>threshold %{{customdata:.3g}}<br>%{{x:.3g}} % of pairs<br>"
            "%{y:.4g} % of dense attention<extra></extra>",
        )
    x, y = (100 * found.at(what, OURS, threshold) for what in ("density", "recall"))
    fig.add_scatter(
        x=[x],
        y=[y],
        mode="markers+text",
        text=[f"threshold {threshold:g}"],
        textposition="bottom right",
        textfont={"color": QUIET},
        marker={"size": 13, "symbol": "circle-open", "color": KEPT, "line": {"width": 2.5}},
        showlegend=False,
        hoverinfo="skip",
    )
    fig.update_xaxes(title="Pairs kept, %")
    fig.update_yaxes(title="Dense attention kept, %")
    return quiet(fig, height=400)


def table(found: Comparison) -> pd.DataFrame:
    """One row a scorer and threshold; shares are 0 to 1."""
    rows = [
        {
            "scorer": mode,
            "threshold": threshold,
            "pairs_kept": found.density[mode][t],
            "dense_attention_kept": found.recall[mode][t],
            "beyond_antidiagonal_for_as_many_pairs": found.gap[mode][t],
            "standard_error": found.error[mode][t],
        }
        for mode in MODES
        for t, threshold in enumerate(found.thresholds)
    ]
    return pd.DataFrame(rows)
