"""Runs that are opened again: by a link's run id, or from a Trace file. The controls are set to what ran."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import streamlit as st

from app.ui import links, opened_files, selection, settings, texts
from focus_core.errors import FocusError
from focus_core.jobs.memory import release_memory
from focus_core.trace_files import MAX_BYTES, open_trace
from focus_core.variants import VARIANTS

log = logging.getLogger("focus_lab")
FILE = "trace_file"
OTHER_MODEL = "another"


def from_link(engine: Any, notices: list[str]) -> None:
    """Open the run that the link names, once a session; one that is gone is said. Keeps what is open at hand."""
    stay_open()
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
    """Open the Trace file that was just uploaded (the uploader's callback); whatever is wrong becomes a notice."""
    upload = st.session_state.get(FILE)
    if upload is None:
        return
    name = " ".join(str(upload.name).split())[:80]
    try:
        _open(upload, name)
        said = ""
    except FocusError as error:
        said = f"{error.message} {error.hint}".strip()
    except OSError as error:
        log.exception("an upload could not be kept")
        said = f"It could not be kept: {error.strerror or type(error).__name__}."
    except Exception as error:
        log.exception("an upload failed")
        said = f"It could not be opened, for a reason that is not known ({type(error).__name__})."
    if said:
        links.keep_notices([f"{name}: {said}"])
    release_memory()


def _open(upload: Any, name: str) -> None:
    path = opened_files.keep(upload.getvalue())
    notices: list[str] = []
    try:
        trace = open_trace(path)
        p = trace.provenance
        same = {"model": p["model"], "text_name": p.get("text_name"), "text": trace.text, "variant": p["variant"]}
        # The page says what the file holds; what the controls cannot show is no fault of it.
        select({**same, "config": p.get("config") or {}, "adapter": p.get("adapter")}, notices)
    except BaseException:
        opened_files.drop(path)
        raise
    opened_files.drop_others(path)
    open_path(str(path), "opened", name=name)
    links.keep_notices(notices)


def stay_open() -> None:
    """Keep an opened file again that went when the browser lost the server for a moment; say so where it cannot be."""
    opened = st.session_state.get("_opened")
    if opened is None or opened["kind"] != "opened" or Path(opened["path"]).exists():
        return
    upload = st.session_state.get(FILE)
    raw = upload.getvalue() if upload is not None else b""
    if opened_files.name_of(raw) == Path(opened["path"]).name:
        opened["path"] = str(opened_files.keep(raw))
        return
    selection.close_opened()
    name = opened.get("name", "The file")
    links.keep_notices([f"{name} was closed when the browser lost the server. Open it again to go on."])


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


MAX_MEGABYTES = MAX_BYTES >> 20
