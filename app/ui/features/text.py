"""The text from which a query and a key are picked."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from analysis import palette
from analysis.features.codes import Row
from app.ui.export import component_part
from app.ui.strip.data import MAX_SHOWN, cells
from focus_core.trace import Trace

HERE = Path(__file__).parent
SCRIPT, STYLE = HERE / "text.js", HERE / "text.css"
_HELP = "The text. Arrow keys move, Enter picks the key, with Shift the query."
HTML = (
    '<div class="fl fx"><div class="head"><span>A click picks</span>'
    '<button type="button" data-side="query">the query</button>'
    '<button type="button" data-side="key">the key</button></div>'
    f'<div class="text" tabindex="0" role="application" aria-label="{_HELP}"></div>'
    '<div class="foot"><span><i class="query"></i>query</span><span><i class="key"></i>key</span>'
    '<span><i class="got"></i>attended to with codes</span><span><i class="lost"></i>dense attended more</span></div>'
    '<div class="sr" aria-live="polite"></div><div class="tip" role="tooltip"></div></div>'
)


def text_data(trace: Trace, query: int, key: int, row: Row, dim: int) -> dict[str, Any]:
    """What the component draws, as JSON values.

    Args:
        trace: the run.
        query: picked query.
        key: picked key, at or before the query.
        row: the query's attention.
        dim: dimensions of the head.
    """
    texts, first = cells(trace, MAX_SHOWN)
    return {
        "cells": texts,
        "first": first.tolist(),
        "query": query,
        "key": key,
        "dim": dim,
        "dense": _pack(row.dense, np.float32),
        "sparse": _pack(row.sparse, np.float32),
        "shared": _pack(row.shared, np.uint8),
    }


def css() -> str:
    """The component's styles."""
    return f".fx{{--kept:{palette.KEPT};--gone:{palette.LOST}}}" + STYLE.read_text("utf-8")


def part(data: dict[str, Any]) -> str:
    """The text within a page that stands alone (``app.ui.export.document``)."""
    return component_part(html=HTML, css=css(), js=SCRIPT.read_text("utf-8"), data=data, place="codes")


@st.cache_resource(show_spinner=False)
def _component(version: float) -> Any:
    return st.components.v2.component("focus_lab_codes", html=HTML, css=css(), js=SCRIPT.read_text("utf-8"))


def pick_tokens(data: dict[str, Any], *, key: str) -> None:
    """Draw the text; what is picked stands in ``st.session_state[key].picked`` when the page is drawn again."""
    component = _component(max(path.stat().st_mtime for path in (SCRIPT, STYLE)))
    component(data=data, key=key, default={"picked": None}, on_picked_change=_noted)


def _noted() -> None:
    """The pick is read from the state; Streamlit asks for a callback to keep it."""


def _pack(values: np.ndarray, dtype: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode("ascii")
