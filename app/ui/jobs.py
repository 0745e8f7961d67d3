"""A job in the page: what it does, how far it is, how long it still takes, and a button that stops it."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.ui import selection
from app.ui.guard import fragment, show_error
from app.ui.view import Page

POLL_SECONDS = 0.5
_KEPT = {"ask": ("reply was", "replies were")}


def job_status(
    engine: Any, job_id: str | None, *, key: str, what: str, session: str | None = None, show_done: bool = False
) -> Any:
    """Draw one job's state and keep it up to date; the page reruns once when the job ends.

    Args:
        engine: the engine client.
        job_id: the job; nothing is drawn for None or a job that is gone.
        key: prefix of the widget keys, unique in the page.
        what: what the job makes, as in "the live run".
        session: who stops it; a run that others asked for too then goes on for them. None draws no stop button.
        show_done: also say when it is done.

    Returns:
        The job as it was when this was drawn, or None.
    """
    job = engine.get(job_id) if job_id else None
    if job is None:
        return None
    if job.state in ("queued", "running"):
        fragment(_progress, engine, job_id, key, what, session, run_every=POLL_SECONDS)
    elif job.state == "failed" and job.error:
        show_error(f"{_first_up(what)} stopped: {job.error.message}", job.error.hint)
    elif job.state == "cancelled":
        _cancelled(job, what)
    elif show_done:
        st.caption(f":material/check: {_first_up(what)} is done.")
    return job


def _progress(engine: Any, job_id: str, key: str, what: str, session: str | None) -> None:
    job = engine.get(job_id)
    stopped = st.session_state.pop(f"_{key}_stopped", None) == job_id
    if stopped and job is not None and job.state == "cancelled":
        # The answer to a click comes with this part alone; the page follows at the next look.
        _cancelled(job, what)
        return
    if stopped or job is None or job.state not in ("queued", "running"):
        st.rerun()
    st.progress(min(max(job.fraction, 0.0), 1.0), sentence(job, what))
    if session is not None:
        arguments = (engine, job_id, key, session)
        st.button("Stop", key=f"{key}_stop", icon=":material/stop_circle:", on_click=_stop, args=arguments)


def _stop(engine: Any, job_id: str, key: str, session: str) -> None:
    if not engine.cancel(job_id, session=session):
        leave(job_id)
    st.session_state[f"_{key}_stopped"] = job_id


def _cancelled(job: Any, what: str) -> None:
    # A row that grows comes several times.
    found = [part["row"] for part in job.partial if "row" in part]
    rows = len({(row.get("key", number), row.get("length")) for number, row in enumerate(found)})
    one, several = _KEPT.get(job.kind, ("row was measured and", "rows were measured and"))
    kept = f" {rows} {one if rows == 1 else several} kept." if rows else ""
    st.info(f"{_first_up(what)} was cancelled.{kept}", icon=":material/cancel:")


def leave(job_id: str) -> None:
    """Let go of a job in this session, while it goes on for others who asked for the same."""
    st.session_state.setdefault("_left", set()).add(job_id)
    st.toast("You let it go; it runs on for others who asked for the same.", icon=":material/group:")


def sentence(job: Any, what: str) -> str:
    """One line: queue position, or what it does and how long is left."""
    if job.state == "queued":
        ahead = job.position
        return (
            f"{_first_up(what)} waits: {ahead} {'run' if ahead == 1 else 'runs'} before it."
            if ahead
            else (f"{_first_up(what)} starts.")
        )
    left = job.seconds_left
    tail = f" About {left:.0f} s left." if left is not None and left >= 1 else ""
    message = (job.message or "working").rstrip(".")
    return f"{_first_up(what)}: {message[:1].lower() + message[1:]}.{tail}"


def about(seconds: float) -> str:
    """How long a run takes, for its button: ``24 s``, or minutes from two on."""
    return f"{max(1, seconds):.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def priced(label: str, cost: Any, *, most: bool = False) -> str:
    """A button's label with how long its job takes, where that is a second or more."""
    return f"{label} · {'up to' if most else 'about'} {about(cost.seconds)}" if cost.seconds >= 1 else label


def begin(page: Page, kind: str, request: dict[str, Any]) -> None:
    """Start a job as this session's answer to the request, and draw again."""
    selection.remember(request, page.engine.submit(kind, request, session=page.session).id)
    st.rerun()


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]
