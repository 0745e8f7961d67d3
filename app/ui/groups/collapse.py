"""Why do groups need balancing? Four ways and the paper's own side by side: recorded, replayed, and live as a toy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from analysis import collapse as words
from analysis.numbers import percent
from app.ui import bring, links
from app.ui.badges import badge
from app.ui.figure import plot
from app.ui.guard import fragment, plain, show_error
from app.ui.jobs import about, sentence
from app.ui.recorded import results_folder
from app.ui.view import Page
from focus_core.errors import FocusError
from focus_core.jobs.files import read_json

KIND = "collapse"
WHICH, LAYER, STEP, PLAY = "collapse_weights", "collapse_layer", "collapse_step", "collapse_play"
CHOICES = {"frozen": "Frozen model", "moving": "All weights move", "late": "First frozen, then moving"}
_POLL = 1.0
_FRAMES = 24


def render(page: Page) -> None:
    """Draw the tab."""
    st.markdown(
        "A group that holds every token makes attention dense again, and dense attention predicts best: training "
        "itself pulls towards **one group**. Something has to pull back."
    )
    notices: list[str] = []
    links.check(WHICH, CHOICES, "frozen", notices, CHOICES.get)
    for notice in notices:
        st.warning(plain(notice), icon=":material/link_off:")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        which = st.segmented_control(
            "What may move",
            list(CHOICES),
            default="frozen",
            format_func=CHOICES.get,
            required=True,
            key=WHICH,
            bind="query-params",
            help="The seeds say that soft constraints fail once the rest of the model can move.",
        )
        layer = st.selectbox(
            "Layer",
            [None, 0, 1, 2, 3],
            format_func=lambda n: "Mean, groups by size" if n is None else f"Layer {n}",
            key=LAYER,
            persist_state="session",
            width=220,
        )
    which = which or "frozen"
    job = _job(page, which)
    if job is not None and not job.finished:
        fragment(_progress, page, which, layer, job.key, run_every=_POLL)
    else:
        fragment(_replayed, page, which, layer)
    _box(page, which, job)
    _verdict()


# ---- what is drawn --------------------------------------------------------------------------------------------------


def _progress(page: Page, which: str, layer: int | None, key: str) -> None:
    job = page.engine.recall(key)
    if job is None or job.finished:
        st.rerun()
    bring.into_view(job.id, key="collapse_begins")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(min(max(job.fraction, 0.0), 1.0), sentence(job, "the toy run"))
        if st.button("Stop", key="collapse_stop", icon=":material/stop_circle:"):
            page.engine.cancel(job.id, session=page.session)
            st.rerun()
    _picture(list(job.partial), _settings(job), which, layer, None, "live")


def _replayed(page: Page, which: str, layer: int | None) -> None:
    records, settings, origin = _material(page, which)
    if not records:
        st.info("Nothing is recorded here; run the toy below.", icon=":material/play_circle:")
        return
    last = words.last_step(records)
    steps = sorted({round(last * i / _FRAMES) for i in range(_FRAMES + 1)})
    if st.session_state.get(STEP) not in steps:
        st.session_state[STEP] = steps[-1]
    shown = st.select_slider("Replay: up to step", steps, key=STEP)
    _picture(records, settings, which, layer, shown, origin)


def _picture(
    records: list[dict[str, Any]],
    settings: dict[str, Any],
    which: str,
    layer: int | None,
    shown: int | None,
    origin: str,
) -> None:
    until = [r for r in records if shown is None or r["step"] <= shown]
    if not until:
        st.caption(words.WAITING)
        return
    st.markdown(f"#### {plain(words.answer(until, which))}", help=_help(settings))
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        badge(origin)
        st.caption(plain(_what(settings, until)))
    plot(
        words.panels(records, settings["steps"], layer=layer, shown=shown, moves_from=settings.get("moves_from")),
        key="collapse_panels",
        alt="Share of the tokens in each group over the steps, one panel a balancing, on one scale.",
        name="group collapse",
        rows=lambda: words.share_rows(until, which),
        note=_what(settings, until),
    )
    if not (carried := words.carried(until, shown)):
        return
    st.markdown(
        f"**Which way out did it take?** {plain(carried)}",
        help="Each part alone is put back to how it began and the groups are counted again (solid; dotted is as it "
        "is). Where the solid line falls far below the dotted one, that part carries the collapse. A "
        "part that begins smaller, or learns "
        "faster, moves further: this tells about these settings, not about the method.",
    )
    plot(
        words.bypass_curves(records, settings["steps"], shown),
        key="collapse_parts",
        alt="Share of the fullest group with centroids, projection or hidden states put back to their start.",
        name="three bypasses",
        rows=lambda: words.part_rows(until, which),
        note=_what(settings, until),
    )
    table = words.parts_table(until, shown)
    if not table.empty:
        st.dataframe(table, hide_index=True, key="collapse_table")


def _help(settings: dict[str, Any]) -> str:
    groups = settings["groups"]
    return (
        "The share of the tokens in the fullest group as training assigns it, mean over layers and the last tenth of "
        f"the steps; even would be {percent(1 / groups)} of {groups} groups (the dotted line). The lower curves and "
        "the table are of tokens as served, each by itself, on held-back windows; for Sinkhorn in the forward pass "
        "the two differ."
    )


def _what(settings: dict[str, Any], records: list[dict[str, Any]]) -> str:
    layers = len(records[-1]["load"]) if records else 4
    return (
        f"A model of 1 million weights and {layers} layers on five novels; {settings['groups']} groups, windows of "
        f"{settings.get('batch', 4)} × {settings.get('context', 256)} tokens, {settings['steps']} steps, one seed."
    )


# ---- recorded and live ----------------------------------------------------------------------------------------------


def _recorded(which: str) -> dict[str, Any]:
    path = results_folder() / f"collapse-{which}.json.gz"
    return _document(str(path), path.stat().st_mtime) if path.is_file() else {}


@st.cache_resource(max_entries=4, show_spinner=False)
def _document(path: str, modified: float) -> dict[str, Any]:
    return read_json(Path(path))


def _request(which: str) -> dict[str, Any]:
    return {"settings": {"weights": which}}


def _job(page: Page, which: str) -> Any:
    """The toy run of this setting, however it stands; None before anyone ran it."""
    key = page.engine.key(KIND, _request(which))
    return page.engine.recall(key) if key else None


def _settings(job: Any) -> dict[str, Any]:
    from focus_core.handlers.collapse import DEFAULTS, moves_from

    asked = {**DEFAULTS, **job.request["settings"]}
    return {**asked, "moves_from": moves_from(asked)}


def _material(page: Page, which: str) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """Records, settings and origin of what is drawn: the recording, or the toy run where it was asked for."""
    job = _job(page, which)
    if job is not None and job.partial + (job.result or {}).get("records", []) and _wants_toy(which):
        return list((job.result or {}).get("records") or job.partial), _settings(job), "live"
    document = _recorded(which)
    return document.get("records", []), (document.get("about") or {}).get("settings", {}), "recorded"


def _wants_toy(which: str) -> bool:
    return st.session_state.get("_collapse_toy") == which


def _box(page: Page, which: str, job: Any) -> None:
    """The toy run: its cost and button, and the way between it and the recording."""
    if job is not None and not job.finished:
        return
    if job is not None and job.state == "failed" and job.error:
        show_error(f"The toy run stopped: {job.error.message}", job.error.hint)
    has = job is not None and bool(job.partial or job.result)
    with st.container(horizontal=True, vertical_alignment="center"):
        if has:
            toy = _wants_toy(which)
            st.button(
                "Show the recording" if toy else "Show the toy run",
                key="collapse_switch",
                icon=":material/swap_horiz:",
                on_click=_show,
                args=(None if toy else which,),
            )
        if job is None or job.state != "done":
            _run_button(page, which)


def _run_button(page: Page, which: str) -> None:
    try:
        cost = page.engine.estimate(KIND, _request(which))
    except FocusError as error:
        show_error(error.message, error.hint)
        return
    st.button(
        f"Run it here as a toy · about {about(cost.seconds)}",
        key="collapse_run",
        icon=":material/play_arrow:",
        type="primary",
        on_click=_start,
        args=(page, which),
        help=cost.sentence,
    )
    st.caption("Fewer steps and tokens than the recording: the start of the same curves.")


def _start(page: Page, which: str) -> None:
    page.engine.submit(KIND, _request(which), session=page.session)
    _show(which)


def _show(which: str | None) -> None:
    st.session_state["_collapse_toy"] = which
    st.session_state.pop(STEP, None)


def _verdict() -> None:
    """What the recordings say of the seeds' story, and what the three bypasses are."""
    documents = {which: _recorded(which) for which in CHOICES}
    settings = next((d["about"]["settings"] for d in documents.values() if d.get("about")), {})
    documents = {which: d["records"] for which, d in documents.items() if d.get("records")}
    with st.expander("What was claimed, and what was measured here", icon=":material/fact_check:", expanded=True):
        for line in words.verdict(documents, settings):
            st.markdown(f"- {line}")
        st.markdown(
            "The claim is that soft constraints are bypassed in three ways: "
            + "; ".join(f"**{name}**, {words.MEANING[part]}" for part, name in words.PARTS.items())
            + ". A balance loss moves only the *mean soft share* of each group, and an even soft share does not make "
            "the hard one even."
        )
        first = next((_recorded(which) for which in CHOICES if _recorded(which)), None)
        if first:
            where = first["about"]["environment"]
            st.caption(
                plain(f"Recorded {where['time'][:10]} on {where['device']}, torch {where['torch']}, one seed: ")
                + f"`{first['about']['command']}` (with `--out` and an empty folder it records anew)"
            )
