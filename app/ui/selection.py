"""Which Trace answers the selection: a finished run, a shipped recording, or the last one shown."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from focus_core import assets
from focus_core.errors import FocusError
from focus_core.jobs.memory import release_memory
from focus_core.trace import Trace
from focus_core.variants import make

_SAME = ("model", "text_name", "variant", "config", "adapter")


@dataclass(frozen=True)
class Source:
    """A Trace and where it comes from.

    Attributes:
        trace: what to draw.
        kind: ``live`` (run here), ``recorded`` (shipped), ``opened`` (read from a Trace file).
        current: False when the selection has changed and has not been run.
        path: the file.
        recorded: the shipped Trace that a live one replaces, to hold them against each other; else None.
        run: the run's id in the store, for a link; None where there is none.
    """

    trace: Trace
    kind: str
    current: bool
    path: str
    recorded: Trace | None = None
    run: str | None = None


@st.cache_resource(max_entries=3, show_spinner=False, on_release=lambda _: release_memory())
def load_trace(path: str, modified: float) -> Trace:
    """Read a Trace once a server; treated as read-only."""
    return Trace.load(path)


def unload(path: Path) -> None:
    """Let go of a Trace whose file is about to go, with its memory."""
    load_trace.clear(str(path), path.stat().st_mtime)


def _load(path: str | Path) -> Trace:
    return load_trace(str(path), Path(path).stat().st_mtime)


@st.cache_resource(max_entries=8, show_spinner=False)
def _shipped(folder: str, modified: float) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for path in sorted(Path(folder).glob("*.npz")):
        with np.load(path, allow_pickle=False) as data:
            found.append((str(path), json.loads(bytes(data["document"]))["provenance"]))
    menu = {name: place for place, name in enumerate(assets.text_names())}
    return sorted(found, key=lambda one: menu.get(one[1].get("text_name"), len(menu)))


def traces_folder() -> Path:
    """Where the shipped Traces lie."""
    return assets.DATA / "traces"


def shipped() -> list[tuple[str, dict[str, Any]]]:
    """(path, provenance) of every shipped Trace, in the order of the texts' menu; only the small documents are read."""
    folder = traces_folder()
    return _shipped(str(folder), folder.stat().st_mtime) if folder.is_dir() else []


def matches(provenance: dict[str, Any], request: dict[str, Any]) -> bool:
    """Whether a Trace's provenance answers a ``trace`` request about a shipped text."""
    if not request["text_name"] or "limit" in request or request.get("edits"):
        return False
    if any(provenance.get(k) != request[k] for k in _SAME if k != "config"):
        return False
    try:
        # A setting that the variant got since it was recorded had its default then.
        config = make(provenance["variant"], provenance.get("config")).to_dict()
    except FocusError:
        return False
    return all(config.get(k) == v for k, v in request["config"].items())


def find(engine: Any, request: dict[str, Any]) -> Source | None:
    """The best Trace for a request, remembering the last one shown in this session."""
    recorded = next((path for path, p in shipped() if matches(p, request)), None)
    path, kind = _finished(engine, request), "live"
    run = st.session_state["_runs"].get(fingerprint(request), {}).get("key") if path else None
    # What someone opened is what they want to see, also where the same was run here.
    if opened := _opened(request):
        path, kind, run = opened["path"], opened["kind"], opened.get("run")
    if path is None and recorded:
        path, kind = recorded, "recorded"
    if path is not None:
        try:
            trace = _load(path)
        except (FocusError, OSError):
            trace = None
        if trace is not None:
            st.session_state["_last"] = (str(path), kind)
            against = _load(recorded) if recorded and kind == "live" else None
            return Source(trace, kind, True, str(path), against, run)
    last = st.session_state.get("_last")
    if last is None or not Path(last[0]).exists():
        first = next((path for path, p in shipped() if p.get("model") == request["model"]), None)
        first = first or next((path for path, _ in shipped()), None)
        last = (first, "recorded") if first else None
    if last is None:
        return None
    return Source(_load(last[0]), last[1], False, last[0])


def _opened(request: dict[str, Any]) -> dict[str, Any] | None:
    """The run that a link or a file opened, until the selection becomes another than it was then."""
    opened = st.session_state.get("_opened")
    if opened is None:
        return None
    mark = opened.setdefault("for", fingerprint(request))
    return opened if mark == fingerprint(request) and Path(opened["path"]).exists() else None


def still_opened(page: Any) -> dict[str, Any] | None:
    """What a link or a file opened, until another model or text is chosen than there was then."""
    opened = st.session_state.get("_opened")
    if opened is None or not Path(opened["path"]).exists():
        return None
    mark = (opened["path"], page.model, page.text)
    if st.session_state.setdefault("_opened_for", mark)[0] != opened["path"]:
        st.session_state["_opened_for"] = mark
    return opened if st.session_state["_opened_for"] == mark else None


def opened_of(page: Any) -> Source | None:
    """The Trace of what is still opened, whatever its attention; None without one that can be read."""
    opened = still_opened(page)
    if opened is None:
        return None
    try:
        trace = _load(opened["path"])
    except (FocusError, OSError):
        return None
    return Source(trace, opened["kind"], True, str(opened["path"]), run=opened.get("run"))


def link_of(engine: Any, request: dict[str, Any], source: Source | None) -> str:
    """The id that a link needs to open what is shown again: of the run, or of one that has not ended; else empty."""
    if source is not None and source.current:
        return source.run or ""
    job_id = asked(request)
    job = engine.get(job_id) if job_id else None
    return getattr(job, "key", "") if job is not None and not job.finished else ""


def shown_router(count: int = 64) -> int:
    """The router that the control holds, of ``count``; the first where it holds none of them.

    Right after a Trace with other masks is drawn, the browser still holds the label of one that is gone, and Streamlit
    gives that label instead of a number.
    """
    held = st.session_state.get("router")
    return held if isinstance(held, int) and held < count else 0


def keep_router(count: int) -> None:
    """Before the control is drawn: let it hold one of ``count`` routers."""
    if st.session_state.get("router") not in (None, shown_router(count)):
        st.session_state["router"] = 0


def trace_of(engine: Any, request: dict[str, Any]) -> Trace | None:
    """The Trace of a request that has run in this session or ships; leaves what the page shows as it is."""
    path = _finished(engine, request) or next((path for path, p in shipped() if matches(p, request)), None)
    try:
        return _load(path) if path else None
    except (FocusError, OSError):
        return None


def _finished(engine: Any, request: dict[str, Any]) -> str | None:
    """Path of the Trace of this session's finished run of this request; it outlives the engine's list of jobs."""
    run = st.session_state.setdefault("_runs", {}).get(fingerprint(request))
    if run is None:
        return None
    job = engine.get(run["job"])
    if job is not None and job.state == "done" and job.result:
        run["trace"], run["key"] = job.result.get("trace"), getattr(job, "key", None)
    path = run.get("trace")
    return path if path and Path(path).exists() else None


def fingerprint(request: dict[str, Any]) -> str:
    """A request as one short key, so that a session does not keep every text that was tried."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def close_opened() -> None:
    """Go back to what was run or shipped (a button's callback)."""
    st.session_state.pop("_opened", None)


def remember(request: dict[str, Any], job_id: str) -> None:
    """Note that this session asked for a request under this job."""
    if _opened(request):
        close_opened()
    st.session_state.setdefault("_runs", {})[fingerprint(request)] = {"job": job_id}
    st.session_state.get("_left", set()).discard(job_id)


def forget(request: dict[str, Any]) -> None:
    """Let a request be asked for again."""
    st.session_state.get("_runs", {}).pop(fingerprint(request), None)


def tried(request: dict[str, Any]) -> bool:
    """Whether this session asked for a request, also when it let the run go since."""
    return fingerprint(request) in st.session_state.get("_runs", {})


def asked(request: dict[str, Any]) -> str | None:
    """The job under which this session asked for a request."""
    run = st.session_state.get("_runs", {}).get(fingerprint(request))
    return run["job"] if run and run["job"] not in st.session_state.get("_left", ()) else None
