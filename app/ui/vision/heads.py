"""Tab: all layers and heads of both models: how much lies on the object, how much is negative."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from analysis.vision import Looked
from app.ui import grid
from app.ui.export import document, saveable
from app.ui.vision.state import HEAD, LAYER, Shown

KEY = "vision_heads"


def render(looked: list[Looked], shown: Shown, note: str) -> None:
    """Draw the tab."""
    shape = looked[0].mass.shape
    alike = [m for m in looked if m.mass.shape == shape]
    top = max(float(m.mass.max()) for m in alike)
    panels = [
        grid.Panel(
            f"{m.word}: on the object",
            "Share of the class token's attention, signs left out, that lies on pixels that are not black.",
            "%",
            m.mass,
            0.0,
            top,
        )
        for m in alike
    ] + [
        grid.Panel(f"{m.word}: negative", "Share of the head's weights that are below zero.", "%", m.negative, 0.0, 1.0)
        for m in alike
        if m.kind == "karat"
    ]
    data = grid.grid_data(panels, (shown.layer, shown.head), "Click to look at this head.")
    title = "On the object and negative, by layer and head"
    with saveable(
        key=KEY, name=title, page=lambda: document(title, grid.part(data), note=note), rows=lambda: _rows(alike)
    ):
        grid.head_grid(data, key=KEY, on_pick=_pick)
    if len(alike) < len(looked):
        st.caption(f"{looked[1].word} has other layers or heads, and is not drawn beside.")


def _pick(layer: int, head: int) -> None:
    st.session_state[LAYER], st.session_state[HEAD] = layer, head


def _rows(looked: list[Looked]) -> pd.DataFrame:
    layers, heads = (axis.ravel() for axis in np.indices(looked[0].mass.shape))
    columns = {"layer": layers, "head": heads}
    for m in looked:
        columns |= {f"{m.word} on the object": m.mass.ravel(), f"{m.word} negative": m.negative.ravel()}
    return pd.DataFrame(columns)
