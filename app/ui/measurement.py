"""A measurement as a job: its button with the cost, its progress, what of it has arrived, and its id in the address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from analysis.measured import merge
from app.ui import links, selection
from app.ui.guard import show_error
from app.ui.jobs import begin, job_status, priced
from app.ui.view import Page
from focus_core.errors import FocusError


@dataclass(frozen=True)
class Shown:
    """A result and where it comes from.

    Attributes:
        result: the measurement, or what of it has arrived.
        origin: ``live``, ``recorded`` or ``earlier settings``.
        job_id: the job behind it; None when it is recorded.
    """

    result: dict[str, Any]
    origin: str
    job_id: str | None = None

    @property
    def recorded(self) -> bool:
        """Whether it was measured before and shipped."""
        return self.origin == "recorded"


@dataclass(frozen=True)
class Measurement:
    """One of the app's measurements: a kind of job whose result a page draws.

    Attributes:
        kind: the job's.
        slot: names it in the session, and with ``_run`` in the address.
        what: as messages call it, as in "the comparison".
        drawn: whether its rows are drawn as they arrive.
    """

    kind: str
    slot: str
    what: str
    drawn: bool = True

    def counted(self, request: dict[str, Any]) -> dict[str, Any]:
        """The request with how often it was asked for again, without which the last result would answer it."""
        again = st.session_state.get(self._again, 0)
        return {**request, "again": again} if again else request

    def job(self, page: Page, request: dict[str, Any]) -> Any:
        """This session's job of the request, or one that a link opened; None when there is none."""
        return job_of(page, selection.asked(request))

    def find(
        self,
        page: Page,
        request: dict[str, Any] | None,
        shipped: Callable[[], list[dict[str, Any]]],
        of: str = "",
    ) -> Shown | None:
        """What to draw: this request's result or what of it has arrived, else the last one, else a recorded one.

        Args:
            page: the page.
            request: the request; None while the choices are incomplete.
            shipped: the recorded results, those of the page's model are taken first.
            of: of what the last one must be, where that matters.
        """
        last: dict[tuple[str, str], str] = st.session_state.setdefault("_last_measured", {})
        mark = (self.slot, of)
        job_id = selection.asked(request) if request else None
        if job_id and (result := arrived(job_of(page, job_id))):
            last[mark] = job_id
            return Shown(result, "live", job_id)
        if mark in last and (result := arrived(job_of(page, last[mark]))):
            return Shown(result, "earlier settings", last[mark])
        found = shipped()
        same = [d for d in found if d["about"].get("model") == page.model]
        return next((Shown(d, "recorded") for d in [*same, *found]), None)

    def box(
        self,
        page: Page,
        request: dict[str, Any],
        label: str,
        *,
        key: str,
        progress: str,
        again: str = "",
        ways_out: Callable[[str], None] | None = None,
        **button: Any,
    ) -> None:
        """The button with its cost, or the job's progress; nothing once it is done, unless it can be asked for again.

        Args:
            page: the page.
            request: the job's request.
            label: the button's.
            key: the button's key.
            progress: prefix of the progress's keys.
            again: the button's label once it is done; empty for none.
            ways_out: draws what would work, given what was wrong.
            **button: as in ``offer``.
        """
        job = self.job(page, request)
        if job is not None:
            job_status(page.engine, job.id, key=progress, what=self.what, session=page.session)
            if not job.finished:
                if self.drawn:
                    redraw_when_more(page.engine, job)
                return
            if job.state == "failed" and job.error and ways_out is not None:
                ways_out(f"{job.error.message} {job.error.hint}")
                # Its buttons stand once, also where the cost is refused too.
                ways_out = None
        done = job is not None and job.state == "done"
        if done and not again:
            return
        if done:
            label, button = again, {**button, "type": "secondary"}
        if not offer(page, self.kind, request, label, key=key, ways_out=ways_out, **button):
            return
        if done:
            st.session_state[self._again] = st.session_state.get(self._again, 0) + 1
            request = self.counted(request)
        begin(page, self.kind, request)

    def from_link(self, page: Page, notices: list[str]) -> None:
        """Open the result that the link names; one that is gone is said, and the link's choices stay."""
        key = links.opening(f"{self.slot}_run")
        job = page.engine.find(key) if key else None
        if job is not None and job.kind == self.kind:
            st.session_state.setdefault("_reopened", {})[job.id] = job
            selection.remember(job.request, job.id)
            if "again" in job.request:
                st.session_state[self._again] = job.request["again"]
        elif key:
            what = self.what[:1].upper() + self.what[1:]
            notices.append(f"{what} {key[:12]} of the link is not on this machine; its choices are set.")

    def to_link(self, page: Page, shown: Shown | None) -> None:
        """Put the id of the result that is shown into the address, so that a link opens it again."""
        job = job_of(page, shown.job_id) if shown is not None and shown.origin == "live" else None
        links.write(f"{self.slot}_run", getattr(job, "key", "") if job is not None and job.state == "done" else "")

    @property
    def _again(self) -> str:
        return f"_{self.slot}_again"


def offer(
    page: Page,
    kind: str,
    request: dict[str, Any],
    label: str,
    *,
    key: str,
    caption: bool = True,
    note: str = "",
    most: bool = False,
    ways_out: Callable[[str], None] | None = None,
    **button: Any,
) -> bool:
    """The button that asks for a job, with its cost; what cannot be run is said instead.

    Args:
        page: the page.
        kind: the job's.
        request: the job's request.
        label: the button's.
        key: the button's key.
        caption: whether the cost's sentence stands below the button; else hovering tells it.
        note: a sentence after the cost's.
        most: whether the time is the most that it can take.
        ways_out: draws what would work, given what was wrong.
        **button: arguments of the button.

    Returns:
        Whether it was pressed.
    """
    try:
        cost = page.engine.estimate(kind, request)
    except FocusError as error:
        show_error(error.message, error.hint)
        if ways_out is not None:
            ways_out(f"{error.message} {error.hint}")
        return False
    said = f"{cost.sentence} {note}".strip()
    pressed = st.button(
        priced(label, cost, most=most),
        key=key,
        icon=button.pop("icon", ":material/play_arrow:"),
        help=None if caption else said,
        **button,
    )
    if caption:
        st.caption(said)
    return pressed


def arrived(job: Any, part: str = "rows") -> dict[str, Any] | None:
    """What a job has given, whole or so far; None before its first ``part`` (``rows`` or ``about``)."""
    if job is None:
        return None
    if job.state == "done" and job.result:
        return job.result
    parts = merge(list(job.partial))
    return parts if parts[part] else None


def job_of(page: Page, job_id: str | None) -> Any:
    """A job of this session, or one that a link opened; None when there is none."""
    if job_id is None:
        return None
    return page.engine.get(job_id) or st.session_state.get("_reopened", {}).get(job_id)


def redraw_when_more(engine: Any, job: Any) -> None:
    """Draw the page again whenever this running job has handed over another row."""
    st.fragment(_when_more, run_every=1.0)(engine, job.id, len(job.partial))


def _when_more(engine: Any, job_id: str, seen: int) -> None:
    job = engine.get(job_id)
    if job is not None and len(job.partial) != seen:
        st.rerun()
