"""Small tables with bars, as escaped HTML: tokens and where attention goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

import streamlit as st

from analysis import palette

MARKS = {"kept": "●", "window": "▬", "sink": "■", "lost": "✕", "dropped": "·"}


@dataclass(frozen=True)
class Bar:
    """One row: a token, how much of the whole it holds (0 to 1), and what became of it."""

    label: str
    place: str
    share: float
    kind: str
    note: str


def shown(text: str, limit: int = 24) -> str:
    """A token as people read it: spaces and newlines visible, cut when long."""
    text = text.replace("\n", "↵").replace("\t", "⇥")
    if text.startswith(" ") and text.strip():
        text = text[1:]
    text = text if text.strip() else text.replace(" ", "␣")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def bars(rows: Iterable[Bar], *, empty: str = "") -> None:
    """Draw rows with bars on one scale; ``empty`` is the sentence when there are none."""
    rows = list(rows)
    if not rows:
        st.caption(empty)
        return
    top = max(row.share for row in rows) or 1.0
    st.html(_STYLE + "<div class='fl-bars'>" + "".join(_row(row, top) for row in rows) + "</div>")


def _row(row: Bar, top: float) -> str:
    # The sinks' dark would vanish on a dark page: there, as in the strip, it is the text's own colour.
    color = "currentColor" if row.kind == "sink" else palette.PAIRS.get(row.kind, palette.DROPPED)
    width = 100 * row.share / top
    return (
        f"<div class='fl-row'><span class='t' dir='auto'>{escape(shown(row.label))}</span>"
        f"<span class='p'>{escape(row.place)}</span>"
        f"<span class='b'><i style='width:{width:.1f}%;background:{color}'></i></span>"
        f"<span class='v'>{100 * row.share:.1f} %</span>"
        f"<span class='n'><em style='color:{color}'>{MARKS.get(row.kind, '')}</em> {escape(row.note)}</span></div>"
    )


_STYLE = """<style>
.fl-bars{font-size:.86rem;display:grid;gap:.16rem}
.fl-row{display:grid;gap:.5rem;align-items:center;
grid-template-columns:minmax(3rem,5.5rem) 2.4rem minmax(3rem,1fr) 3.1rem 5rem}
.fl-row .t{font-weight:600;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.fl-row .p,.fl-row .n{opacity:.68;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.fl-row .p{text-align:right;font-variant-numeric:tabular-nums}
.fl-row .v{text-align:right;font-variant-numeric:tabular-nums}
.fl-row .b{height:.62rem;border-radius:.2rem;background:rgb(128 128 128/.16)}
.fl-row .b i{display:block;height:100%;border-radius:.2rem;min-width:2px}
.fl-row em{font-style:normal}
</style>"""
