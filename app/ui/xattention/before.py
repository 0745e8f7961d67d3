"""What came before: window, global and random blocks on the same head, with as many blocks as the picture keeps."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from analysis.captions import what_ran
from analysis.numbers import percent
from analysis.xattention.before import Placed, patterns, sentence
from app.ui.export import document, saveable
from app.ui.view import Page
from app.ui.xattention import state
from app.ui.xattention.panels import Panel, few, panels_data, part

KEY = "xattention_before"


def render(page: Page) -> None:
    """Draw the tab."""
    found = state.shown_head(page)
    if found is None:
        st.caption("It needs a layer whose queries and keys were recorded: choose one above.")
        return
    layer, head = found
    shown = state.head_of(page.source, layer, head, state.setting())
    every = patterns(shown)
    st.markdown(f"**{sentence(every)}**")
    panels = [Panel(one.title, _note(one), one.kept, shown.real, None, one.meaning) for one in every]
    title = f"By place and by content, layer {layer}, head {head}"
    data = panels_data(panels, shown.real, across=4)
    with saveable(
        key=KEY,
        name=title,
        page=lambda: document(title, part(data), note=what_ran(page.trace, layer)),
        rows=lambda: _table(every),
    ):
        few(data, key=KEY)
    st.caption(
        "The colour is the same everywhere: where this head's dense attention lies, block by block of a row. Outlined "
        "is what each method computes. Window and global tokens are Longformer's, the random blocks BigBird's; both "
        "can be chosen as attention on the other pages."
    )


def _note(one: Placed) -> str:
    return f"{percent(one.pairs)} of pairs, {percent(one.mass)} of attention"


def _table(every: list[Placed]) -> pd.DataFrame:
    """One row a pattern and query block: which key blocks it keeps (from 1)."""
    rows = [
        {
            "pattern": one.title,
            "pairs_kept": one.pairs,
            "dense_attention_kept": one.mass,
            "query_block": row + 1,
            "key_blocks": " ".join(map(str, np.flatnonzero(kept) + 1)),
        }
        for one in every
        for row, kept in enumerate(one.kept)
    ]
    return pd.DataFrame(rows)
