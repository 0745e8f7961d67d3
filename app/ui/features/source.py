"""Whose queries and keys the page draws: of this session's run, of what another page ran, or of a shipped recording."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import streamlit as st

from app.ui import selection
from app.ui.selection import Source
from app.ui.view import Page
from focus_core.errors import FocusError
from focus_core.trace import Trace


def with_source(page: Page) -> Page:
    """The page with a Trace that holds dense queries and keys; what it asks for when it runs is dense attention."""
    page = dataclasses.replace(page, variant="dense", config={}, adapter=None)
    return dataclasses.replace(page, source=_find(page))


def opened_lacks(page: Page) -> bool:
    """Whether the file that someone opened holds no queries and keys, so that another run is drawn."""
    opened = selection.opened_of(page)
    return opened is not None and not opened.trace.attention_layers


def _find(page: Page) -> Source | None:
    opened = selection.opened_of(page)
    # What someone opened is what they want to see.
    if opened is not None and opened.trace.attention_layers:
        return opened
    trace = selection.trace_of(page.engine, page.request())
    if trace is not None and trace.attention_layers:
        return Source(trace, "live", True, "")
    path, kind = st.session_state.get("_last") or (None, "")
    if path and kind != "opened" and (trace := _load(path)) is not None and _same_text(page, trace):
        return Source(trace, kind, True, str(path))
    shipped = [(path, p) for path, p in selection.shipped() if p.get("kept_layers", True)]
    for path, p in shipped:
        same = page.text is not None and page.text.limit is None and p.get("text_name") == page.text.name
        if same and p["model"] == page.model and (trace := _load(path)) is not None:
            return Source(trace, "recorded", True, path)
    for path, _ in shipped:
        if (trace := _load(path)) is not None:
            return Source(trace, "recorded", False, path)
    return None


def _load(path: str | Path) -> Trace | None:
    """A Trace with queries and keys; None of any other."""
    try:
        trace = selection.load_trace(str(path), Path(path).stat().st_mtime)
    except (FocusError, OSError):
        return None
    return trace if trace.attention_layers else None


def _same_text(page: Page, trace: Trace) -> bool:
    """Whether a Trace is of the selected model and of the whole selected text."""
    p = trace.provenance
    if page.text is None or page.text.limit is not None or p.get("edits"):
        return False
    same = p.get("text_name") == page.text.name
    if page.text.name is None:
        same = p.get("text_hash") == hashlib.sha256(page.text.text.encode()).hexdigest()[:16]
    return same and p["model"] == page.model


def layer_of(page: Page, trace: Trace) -> int:
    """The selected layer, or the recorded one that is nearest."""
    return min(trace.attention_layers, key=lambda layer: (abs(layer - page.layer), layer))


def rotary_of(trace: Trace) -> int:
    """Dimensions of a head that rotate in pairs; 0 where none do or nobody says."""
    from focus_core.models.catalog import DEFAULT

    p: dict[str, Any] = trace.provenance
    return int(p.get("rotary", p["head_dim"] if p["model"] == DEFAULT else 0))
