"""Runs that are opened again: by a link's run id, or from a Trace file. The controls are set to what ran."""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st

from app.ui import links, selection, settings, texts
from focus_core.errors import FocusError
from focus_core.trace_files import MAX_BYTES, open_trace
from focus_core.variants import VARIANTS

FILE = "trace_file"
OTHER_MODEL = "another"


def from_link(engine: Any, notices: list[str]) -> None:
    """Open the run that the link names, once a session; one that is gone is said."""
    key = links.opening("run")
    if not key:
        return
    job = _job(engine, key)
    if job is None:
        own = st.query_params.get("text", "") == texts.OWN_LABEL
        notices.append(
            f"The run {key[:12]} of the link is not on this machine, or was dropped to make room. "
            + ("Its text was pasted and is gone with it." if own else "The link's model, text and settings are set.")
        )
        return
    select(job.request, notices)
    if job.state == "done":
        open_path(str(job.result["trace"]), "live", run=key)
    else:
        selection.remember(job.request, job.id)


def _job(engine: Any, key: str) -> Any:
    """A run of the store, or one that is still going on; None when it is neither or no Trace."""
    found = engine.find(key)
    return found if found is not None and found.kind == "trace" else None


def from_file() -> None:
    """Open the Trace file that was just uploaded (the uploader's callback)."""
    upload = st.session_state.get(FILE)
    if upload is None:
        return
    raw = upload.getvalue()
    path = _folder() / f"{hashlib.sha256(raw).hexdigest()[:32]}.npz"
    notices: list[str] = []
    try:
        path.write_bytes(raw)
        trace = open_trace(path)
    except (FocusError, OSError) as error:
        path.unlink(missing_ok=True)
        said = f"{error.message} {error.hint}" if isinstance(error, FocusError) else f"It could not be kept: {error}."
        links.keep_notices([f"{upload.name}: {said}".strip()])
        return
    p = trace.provenance
    same = {"model": p["model"], "text_name": p.get("text_name"), "text": trace.text, "variant": p["variant"]}
    # The page says what the file holds; what the controls cannot show is no fault of it.
    select({**same, "config": p.get("config") or {}, "adapter": p.get("adapter")}, notices)
    open_path(str(path), "opened", name=upload.name)
    links.keep_notices(notices)


def open_path(path: str, kind: str, **more: Any) -> None:
    """Show this Trace until the selection changes."""
    st.session_state["_opened"] = {"path": path, "kind": kind, **more}


def select(request: dict[str, Any], notices: list[str]) -> None:
    """Set the sidebar to what a run was asked for, as far as its controls can."""
    from focus_core.models.catalog import list_models

    model = str(request["model"])
    if model in {entry.name for entry in list_models()}:
        links.seed("model", model)
    elif reason := links.refused(model):
        notices.append(reason)
    else:
        links.seed("model", OTHER_MODEL)
        st.session_state["model_id"] = model
    _text(request, notices)
    variant, adapter = request["variant"], request.get("adapter")
    if variant not in VARIANTS:
        notices.append(f"The run's attention, {str(variant)[:60]}, is not known here.")
        return
    links.seed("variant", variant)
    kind = VARIANTS[variant].adapter_kind
    if adapter and kind:
        if adapter in settings.adapters_for(model, kind):
            links.seed("adapter", adapter)
        else:
            notices.append(f"The run's trained groups, {Path(str(adapter)).name[:60]}, are not on this machine.")
    settings.take(variant, adapter, dict(request.get("config") or {}))


def _text(request: dict[str, Any], notices: list[str]) -> None:
    name, text = request.get("text_name"), request.get("text")
    if name in texts.names():
        links.seed("text", name)
        text = texts.assets.load_text(name).text
    elif text and len(text.encode("utf-8", "replace")) <= texts.MAX_BYTES:
        links.seed("text", texts.OWN)
        st.session_state["own_text"] = text
    else:
        notices.append("The run's text is longer than the text box takes: the page shows it, the box does not.")
    if request.get("limit") and text:
        texts.set_limit(text, int(request["limit"]), str(request["model"]))


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="focus-lab-opened-"))


MAX_MEGABYTES = MAX_BYTES >> 20
