"""What it saves in time, as recorded: the choice of blocks and the whole attention beside dense attention."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis.xattention import speed as words
from app.ui.badges import badge
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.recorded import document
from app.ui.view import Page

RECORDED = "bench-xattention-cpu.json"


def render(page: Page) -> None:
    """Draw the tab."""
    found = document(RECORDED)
    if found is None:
        st.caption("Nothing is recorded here. `python -m benchmarks.xattention` measures it.")
        return
    st.markdown(f"**{words.sentence(found)}**")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge("recorded", words.where(found))
        st.caption(plain(words.where(found)))
    plot(
        words.figure(found),
        key="xa_speed",
        alt="Speed-up over dense attention against the share of pairs kept, one point a layer.",
        name="Speed of XAttention by layer",
        rows=lambda: words.table(found),
        note=words.where(found),
    )
    st.dataframe(words.table(found), hide_index=True, key="xa_speed_table", column_config=_columns())
    st.caption(
        "Attention alone, on a CPU; a whole model gains less, since attention is a part of its time. At 1,024 tokens "
        "there is next to nothing to skip: see Compare for what a whole prefill takes."
    )


def _columns() -> dict[str, Any]:
    number = st.column_config.NumberColumn
    return {
        "Layer": number(width="small"),
        "Pairs kept, %": number(format="%.1f"),
        "Dense, ms": number(format="%.0f"),
        "Choice, ms": number(format="%.0f"),
        "Choice, % of dense": number(format="%.1f"),
        "Whole, ms": number(format="%.0f"),
        "Times faster": number(format="%.2f"),
        "10th percentile": number(format="%.2f"),
        "90th percentile": number(format="%.2f"),
    }
