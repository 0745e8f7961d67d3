"""Tab: the learned functions as curves, over where this image's scores fall."""

from __future__ import annotations

import streamlit as st

from analysis.vision import Looked
from analysis.vision_figures import curves_figure, curves_table, one_scale
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.vision.state import Shown
from focus_core.vision.models import VisionModelInfo


def render(looked: list[Looked], infos: list[VisionModelInfo], shown: Shown, note: str) -> None:
    """Draw the tab."""
    learned = [m for m in looked if m.curves is not None]
    if learned:
        st.markdown(
            "**Softmax turns every score into a weight by the same rising function; KArAt learns one for every key, "
            "which may bend down, and below zero.**"
        )
    else:
        st.info("Neither model has learned functions: choose a KArAt model.", icon=":material/show_chart:")
    plot(
        curves_figure(looked, shown.layer, shown.head, shown.query),
        key="vision_curves",
        alt="What a key's score adds to its weight, and where the image's scores fall.",
        name=f"Learned functions, {shown.where}",
        rows=lambda: curves_table(looked, shown.layer, shown.head),
        note=note,
    )
    projected = [m.word for m, i in zip(looked, infos, strict=True) if i.config.attention.projection == "row"]
    if projected:
        st.caption(
            f"{plain(' and '.join(projected))} then projects onto the simplex, so that no weight is negative and they "
            "add up to 1: drawn is what goes into the projection."
        )
    apart = "" if one_scale(looked, shown.layer, shown.head, shown.query) else " The panels have scales of their own."
    st.caption(
        f"{shown.where[:1].upper() + shown.where[1:]}; softmax beside the scores of {shown.whose}. Coloured: the three "
        "keys whose functions change most here. In KArAt a weight also depends on the scores of all other keys; "
        f"drawn is the part of a key's own score. Below: how many of this image's pairs have that score.{apart}"
    )
