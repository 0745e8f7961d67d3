"""The second mask of a comparison: dense and windows are known without a run, other variants once they have run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st

from app.ui import comparisons, links, selection
from app.ui.guard import plain, show_error
from app.ui.jobs import begin, job_status, priced
from app.ui.strip.data import mask_name, router_count
from app.ui.view import Page
from focus_core.errors import FocusError
from focus_core.pattern import GroupPattern, Pattern
from focus_core.pattern_blocks import BlockPattern
from focus_core.trace import Trace
from focus_core.variants import make

NONE = "none"


@dataclass(frozen=True)
class Second:
    """Something that the page's mask can be laid over.

    Attributes:
        label: what it is called.
        request: the ``trace`` job that gives it; None when it is known without one.
        router: another router of the same run.
        reach: (window, first tokens) that are all there is to it.
    """

    label: str
    request: dict[str, Any] | None = None
    router: int | None = None
    reach: tuple[int, int] | None = None


def options(page: Page, trace: Trace, router: int) -> dict[str, Second]:
    """What can be chosen, by a stable name."""
    found: dict[str, Second] = {}
    if trace.provenance["variant"] != "dense":
        found["dense"] = Second("Dense", reach=(len(trace), 0))
    for name, line in comparisons.choices(page).items():
        if name == comparisons.SELECTED:
            continue
        if line["variant"] == "window":
            full = {**make("window").to_dict(), **line["config"]}
            found[name] = Second(line["label"], reach=(int(full["window"]), int(full["sinks"])))
        elif page.text is not None:
            found[name] = Second(line["label"], _request(page, line))
    for other in range(router_count(trace)):
        if other != router:
            name = mask_name(trace, other)
            found[f"router.{other}"] = Second(f"{name[0].upper()}{name[1:]} of this run", router=other)
    return found


def choose(options: dict[str, Second]) -> str | None:
    """The control that chooses a second mask; None for none."""
    names = [NONE, *options]

    def label(name: str) -> str:
        return "Alone" if name == NONE else f"Over {options[name].label}"

    notices: list[str] = []
    links.check("over", names, NONE, notices, label, bound=False)
    if st.session_state.get("over", NONE) not in names:
        st.session_state["over"] = NONE
    if notices:
        links.keep_notices(notices)
        st.rerun()
    chosen = st.selectbox(
        "Compare",
        names,
        format_func=label,
        key="over",
        persist_state="session",
        label_visibility="collapsed",
        width=300,
        help="Lay this mask over another: kept by both, by one, by none.",
    )
    chosen = None if chosen in (None, NONE) else chosen
    links.write("over", chosen or "")
    return chosen


def _request(page: Page, line: dict[str, Any]) -> dict[str, Any]:
    return dataclasses.replace(
        page, variant=line["variant"], config=dict(line["config"]), adapter=line["adapter"]
    ).request()


def pattern_of(page: Page, trace: Trace, second: Second, layer: int) -> Pattern | None:
    """The second mask at a layer; None while it has not run (then the way to run it is drawn)."""
    own = trace.pattern(layer)
    if trace.provenance["native"][layer] is not None:
        return own
    if second.router is not None and isinstance(own, BlockPattern):
        return own.only(second.router)
    if second.router is not None:
        part = slice(second.router, second.router + 1)
        return dataclasses.replace(own, query_bits=own.query_bits[:, part], key_bits=own.key_bits[:, part])
    if second.reach is not None:
        n = len(trace)
        return GroupPattern.without_groups(1, n, n, own.heads, *second.reach)
    other = selection.trace_of(page.engine, second.request)
    if other is None:
        _run(page, second)
        return None
    if not _same_text(trace, other):
        st.caption(f"{second.label} ran on another text; run it on this one first.")
        return None
    return other.pattern(layer)


def _same_text(one: Trace, other: Trace) -> bool:
    if len(one) != len(other):
        return False
    ids = [t.arrays.get("token_ids") for t in (one, other)]
    return one.tokens == other.tokens if any(i is None for i in ids) else bool(np.array_equal(*ids))


def _run(page: Page, second: Second) -> None:
    """The run's progress, or its button with what it costs."""
    request = second.request
    job_id = selection.asked(request)
    job = page.engine.get(job_id) if job_id else None
    if job is not None:
        job_status(page.engine, job_id, key="second", what=f"the run with {second.label}", session=page.session)
        if not job.finished:
            return
    try:
        cost = page.engine.estimate("trace", request)
    except FocusError as error:
        show_error(error.message, error.hint)
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"{plain(second.label)} has not run on this text. {cost.sentence}")
        if st.button(priced("Run it", cost), icon=":material/play_arrow:", key="second_run", type="primary"):
            begin(page, "trace", request)
