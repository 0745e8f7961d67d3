"""The ledger as sentences, a table and figures."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from analysis.numbers import length, sig3
from analysis.palette import DROPPED, KEPT, LOST, SECOND, WINDOW
from analysis.style import QUIET, quiet, say
from focus_core import claims as ledger

METHODS = {
    "focus": "Focus",
    "sfa": "SFA",
    "xattention": "XAttention",
    "slim": "Slim attention",
    "karat": "KArAt",
    "mla": "MLA",
}
VERDICTS = dict.fromkeys((*ledger.VERDICTS, ledger.OPEN))
MEANING = {
    "reproduced": "Our number bears it out, under the condition that stands beside it.",
    "reproduced in part": "Some of it holds; the reason says which.",
    "not reproduced": "Our number contradicts it.",
    "not testable here": "It cannot be measured with what one machine and this project have.",
    ledger.OPEN: "Not measured yet; the reason says what would decide it.",
}
_COLOURS = dict(zip(VERDICTS, (WINDOW, SECOND, LOST, QUIET, DROPPED), strict=True))
MARKS = {
    "reproduced": ":material/check_circle:",
    "reproduced in part": ":material/contrast:",
    "not reproduced": ":material/cancel:",
    "not testable here": ":material/block:",
    ledger.OPEN: ":material/hourglass_empty:",
}


def counts(claims: list[dict[str, Any]]) -> dict[str, int]:
    """How many claims have each verdict, those that none has included."""
    found = Counter(one["verdict"] for one in claims)
    return {verdict: found[verdict] for verdict in VERDICTS}


def answer(claims: list[dict[str, Any]], method: str | None = None) -> str:
    """The live sentence: of how many claims each verdict holds."""
    if not claims:
        return "No claim is so."
    of = f" about {METHODS[method]}" if method else ""
    many = f"{len(claims)} claims{of}" if len(claims) > 1 else f"one claim{of}"
    told = [f"{count} {_word(verdict)}" for verdict, count in counts(claims).items() if count]
    return f"Of {many}: {', '.join(told)}."


def _word(verdict: str) -> str:
    return "still open" if verdict == ledger.OPEN else verdict


def figure_of(measured: dict[str, Any], value: float | None = None) -> str:
    """A measurement as people read it; ``value`` stands in for its own where it was measured anew."""
    number = measured["value"] if value is None else ledger.rounded(value, measured.get("digits", 3))
    return f"{sig3(float(number), measured.get('digits', 3))} {measured['unit']}".replace("-", "−").strip()


def table(claims: list[dict[str, Any]]) -> pd.DataFrame:
    """One row a claim: ``id, method, claim, verdict, measured, what, source, paper, condition``."""
    rows = []
    for one in claims:
        first = one["measured"][0] if one["measured"] else None
        rows.append(
            {
                "id": one["id"],
                "method": METHODS[one["method"]],
                "claim": one["claim"],
                "verdict": one["verdict"],
                "measured": figure_of(first) if first else "",
                "what": first["what"] if first else "",
                "source": one["source"],
                "paper": one["paper"],
                "condition": one["condition"],
            }
        )
    return pd.DataFrame(rows)


def verdict_bars(claims: list[dict[str, Any]]) -> go.Figure:
    """A bar a method, cut by verdict, with the number of claims in every piece."""
    if not claims:
        return say(quiet(go.Figure(), height=180), "No claim is so.")
    methods = [method for method in METHODS if any(one["method"] == method for one in claims)][::-1]
    figure = go.Figure()
    for verdict in VERDICTS:
        found = [counts([one for one in claims if one["method"] == method])[verdict] for method in methods]
        if any(found):
            figure.add_bar(
                x=found,
                y=[METHODS[method] for method in methods],
                orientation="h",
                name=verdict,
                marker_color=_COLOURS[verdict],
                text=[str(count) if count else "" for count in found],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                hovertemplate=f"%{{y}}: %{{x}} {_word(verdict)}<extra></extra>",
            )
    quiet(figure, height=130 + 34 * len(methods), barmode="stack", bargap=0.3)
    figure.update_layout(margin_b=40, legend_traceorder="normal")
    return figure.update_xaxes(title="claims", dtick=5)


def series_figure(measured: list[dict[str, Any]]) -> go.Figure | None:
    """The series behind the numbers, over one another where they share their axes; None where no result has one."""
    drawn = [one for one in measured if "series" in one]
    if not drawn:
        return None
    first, figure = drawn[0]["series"], go.Figure()
    for one, colour, symbol in zip(drawn, (KEPT, LOST, WINDOW), ("circle", "square", "diamond"), strict=False):
        series = one["series"]
        if (series["x_name"], series["y_name"]) != (first["x_name"], first["y_name"]):
            continue
        found = ledger.document(one["file"])
        points = sorted(zip(ledger.at(found, series["x"]), ledger.at(found, series["y"]), strict=True))
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            mode="lines+markers",
            name=one["what"],
            line_color=colour,
            marker_symbol=symbol,
            hovertemplate=f"%{{x:,.4g}} {series['x_name']}: %{{y:.3g}} {series['y_name']}<extra></extra>",
        )
    # A single line is named too: it need not be of the first number.
    quiet(figure, height=300, showlegend=True)
    figure.update_yaxes(title=first["y_name"])
    figure.update_xaxes(title=first["x_name"])
    if "tokens" not in first["x_name"]:
        return figure
    lengths = sorted({int(x) for trace in figure.data for x in trace.x})
    return figure.update_xaxes(type="log", tickvals=lengths, ticktext=[length(x) for x in lengths])
