"""A measurement of this page: recorded and shipped, or of a job that ran here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from app.ui import selection
from app.ui.badges import badge
from app.ui.guard import show_error
from app.ui.jobs import about, job_status
from app.ui.view import Page
from focus_core.errors import FocusError


@dataclass(frozen=True)
class Measured:
    """A result and where it comes from."""

    result: dict[str, Any]
    live: bool

    @property
    def note(self) -> str:
        """What was measured, where and when, in one line."""
        about_it = self.result.get("environment") or {}
        text = self.result.get("text") or ("own text" if "tokens" in self.result else "")
        tokens = f"{self.result['tokens']:,} tokens" if "tokens" in self.result else ""
        parts = [self.result.get("model"), text, tokens, about_it.get("device"), str(about_it.get("time", ""))[:10]]
        return " · ".join(str(part) for part in (*parts, self.result.get("command")) if part)

    def badge(self) -> None:
        """Draw where the figures come from."""
        about_it = self.result.get("environment") or {}
        where = f"{about_it.get('time', '')}, {about_it.get('device', '')}"
        command = self.result.get("command")
        badge("live" if self.live else "recorded", where + (f"; {command}" if command else "") + ".")


def find(page: Page, kind: str, request: dict[str, Any] | None, shipped: dict[str, Any] | None) -> Measured | None:
    """This session's finished job of the request, else what ships."""
    job_id = selection.asked({"kind": kind, **request}) if request else None
    job = page.engine.get(job_id) if job_id else None
    if job is not None and job.state == "done" and job.result:
        return Measured(job.result, True)
    return Measured(shipped, False) if shipped else None


def run_button(page: Page, kind: str, request: dict[str, Any], *, key: str, label: str, what: str) -> None:
    """The button that starts the job with its cost, or how far it is."""
    asked = {"kind": kind, **request}
    job_id = selection.asked(asked)
    job = page.engine.get(job_id) if job_id else None
    if job is not None:
        job_status(page.engine, job_id, key=key, what=what, session=page.session)
        if job.state in ("queued", "running", "done"):
            return
    try:
        cost = page.engine.estimate(kind, request)
    except FocusError as error:
        show_error(error.message, error.hint)
        return
    takes = f" · about {about(cost.seconds)}" if cost.seconds >= 1 else ""
    if st.button(f"{label}{takes}", key=f"{key}_run", icon=":material/play_arrow:", help=cost.sentence):
        selection.remember(asked, page.engine.submit(kind, request, session=page.session).id)
        st.rerun()
