"""A run as one HTML file: its figures, its mask and heads, what ran, its text alive, and the tokens that paid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from analysis import masks, report
from analysis import overview as words
from analysis.captions import what_ran
from analysis.heads import recorded
from app.ui.badges import MEANING
from app.ui.export import document
from app.ui.grid import grid_data
from app.ui.grid import part as grid_part
from app.ui.mask import mask_data
from app.ui.mask import part as mask_part
from app.ui.mask.data import MAX_SHOWN
from app.ui.mask.heads import panels_of
from app.ui.settings import variant_label
from app.ui.strip import part as strip_part
from app.ui.strip.data import heads_of, router_of, strip_data
from focus_core.trace import Trace


def page_of(trace: Trace, layer: int, head: int | None = None) -> str:
    """The report as HTML; scripts, data and font are in it, and nothing is loaded from anywhere.

    Args:
        trace: the run.
        layer: the layer that mask and strip show; the last one where there are fewer.
        head: whose router they show; None takes the first.
    """
    p = trace.provenance
    layer = min(layer, int(p["layers"]) - 1)
    router = router_of(trace, head)
    figures = "".join(
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(meaning)}</small></div>"
        for name, value, meaning in report.three_figures(trace)
    )
    learned = f"<p><b>trained on</b>: {escape(MEANING['trained on'][1])}</p>" if words.trained_on(trace) else ""
    text = "" if p.get("text_name") else "<p>The text is the user’s own; the Trace file holds it.</p>"
    body = (
        f"<p class='answer'>{escape(words.answer(words.figures(trace)))}</p><section class='three'>{figures}</section>"
        f"{learned}"
        f"<h2>The mask, layer {layer}</h2>{_mask(trace, layer, head, router)}"
        f"<h2>Every layer and head</h2>{_heads(trace, layer, head)}"
        f"<h2>What ran</h2>{_table(['', ''], report.what_ran(trace), heads=False)}"
        f"<p>To repeat it:</p><pre>{escape(report.command(trace))}</pre>{text}"
        f"<h2>The text, layer {layer}</h2>{strip_part(strip_data(trace, layer, router=router))}"
        f"<h2>Tokens that paid most</h2>{_worst(trace, layer, router)}"
    )
    name = p.get("text_name") or "own text"
    return document(
        f"{variant_label(p['variant'])} on {name}", body, _STYLE, note=f"Made by Focus Lab. {what_ran(trace, layer)}"
    )


def _worst(trace: Trace, layer: int, router: int) -> str:
    rows = report.worst_tokens(trace, layer, router)
    if not rows:
        return "<p>No token became less likely.</p>"
    return _table(list(rows[0]), [tuple(row.values()) for row in rows])


def _mask(trace: Trace, layer: int, head: int | None, router: int) -> str:
    """The mask of the shown layer alive, with what it says in one sentence."""
    heads = heads_of(trace, head, router)
    lost = None
    if trace.provenance["variant"] != "dense":
        lost = masks.lost_pairs(trace, layer, masks.rows_for(min(len(trace), MAX_SHOWN)), heads)
    every = "" if lost is None or len(lost.rows) >= len(trace) else f"Lost pairs: of {len(lost.rows):,} rows."
    pattern = trace.pattern(layer)
    data = mask_data(trace, layer, heads[0], lost=lost, shares=masks.shares(pattern, heads[0], lost), said=every)
    return f"<p>{escape(masks.answer(trace, layer, heads, lost))}</p>{mask_part(data)}"


def _heads(trace: Trace, layer: int, head: int | None) -> str:
    have = recorded(trace)
    if trace.provenance["variant"] == "dense":
        have = [m for m in have if m.field not in ("kept_pairs", "mass_kept")]
    if not have:
        return "<p>This run did not record them.</p>"
    return (
        "<p>Each panel has a scale of its own, from its least to its greatest value. Point at a head to read it.</p>"
        + grid_part(grid_data(panels_of(trace, have), (layer, head)))
    )


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
