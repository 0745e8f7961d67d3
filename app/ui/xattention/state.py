"""The page's controls and the picked block: in the link, kept over pages, set by buttons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from analysis.xattention.head import Head, Setting, scores_of
from analysis.xattention.scores import MODES, block_pairs, select
from app.ui import links
from app.ui.view import Page
from focus_core.trace import Trace

KEY = "xattention_canvas"
STRIDE, BLOCK, THRESHOLD, VOTERS, MODE, TAB = (
    f"xa_{name}" for name in ("stride", "block", "threshold", "voters", "mode", "tab")
)
PICK = "xa_pick"
STRIDES, BLOCKS = (4, 8, 16), (64, 128)
VOTERS_NAMES = {"before": "Those before (served)", "own": "Its own (published)"}
TABS = {
    "Recall and density": "recall",
    "Thresholds": "thresholds",
    "Paint a pattern": "paint",
    "Before it": "before",
    "Speed": "speed",
}
"""The tabs and their modules of this folder."""
FIRST = next(iter(TABS))
_HELD = 24
"""Scores of so many heads and settings are kept at hand."""


def from_link(notices: list[str]) -> None:
    """Take the controls' values from the opening link; what does not exist is said."""
    links.check(STRIDE, STRIDES, Setting.stride, notices)
    links.check(BLOCK, BLOCKS, Setting.block, notices)
    links.check(VOTERS, VOTERS_NAMES, Setting.voters, notices, VOTERS_NAMES.__getitem__)
    links.check(MODE, MODES, Setting.mode, notices, str.capitalize)
    links.amount(THRESHOLD, 0, 1, f"{Setting.threshold:g}", notices)
    links.check(TAB, TABS, FIRST, notices)


def setting() -> Setting:
    """What the controls say."""
    get = st.session_state.get
    return Setting(
        stride=get(STRIDE) or Setting.stride,
        block=get(BLOCK) or Setting.block,
        threshold=Setting.threshold if get(THRESHOLD) is None else float(get(THRESHOLD)),
        voters=get(VOTERS) or Setting.voters,
        mode=get(MODE) or Setting.mode,
    )


@st.cache_data(max_entries=_HELD, show_spinner=False)
def scores(
    path: str, modified: float, layer: int, heads: tuple[int, ...], mode: str, block: int, stride: int, _trace: Trace
) -> np.ndarray:
    """Block scores of a file's heads; the Trace itself is left out of the key, since the path is in it."""
    return scores_of(_trace, layer, list(heads), mode, block, stride, 0)


def read(source: Any, layer: int, heads: list[int], mode: str, of: Setting) -> np.ndarray:
    """(H, n, n) scores of one scorer; ``oracle`` does not depend on the stride."""
    stride = 0 if mode == "oracle" else of.stride
    modified = Path(source.path).stat().st_mtime
    return scores(source.path, modified, layer, tuple(heads), mode, of.block, stride, source.trace)


def head_of(source: Any, layer: int, head: int, of: Setting) -> Head:
    """The shown head with its selection."""
    found, true = (read(source, layer, [head], mode, of)[0] for mode in (of.mode, "oracle"))
    return Head.of_trace(source.trace, layer, head, of, found, true)


def shown_head(page: Page) -> tuple[int, int] | None:
    """Layer and head of the picture; None where the layer's queries and keys are not there or it is a sliding window.

    Where all heads are meant it is the one that keeps fewest pairs with the settings that the page opens with: the
    clearest picture, which does not change as one moves the controls.
    """
    if page.trace is None:
        return None
    p = page.trace.provenance
    layer = min(page.layer, int(p["layers"]) - 1)
    if layer not in page.trace.attention_layers or p["native"][layer] is not None:
        return None
    if page.head is not None and page.head < int(p["heads"]):
        return layer, page.head
    heads = list(range(int(p["heads"])))
    pairs = block_pairs(len(page.trace), Setting.block)
    every = read(page.source, layer, heads, Setting.mode, Setting())
    kept = [pairs[select(one, Setting.threshold).mask].sum() for one in every]
    return layer, min(heads, key=kept.__getitem__)


# ---- the picked block ------------------------------------------------------------------------------------------------


def picked(head: Head) -> tuple[int, int]:
    """Row and column of the block that is looked at; a telling one until someone picks."""
    _pick_from_link(head)
    drawn = st.session_state.get(KEY) or {}
    chosen = st.session_state.get(PICK)
    now = drawn.get("picked")
    if now and list(now) != st.session_state.get("_xa_seen"):
        st.session_state["_xa_seen"] = list(now)
        chosen = st.session_state[PICK] = (int(now[0]), int(now[1]))
    if chosen is None or not 0 <= chosen[1] <= chosen[0] < head.blocks:
        return head.telling_block()
    return chosen


def write(head: Head, at: tuple[int, int]) -> None:
    """Put the picked block and the threshold into the address, counted from 1."""
    chosen = st.session_state.get(PICK)
    links.write("xa_block_at", f"{at[0] + 1}-{at[1] + 1}" if chosen == at else "")


def pick(row: int, column: int) -> None:
    """Pick a block (a button's callback)."""
    st.session_state[PICK] = (row, column)
    st.session_state["_xa_serial"] = serial() + 1


def serial() -> int:
    """Rises when the app picks."""
    return int(st.session_state.get("_xa_serial", 0))


def _pick_from_link(head: Head) -> None:
    raw = links.opening("xa_block_at")
    if not raw:
        return
    parts = [links.number(part, head.blocks) for part in raw.split("-")]
    if len(parts) == 2 and parts[0] and parts[1] and parts[1] <= parts[0]:
        pick(parts[0] - 1, parts[1] - 1)
    else:
        links.say_above([f"In the link, block {raw[:60]} does not exist; another one is shown."])
