"""A run as one HTML file: what ran, its figures, its text alive, every head, and the tokens that paid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import plotly.graph_objects as go

from analysis import overview as words
from analysis import report
from analysis.layers_heads import FIELDS, of_trace
from app.ui.export import FAMILY, THEMES, document
from app.ui.strip import part as strip_part
from app.ui.strip.data import router_of, strip_data
from focus_core.trace import Trace


def page_of(trace: Trace, layer: int, head: int | None = None) -> str:
    """The report as HTML; scripts, data and font are in it, and nothing is loaded from anywhere.

    Args:
        trace: the run.
        layer: the layer that the strip shows; the last one where there are fewer.
        head: whose router the strip shows; None takes the first.
    """
    p = trace.provenance
    layer = min(layer, int(p["layers"]) - 1)
    router = router_of(trace, head)
    figures = "".join(
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(meaning)}</small></div>"
        for name, value, meaning in report.three_figures(trace)
    )
    maps = [of_trace(trace, field) for field in FIELDS if field in trace.arrays]
    text = "" if p.get("text_name") else "<p>The text is the user’s own; the Trace file holds it.</p>"
    body = (
        f"<p class='answer'>{escape(words.answer(words.figures(trace)))}</p><section class='three'>{figures}</section>"
        f"<h2>What ran</h2>{_table(['', ''], report.what_ran(trace), heads=False)}"
        f"<p>To repeat it:</p><pre>{escape(report.command(trace))}</pre>{text}"
        f"<h2>The text, layer {layer}</h2>{strip_part(strip_data(trace, layer, router=router))}"
        f"<h2>Every layer and head</h2>{_figures(maps)}"
        f"<h2>Tokens that paid most</h2>{_worst(trace, layer, router)}"
    )
    name = p.get("text_name") or "own text"
    return document(f"{p['variant'].capitalize()} on {name}", body, _STYLE, note="Made by Focus Lab.")


def _worst(trace: Trace, layer: int, router: int) -> str:
    rows = report.worst_tokens(trace, layer, router)
    if not rows:
        return "<p>No token became less likely.</p>"
    return _table(list(rows[0]), [tuple(row.values()) for row in rows])


def _figures(figures: list[go.Figure]) -> str:
    out = []
    for i, figure in enumerate(figures):
        copy = go.Figure(figure)
        copy.update_layout(
            template="plotly_white",
            paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)",
            font={"family": FAMILY},
        )
        out.append(
            copy.to_html(include_plotlyjs=not i, full_html=False, div_id=f"figure-{i}", config={"displaylogo": False})
        )
    dark, light = THEMES["dark"]["text"], THEMES["light"]["text"]
    # The page follows the reader's theme, so its figures' words do.
    script = (
        "<script>{const look = matchMedia('(prefers-color-scheme: dark)'); const paint = () => "
        "document.querySelectorAll('.js-plotly-plot').forEach((plot) => Plotly.relayout(plot, "
        f"{{'font.color': look.matches ? '{dark}' : '{light}'}})); look.addEventListener('change', paint); paint();}}"
        "</script>"
    )
    return "".join(out) + (script if out else "<p>This run did not record them.</p>")


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], *, heads: bool = True) -> str:
    head = "<thead><tr>" + "".join(f"<th>{escape(n)}</th>" for n in names) + "</tr></thead>" if heads else ""
    body = "".join("<tr>" + "".join(f"<td dir='auto'>{escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    return f"<div class='wide'><table>{head}<tbody>{body}</tbody></table></div>"


_STYLE = """h2{font-size:1.15rem;margin:2rem 0 .6rem}.answer{font-size:1.15rem}
.three{display:flex;flex-wrap:wrap;gap:1rem 2.5rem}.three div{display:grid;max-width:20rem}
.three b{font-size:1.8rem;line-height:1.2;font-weight:650}.three small{opacity:.7}
table{border-collapse:collapse;font-size:.9rem}td,th{text-align:start;padding:.25rem .9rem .25rem 0;vertical-align:top;
border-bottom:1px solid color-mix(in srgb,var(--st-text-color) 14%,var(--st-background-color))}td{white-space:pre-wrap}
.wide{overflow-x:auto}pre{background:var(--st-secondary-background-color);padding:.7rem;border-radius:.5rem;
white-space:pre-wrap;overflow-wrap:anywhere}"""
