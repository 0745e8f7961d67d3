"""Encoder-decoders: caches of Whisper and T5 by formula, on tiny models of the real classes, and as published."""

from __future__ import annotations

import streamlit as st

from analysis import cache_cross as cross
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.recorded import document

RECORDED = "cache-cross-cpu.json"


def render() -> None:
    """Draw the tab."""
    st.markdown(
        "**A decoder that looks at an encoder's output can keep that output once, for all its layers, instead of a key "
        "and a value a layer.**"
    )
    counts = {"Encoder tokens": st.column_config.NumberColumn(format="localized")}
    st.dataframe(cross.formula_table(), hide_index=True, key="cache_encoders", column_config=counts)
    st.caption(
        "Formula, 16-bit numbers, one sequence; self-attention keeps its keys and values in both. The paper's 8.7 "
        "times smaller Whisper cache counts the decoder's keys alone and leaves the encoder's output out; its 32 times "
        "smaller T5-11B cache is the factor of one layer."
    )
    measured = document(RECORDED)
    if measured is not None:
        about = measured["about"]
        st.markdown("**Measured on tiny random models of the real classes**")
        st.dataframe(cross.measured_table(measured["rows"]), hide_index=True, key="cache_tiny")
        st.caption(
            plain(
                f"Live caches, recorded {str(about['environment']['time'])[:10]} on {about['environment']['device']}: "
                f"{about['command']}"
            )
        )
    st.markdown("**Can the other half be made again from what is kept?**")
    plot(
        cross.failure_figure(),
        key="cache_failures",
        alt="Share of Whisper's cross-attention layers whose error is below 5 %, as published by Slim's authors.",
        name="Whisper layers that pass, as published",
        note=cross.PUBLISHED,
    )
    st.caption(cross.PUBLISHED)
