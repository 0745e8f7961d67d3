"""Tab: products by formula and counted, time measured, and the bytes of the cache."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis.features import cost as words
from app.ui.features.measured import Measured, find
from app.ui.features.shown import Shown
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.measurement import Measurement
from app.ui.recorded import document
from app.ui.view import Page

RUN = Measurement("feature_speed", "features_speed", "timing codes and dense", drawn=False)
CHOOSE = "bench-variants-cpu.json"
"""Whence the page Compare takes the speeds of its Choose."""
LENGTHS, DECODE_LENGTHS, REPEATS = [512, 1024, 2048], [1024, 4096], 7


def request_of(page: Page, shown: Shown) -> dict[str, Any]:
    """The job that times this model's shape on this machine."""
    p = shown.trace.provenance
    dim = int(p["head_dim"])
    return {
        "heads": int(p["heads"]),
        "kv_heads": int(p["kv_heads"]),
        "head_dim": dim,
        "features": sorted({max(1, dim // 8), max(1, dim // 4), max(1, dim // 2)}),
        "lengths": LENGTHS,
        "decode_lengths": DECODE_LENGTHS,
        "repeats": REPEATS,
    }


def render(shown: Shown, measured: Measured | None) -> None:
    """Draw the tab."""
    request = request_of(shown.page, shown)
    ships = document("feature-speed-cpu.json") if request["head_dim"] == 64 else None
    speed = find(shown.page, RUN, request, ships)
    rows = bool(speed and speed.result["rows"])
    if speed is not None and rows and measured is None:
        speed.badge()
        st.dataframe(words.speed_table(speed.result), hide_index=True, key="features_speed_table")
        st.caption("Products and cache bytes of this model are counted by the tab “Error by k”.")
    if speed is not None and rows and measured is not None:
        st.markdown(f"**{words.cost_sentence(measured.result, speed.result, shown.codes.features)}**")
        speed.badge()
        plot(
            words.cost_figure(measured.result, speed.result),
            key="features_cost",
            alt="Products and time of codes as shares of dense attention's.",
            name="Predicted, counted and timed",
            rows=lambda: words.speed_table(speed.result),
            note=speed.note,
        )
        other = "" if speed.live else words.other_record(speed.result, document(CHOOSE), shown.codes.features)
        st.caption(plain(f"{words.what_timed(speed.result)} {other}".strip()))
        if gain := words.no_gain(speed.result):
            st.markdown(gain)
        with st.expander("Every timed length"):
            st.dataframe(words.speed_table(speed.result), hide_index=True, key="features_speed_table")
    RUN.box(
        shown.page,
        request,
        "Time it on this machine",
        key="features_speed_run",
        progress="features_speed",
        caption=False,
    )
    if measured is not None and measured.result["cache"]:
        _cache(shown, measured)


def _cache(shown: Shown, measured: Measured) -> None:
    result = measured.result
    st.markdown(f"**Cache. {words.cache_sentence(result, shown.codes.features)}**")
    measured.badge()
    st.latex(
        r"\text{bytes a token} = L \cdot H_{kv} \cdot "
        r"(\underbrace{k b + k}_{\text{key}} + \underbrace{d b}_{\text{value}})"
    )
    st.caption(
        "Of a key, k numbers of b = 2 or 4 bytes and one byte for the dimension of each; of a value all d numbers."
    )
    st.dataframe(
        words.cache_table(result),
        hide_index=True,
        key="features_cache",
        column_config={
            "kept": "Key holds",
            "bits": "Bits a number",
            "formula": st.column_config.NumberColumn("Formula, bytes", format="localized"),
            "measured": st.column_config.NumberColumn("Live cache, bytes", format="localized"),
            "share": st.column_config.NumberColumn("Of dense", format="percent"),
        },
    )
    st.caption(
        f"A token of all {len(result['layers'])} layers; {result['heads']} query heads share {result['kv_heads']} KV "
        "heads, in dense attention too. A rotary pair (two "
        "dimensions that a position rotates together) needs one dimension's number for two values."
    )
