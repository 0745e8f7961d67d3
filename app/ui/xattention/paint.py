"""Paint attention scores and see how each scorer ranks their blocks, and which patterns the antidiagonals miss."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from analysis.numbers import percent
from analysis.xattention.painted import BLOCK, MOST, PRESETS, SIDE, STRENGTH, Judged, judge, paint, verdict
from analysis.xattention.scores import MODES
from app.ui import links
from app.ui.export import document, saveable
from app.ui.guard import fragment
from app.ui.view import Page
from app.ui.xattention.panels import Panel, easel, panels_data, part

KEY = "xattention_easel"
PRESET, STRIDE, COUNT = "xa_pattern", "xa_paint_stride", "xa_paint_count"
STRIDES = (4, 8)
FIRST = "even"
_CELLS = "_xa_cells"


def render(page: Page) -> None:
    """Draw the tab; it needs no model."""
    notices: list[str] = []
    links.check(PRESET, PRESETS, FIRST, notices, lambda name: PRESETS[name].label)
    links.say_above(notices)
    fragment(_draw)


def _draw() -> None:
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        name = st.pills(
            "Pattern",
            list(PRESETS),
            default=FIRST,
            format_func=lambda name: PRESETS[name].label,
            key=PRESET,
            bind="query-params",
            wrap=True,
            on_change=_begin,
            help="Begin with one and paint on.",
        )
        stride = st.segmented_control("Stride", STRIDES, default=4, required=True, key=STRIDE, persist_state="session")
        count = st.slider(
            "Blocks a row keeps",
            2,
            SIDE // BLOCK,
            3,
            key=COUNT,
            persist_state="session",
            width=170,
            help="The first block and the row's own are always among them. All scorers keep as many.",
        )
    cells = _cells(name)
    judged, real, pairs = judge(cells, stride or 4, int(count))
    judgement = verdict(judged, pairs, painted=bool(np.any(cells)))
    st.markdown(f"**{judgement}**")
    st.caption(PRESETS[name].said if name and _untouched(cells, name) else "Your own pattern.")
    data = panels_data([_panel(one) for one in judged], real, across=2) | {
        "cells": base64.b64encode(np.round(cells).astype(np.int8).tobytes()).decode("ascii"),
        "side": SIDE,
        "block": BLOCK,
        "strength": STRENGTH,
        "most": STRENGTH,
        "serial": int(st.session_state.get("_xa_paint_serial", 0)),
    }
    title = f"Painted pattern: {PRESETS[name].label.lower() if name else 'own'}"
    with saveable(
        key=KEY,
        name=title,
        page=lambda: document(title, part(data, easel=True), note=judgement),
        rows=lambda: _table(judged, real),
    ):
        easel(data, key=KEY, on_painted=_painted)
    st.caption(
        f"{SIDE} × {SIDE} pairs in blocks of {BLOCK}; a painted pair scores {STRENGTH:g}, all others 0. Numbers: "
        "place in the row, equal scores share one. Outlined: kept. Each row's own queries choose, as published."
    )


def _panel(one: Judged) -> Panel:
    title = "oracle: the truth" if one.mode == "oracle" else one.mode
    note = f"keeps {percent(one.recall)} of attention"
    return Panel(title, note, one.kept, one.share, one.rank, "Share of all attention that lies in the outlined blocks.")


def _cells(name: str | None) -> np.ndarray:
    """The painted scores; a preset's until something is painted."""
    found = st.session_state.get(_CELLS)
    if found is None:
        found = st.session_state[_CELLS] = paint(name or FIRST)
    return found


def _untouched(cells: np.ndarray, name: str) -> bool:
    return bool(np.array_equal(cells, paint(name)))


def _begin() -> None:
    """A preset was chosen."""
    name = st.session_state.get(PRESET)
    if name:
        st.session_state[_CELLS] = paint(name)
        st.session_state["_xa_paint_serial"] = int(st.session_state.get("_xa_paint_serial", 0)) + 1


def _painted() -> None:
    """Something was painted."""
    found = read((st.session_state.get(KEY) or {}).get("painted"))
    if found is not None:
        st.session_state[_CELLS] = found
        name = st.session_state.get(PRESET)
        if name and not _untouched(found, name):
            st.session_state[PRESET] = None


def read(raw: Any) -> np.ndarray | None:
    """Scores as the canvas sends them; None where they are no such thing."""
    try:
        cells = np.frombuffer(base64.b64decode(str(raw), validate=True), np.int8)
    except (binascii.Error, ValueError):
        return None
    if cells.size != SIDE * SIDE:
        return None
    return np.tril(np.clip(cells.reshape(SIDE, SIDE).astype(np.float32), -MOST, MOST))


def _table(judged: list[Judged], real: np.ndarray) -> pd.DataFrame:
    """One row a causal block: its true share, and every scorer's share, place and choice."""
    row, column = np.tril_indices(len(real))
    found = {"query_block": row + 1, "key_block": column + 1, "true_share": real[row, column]}
    for one, mode in zip(judged, MODES, strict=True):
        found |= {f"{mode}_share": one.share[row, column], f"{mode}_rank": one.rank[row, column]}
        found[f"{mode}_kept"] = one.kept[row, column]
    return pd.DataFrame(found)
