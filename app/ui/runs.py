"""Running the selection: cost before the run, the model's preparation in the background, the ways out of an error."""

from __future__ import annotations

import re
from typing import Any

import streamlit as st

from app.ui import afresh, selection, texts
from app.ui.guard import plain, show_error, wholly
from app.ui.jobs import begin, job_status, leave, priced
from app.ui.settings import variant_label
from app.ui.view import Page
from focus_core.errors import FocusError
from focus_core.models.catalog import list_models

PREPARATION = "the model's preparation"
_NO_GROUPS = "none ships for this model"


def prepare_in_background(page: Page) -> None:
    """Once a session and model: load the model, and run what the shipped recording shows, without anyone waiting."""
    if page.source is not None and page.source.current and page.source.kind == "opened":
        return
    prepared: dict[str, str] = st.session_state.setdefault("_prepare", {})
    before = _preparation(page)
    ran = page.source is not None and page.source.current and page.source.kind == "live"
    if page.model not in prepared or (ran and before is not None and before.state == "failed"):
        prepared[page.model] = page.engine.submit("prepare", {"model": page.model}, session=page.session).id
    if page.source and page.source.current and page.source.kind == "recorded" and not selection.tried(page.request()):
        request = page.request()
        job = page.engine.submit("trace", request, session=page.session)
        selection.remember(request, job.id)
        # Someone ran it before: what is drawn is that run at once, not the recording and an offer to run.
        if job.state == "done":
            st.rerun()


def nothing_yet(page: Page) -> None:
    """What a page says and offers before anything has run."""
    st.markdown("Nothing has run here yet: choose a model and a text, and press Run.")
    with st.columns([1, 1.4])[0]:
        run_box(page)


def run_box(page: Page) -> None:
    """The Run button with its cost, or the run's progress; always in the same place and of the same height."""
    request = page.request()
    job_id = selection.asked(request)
    job = page.engine.get(job_id) if job_id else None
    _take_over(page, job)
    with st.container(key="run_box"):
        if page.source and page.source.current and page.source.kind == "opened":
            name = st.session_state["_opened"].get("name", "a file")
            st.caption(f":material/folder_open: Read from {plain(name)}; it needs no model.")
            st.button(
                "Close the file", key="close_file", type="tertiary", on_click=wholly, args=(selection.close_opened,)
            )
            return
        if job is not None and not job.finished:
            prepare = _preparation(page)
            if prepare is not None and not prepare.finished:
                job_status(page.engine, prepare.id, key="prepare", what=PREPARATION)
                # The run waits behind it: what is stopped is the run; the model stays, for whatever runs next.
                st.button("Stop", key="run_stop", icon=":material/stop_circle:", on_click=stop, args=(page, job_id))
            else:
                job_status(page.engine, job_id, key="run", what="the run", session=page.session)
            return
        if page.source and page.source.current and page.source.kind == "live":
            p = page.source.trace.provenance
            st.caption(f":material/check: Ran in {p.get('seconds', 0):.0f} s on {p.get('device', 'this machine')}.")
            return
        if job is not None and job.state in ("failed", "cancelled"):
            job_status(page.engine, job_id, key="run", what="the run", session=page.session)
            if job.error:
                ways_out(page, f"{job.error.message} {job.error.hint}")
                return
        elif (prepare := _preparation(page)) is not None and prepare.state == "failed":
            show_error(prepare.error.message, prepare.error.hint)
            ways_out(page, f"{prepare.error.message} {prepare.error.hint}")
            return
        _run_button(page, request)
        if (prepare := _preparation(page)) is not None and not prepare.finished:
            job_status(page.engine, prepare.id, key="prepare", what=PREPARATION, session=page.session)


def headline(page: Page, sentence: str, help: str) -> None:
    """The page's answer in one sentence; grey where it is an earlier run's and not that of the selection."""
    with st.container(key="headline" if page.source.current else "headline_earlier"):
        st.markdown(f"#### {sentence}", help=help)


def show_not_run(page: Page, attention: bool = True) -> None:
    """Say that what is drawn is an earlier run, of which model where that is another, and with which attention."""
    p = page.trace.provenance
    name = p.get("text_name")
    shown = f"“{plain(name)}”" if name else "your text"
    said = f"Shown is {shown}" + (f" with {plain(variant_label(p['variant']))}" if attention else "")
    if p["model"] != page.model:
        said += f" on {plain(model_label(p['model']))}, not on {plain(model_label(page.model))}"
    st.info(f"Your selection has not run yet. {said}.", icon=":material/history:")


def model_label(name: str) -> str:
    """A model as a sentence names it: its title in the list, its id, or the last part of its path."""
    titles = {entry.name: entry.title for entry in list_models()}
    return titles.get(name) or (
        name if name.count("/") == 1 and name[0] not in "/.~" else name.rstrip("/").rsplit("/", 1)[-1]
    )


def _take_over(page: Page, job: Any) -> None:
    """Draw again, once, when the run ended while the page was being drawn: no progress is left that would say so."""
    if job is None or job.state != "done" or (page.source and page.source.current and page.source.kind != "recorded"):
        return
    if st.session_state.get("_taken") != job.id and selection.trace_of(page.engine, page.request()):
        st.session_state["_taken"] = job.id
        st.rerun()


def _preparation(page: Page) -> Any:
    """The job that loads the selected model; None when this session asked for none."""
    job_id = st.session_state.get("_prepare", {}).get(page.model)
    return page.engine.get(job_id) if job_id and job_id not in st.session_state.get("_left", ()) else None


def _run_button(page: Page, request: dict[str, Any]) -> None:
    if page.text is None:
        st.button("Run", type="primary", disabled=True, width="stretch", key="run_nothing")
        st.caption("There is no text to run yet: paste one at the left, or choose a shipped one.")
        st.button("Take a shipped passage", key="way_text", on_click=wholly, args=(use_text, texts.names()[0]))
        return
    try:
        cost = page.engine.estimate("trace", request)
    except FocusError as error:
        # The way to make groups says the same, and what to do.
        if _NO_GROUPS not in error.message:
            show_error(error.message, error.hint)
        ways_out(page, f"{error.message} {error.hint}")
        return
    if st.button(priced("Run", cost), type="primary", icon=":material/play_arrow:", key="run_now", width="stretch"):
        begin(page, "trace", request)
    first = f"At most the first {page.text.limit:,} tokens are taken. " if page.text.limit else ""
    st.caption(f"{first}{cost.sentence}")


def ways_out(page: Page, words: str) -> None:
    """Buttons for the nearest things that work, chosen by what went wrong."""
    found = re.search(r"(?:first|[Uu]p to) ([\d,]+) tokens", words)
    if found and page.text is not None:
        count = int(found.group(1).replace(",", ""))
        if count >= 2:
            st.button(
                f"Take the first {count:,} tokens",
                key="way_limit",
                on_click=wholly,
                args=(texts.set_limit, page.text.text, count, page.model),
            )
    lacks = _NO_GROUPS in words
    if lacks:
        from app.ui.groups import ways

        ways.without_groups(page, "way_groups")
    if page.text is None or page.text.name is None:
        st.button("Take a shipped passage", key="way_text", on_click=wholly, args=(use_text, texts.names()[0]))
    if page.variant != "dense":
        st.button("Look at dense attention", key="way_dense", on_click=wholly, args=(use_variant, "dense"))
    if "two tokens" not in words and not lacks:
        st.button("Try again", key="way_again", icon=":material/refresh:", on_click=wholly, args=(try_again, page))
    label = "Back to the shipped example"
    st.button(label, key="way_reset", icon=":material/restart_alt:", on_click=wholly, args=(afresh.start,))


def stop(page: Page, job_id: str) -> None:
    """Stop a run that waits (a button's callback)."""
    if not page.engine.cancel(job_id, session=page.session):
        leave(job_id)


def try_again(page: Page) -> None:
    """Forget that this run, or the model's preparation, failed (a button's callback)."""
    st.session_state.get("_prepare", {}).pop(page.model, None)
    selection.forget(page.request())


def use_text(name: str) -> None:
    """Select a shipped text (a button's callback)."""
    st.session_state["text"] = name


def use_variant(name: str) -> None:
    """Select a variant (a button's callback)."""
    st.session_state["variant"] = name
