"""The lost pairs that the mask page shows: of which rows, computed once."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from analysis import masks as words
from app.ui.mask.data import MAX_SHOWN
from app.ui.view import Page
from focus_core.trace import Trace


def lost_in(
    page: Page, trace: Trace, layer: int, heads: list[int], begin: int = 0, end: int | None = None
) -> words.LostPairs | None:
    """Lost pairs of evenly spread queries of a part of the text, computed once."""
    path = page.source.path if page.source else ""
    modified = Path(path).stat().st_mtime if path and Path(path).exists() else 0.0
    shown = len(trace) if len(trace) <= MAX_SHOWN else MAX_SHOWN
    return _lost(path, modified, layer, tuple(heads), begin, min(end or shown, shown), trace)


@st.cache_data(show_spinner=False, max_entries=24)
def _lost(
    path: str, modified: float, layer: int, heads: tuple[int, ...], begin: int, end: int, _trace: Trace
) -> words.LostPairs | None:
    return words.lost_pairs(_trace, layer, words.rows_for(len(_trace), begin, end), list(heads))


def drawn(
    page: Page, trace: Trace, layer: int, heads: list[int], pin: list[int] | None, view: list[int] | None
) -> tuple[words.LostPairs | None, str]:
    """The lost pairs to draw, of the rows in sight and the held one, and whose they are."""
    count = min(len(trace), MAX_SHOWN)
    lost = lost_in(page, trace, layer, heads)
    if lost is None or trace.provenance["variant"] == "dense":
        return None, ""
    if len(lost.rows) >= count:
        return lost, f"Lost pairs: of all rows, {words.heads_text(heads)}."
    if view:
        # Steps of the rows that one picture may hold, so that a small move computes nothing anew.
        step = max(64, int(view[2]) // 2)
        begin = int(view[0]) // step * step
        lost = lost_in(page, trace, layer, heads, begin, min(count, begin + int(view[2]) + step))
    if pin and pin[0] not in lost.rows:
        lost = words.joined(lost, words.lost_pairs(trace, layer, slice(pin[0], pin[0] + 1), heads))
    every = int(lost.rows[1] - lost.rows[0]) if len(lost.rows) > 1 else 1
    return lost, f"Lost pairs: of every {every}th row{' and the held one' if pin else ''}." if every > 1 else (
        "Lost pairs: of the rows in sight."
    )
