"""Which Trace the page draws: any run of this text with this model, whatever attention it was made for.

Block scores come from the dense pass's queries and keys, which every run records; the sidebar therefore has no
attention to choose here, and what the page runs itself is the dense pass alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import streamlit as st

from app.ui import selection, sidebar
from app.ui.selection import Source
from app.ui.view import Page
from focus_core.errors import FocusError
from focus_core.trace import Trace


def with_source(page: Page) -> Page:
    """The page with the Trace that it draws; ``current`` where that is of the selected model and text.

    The best is a run that has queries and keys; a shipped Trace without any is shown by its nearest that has them.
    """
    page = replace(page, variant="dense", config={}, adapter=None, source=None)
    found = selection.opened_of(page) or _live(page)
    if found is None:
        shipped = _shipped(page)
        found = shipped if shipped is not None and shipped.trace.attention_layers else _nearest(page)
    return replace(page, source=found, layer=_layer(page, found))


def _layer(page: Page, found: Source | None) -> int:
    """The chosen layer; a recorded one where the Trace is another model's, or alone says how many layers there are."""
    if found is None or not found.trace.attention_layers:
        return page.layer
    own = found.current or found.trace.provenance["model"] == page.model
    if own and sidebar.facts_of(page.engine, page.model, None) is not None:
        return page.layer
    asked = st.session_state.get("layer")
    return asked if asked in found.trace.attention_layers else found.trace.attention_layers[0]


def ships(page: Page) -> bool:
    """Whether this text with this model is a shipped one, whose dense pass may run before anyone asks."""
    return any(_same(p, page) for _, p in selection.shipped())


def _same(provenance: dict[str, Any], page: Page) -> bool:
    text = page.text
    named = text is not None and text.name is not None and text.limit is None
    return named and (provenance.get("model"), provenance.get("text_name")) == (page.model, text.name)


def _live(page: Page) -> Source | None:
    """A finished run of this session: the page's own, or one of another attention."""
    text = page.text
    if text is None:
        return None
    runs = st.session_state.get("_runs", {})
    own = runs.get(selection.fingerprint(page.request()))
    for run in filter(None, [own, *reversed(runs.values())]):
        job = page.engine.get(run["job"])
        if job is None or job.kind != "trace" or job.state != "done" or not job.result:
            continue
        asked = job.request
        wanted = (page.model, *text.fields.values(), text.limit)
        if (asked["model"], asked.get("text_name"), asked.get("text"), asked.get("limit")) != wanted:
            continue
        trace = _read(job.result["trace"])
        if trace is not None and trace.attention_layers:
            return Source(trace, "live", True, str(job.result["trace"]), run=getattr(job, "key", None))
    return None


def _shipped(page: Page) -> Source | None:
    for path, p in selection.shipped():
        if _same(p, page) and (trace := _read(path)) is not None:
            return Source(trace, "recorded", True, path)
    return None


def _nearest(page: Page) -> Source | None:
    """A shipped Trace that has queries and keys, of the same model if there is one."""
    for path, _ in sorted(selection.shipped(), key=lambda one: one[1].get("model") != page.model):
        trace = _read(path)
        if trace is not None and trace.attention_layers:
            return Source(trace, "recorded", False, path)
    return None


def _read(path: str) -> Trace | None:
    try:
        return selection.load_trace(str(path), Path(path).stat().st_mtime)
    except (FocusError, OSError):
        return None
