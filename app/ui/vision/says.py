"""What each model says of the image, how sure it is, and what its rows add up to: a small table with bars."""

from __future__ import annotations

from html import escape

import numpy as np
import streamlit as st

from analysis.numbers import percent
from analysis.vision import Looked, number
from app.ui.vision.state import Shown
from focus_core.vision.models import VisionModelInfo

PLUS, MINUS = "#4094ff", "#ff922b"
"""As in maps.js: what is added, and what is taken away."""
BEST = 3


def says(looked: list[Looked], infos: list[VisionModelInfo], shown: Shown, truth: int | None) -> None:
    """Draw one block a model."""
    most = max(1.0, *(abs(float(m.row_sums[shown.layer, shown.head, shown.query])) for m in looked))
    blocks = [_block(m, i, shown, truth, most) for m, i in zip(looked, infos, strict=True)]
    st.html(_STYLE + "<div class='fl-says'>" + "".join(blocks) + "</div>")


def _block(model: Looked, info: VisionModelInfo, shown: Shown, truth: int | None, most: float) -> str:
    best = np.argsort(-model.probabilities)[:BEST]
    rows = []
    for c in best:
        share = float(model.probabilities[c])
        mark = " ✓" if c == truth else ""
        rows.append(_row(model.classes[c] + mark, percent(share), share, PLUS))
    if truth is not None and truth not in best:
        share = float(model.probabilities[truth])
        rows.append(_row(f"{model.classes[truth]} ✓", percent(share), share, PLUS))
    total = float(model.row_sums[shown.layer, shown.head, shown.query])
    below = float((model.maps[shown.layer, shown.head, shown.query] < 0).mean())
    rows.append("<hr>")
    rows.append(_row("this row adds up to", number(total), abs(total) / most, PLUS if total >= 0 else MINUS))
    rows.append(_row("negative in this row", percent(below) if below else "none", below, MINUS))
    everywhere = float(model.negative.mean())
    rows.append(_row("negative in all heads", percent(everywhere) if everywhere else "none", everywhere, MINUS))
    return f"<div><b>{escape(info.title)}</b>{''.join(rows)}</div>"


def _row(label: str, value: str, share: float, color: str) -> str:
    width = 100 * min(1.0, max(0.0, share))
    bar = f"<i style='width:{width:.1f}%;background:{color}'></i>" if width else ""
    return (
        f"<div class='r'><span class='t'>{escape(label)}</span>"
        f"<span class='b'>{bar}</span>"
        f"<span class='v'>{escape(value)}</span></div>"
    )


_STYLE = """<style>
.fl-says{font-size:.86rem;display:grid;grid-template-columns:repeat(auto-fit,minmax(16rem,1fr));gap:1rem 1.6rem}
.fl-says b{font-weight:600}
.fl-says hr{border:0;border-top:1px solid rgb(128 128 128/.3);margin:.3rem 0}
.fl-says .r{display:grid;gap:.5rem;align-items:center;grid-template-columns:9.2rem minmax(2.5rem,1fr) 4rem}
.fl-says .t{white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.fl-says .v{text-align:right;font-variant-numeric:tabular-nums}
.fl-says .b{height:.62rem;border-radius:.2rem;background:rgb(128 128 128/.16)}
.fl-says .b i{display:block;height:100%;border-radius:.2rem;min-width:1px}
</style>"""
