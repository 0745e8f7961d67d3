"""One opened claim: what was said, what was measured, and the same number measured anew."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis.claims import MARKS, MEANING, figure_of, series_figure
from app.ui.badges import badge
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.jobs import job_status
from app.ui.measurement import offer
from app.ui.view import Page
from focus_core import claims as ledger
from focus_core.evaluation.sources import code_changed

_JOBS = "_claims_jobs"


def show(page: Page, one: dict[str, Any]) -> None:
    """Draw a claim whole."""
    st.subheader(plain(one["claim"]), anchor=False)
    st.markdown(f"{MARKS[one['verdict']]} **{one['verdict']}**: {plain(one['why'])}", help=MEANING[one["verdict"]])
    said, published = st.columns(2)
    said.caption(f"**Said in** {plain(one['source'])}")
    published.caption(f"**Published in** {plain(one['paper'])}\n\n**Condition** {plain(one['condition'])}")
    told = ""
    for at, measured in enumerate(one["measured"]):
        with st.container(border=True):
            told = _measured(page, one["id"], at, measured, told)
    figure = series_figure(one["measured"])
    if figure is not None:
        plot(
            figure,
            key="claims_series",
            alt=f"The recorded series behind the claim: {one['claim']}",
            name=f"claim {one['id']}",
            note=_origin(one["measured"][0]),
        )


def _origin(measured: dict[str, Any]) -> str:
    made = ledger.made_by(measured)
    return " · ".join(filter(None, (measured["setting"], made["device"], made["date"], *made["files"])))


def _measured(page: Page, name: str, at: int, measured: dict[str, Any], told: str) -> str:
    """A recorded number with where it is from, and the way to have it again; gives its command, ``told`` the last."""
    made, job = ledger.made_by(measured), _job(page, name, at)
    st.markdown(f"**{plain(figure_of(measured))}** · {plain(measured['what'])}")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        when = " on ".join(filter(None, (made["date"], made["device"])))
        badge("recorded", f"{when or 'Date and machine were not kept'}. {made['command'] or ''}")
        if any(code_changed(ledger.document(name)) for name in ledger.files(measured)):
            badge("code changed since")
        st.caption(plain(_origin(measured)))
    if job is not None and job.state == "done" and job.result:
        _anew(measured, job.result)
    command = made["command"] or ""
    if command != told:
        st.code(command, language="bash", wrap_lines=True)
    if "rerun" in measured:
        _again(page, name, at, measured["rerun"], job)
    return command


def _anew(measured: dict[str, Any], result: dict[str, Any]) -> None:
    again = measured["rerun"]
    value = ledger.resolve({"formula": measured.get("formula", "a"), **again}, result)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge("live")
        st.markdown(f"**{plain(figure_of(measured, value))}** now, {plain(figure_of(measured))} recorded")


def _job(page: Page, name: str, at: int) -> Any:
    asked = st.session_state.get(_JOBS, {}).get((name, at))
    return page.engine.get(asked) if asked else None


def _again(page: Page, name: str, at: int, again: dict[str, Any], job: Any) -> None:
    jobs: dict[tuple[str, int], str] = st.session_state.setdefault(_JOBS, {})
    if job is not None and job.state != "done":
        job_status(page.engine, job.id, key=f"claims_job_{at}", what="the measurement", session=page.session)
        if not job.finished:
            return
    # A number, so that a finished job is not given back as the answer.
    count = st.session_state.get("_claims_again", 0)
    request = {**again["request"], **({"again": count} if count else {})}
    if job is not None and job.state == "done":
        request = {**again["request"], "again": count + 1}
    label = "Measure again" if job is not None else "Measure here"
    if offer(page, again["kind"], request, label, key=f"claims_run_{at}"):
        st.session_state["_claims_again"] = request.get("again", 0)
        jobs[name, at] = page.engine.submit(again["kind"], request, session=page.session).id
        st.rerun()
