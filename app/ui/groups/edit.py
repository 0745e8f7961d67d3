"""Change the groups by hand and see what the model does with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from analysis.edits import say
from analysis.groups import members
from analysis.palette import group_label
from app.ui import selection
from app.ui.bars import shown as readable
from app.ui.groups import edited
from app.ui.groups import shown as page_state
from app.ui.groups.shown import Shown
from app.ui.guard import fragment, plain
from app.ui.jobs import begin, job_status, priced
from app.ui.view import Page
from focus_core.errors import FocusError
from focus_core.trace import Trace

MAX_EDITS = 32


def render(page: Page) -> None:
    """Draw the tab."""
    fragment(_draw, page)


def _draw(page: Page) -> None:
    shown = page_state.shown(page)
    if shown is None:
        page_state.no_groups(page)
        return
    if not page.source.current:
        st.info("Run the selection first: an edit is held against the run without it.", icon=":material/history:")
        return
    edits = edits_of(page)
    controls, picture = st.columns([1, 1.9], gap="large")
    with controls:
        _move(shown, edits)
        _merge(shown, edits)
        _list(shown, edits)
        after = _run(page, shown, edits)
    with picture:
        if after is None:
            st.markdown("**What would the model do with other groups?**")
            st.markdown(
                "Move a token into another group, or merge two groups, and run the model again: which pairs are "
                "computed, what it predicts next, and what that costs. Everything else stays as it was."
            )
            if not edits:
                _suggest(shown, edits)
            return
        edited.render(page, shown, edits, after)


# ---- the list of edits ----------------------------------------------------------------------------------------------


def edits_of(page: Page) -> list[dict[str, Any]]:
    """The edits of this selection, oldest first; another text or model has its own."""
    every = st.session_state.setdefault("_edits", {})
    return every.setdefault(selection.fingerprint(page.request()), [])


def _move(shown: Shown, edits: list[dict[str, Any]]) -> None:
    held = page_state.picked()[1]
    count = len(shown.trace)
    # A token that was selected elsewhere since is the one that is meant.
    if st.session_state.get("_edit_seen") != held:
        st.session_state["_edit_seen"] = held
        if held is not None:
            st.session_state["edit_token"] = held + 1
    if int(st.session_state.get("edit_token") or 1) > count:
        st.session_state["edit_token"] = count
    st.session_state.setdefault("edit_token", count // 2)
    st.markdown("**Move a token**")
    left, right = st.columns([1, 1.4], vertical_alignment="bottom")
    token = left.number_input(
        "Token", 1, count, key="edit_token", help="As counted in the text; select one in the map."
    )
    token = int(token) - 1
    own = np.flatnonzero(members(shown.trace, shown.layer, shown.router)[token])
    st.caption(
        f"“{plain(readable(shown.trace.tokens[token]))}” is in {' '.join(map(group_label, own)) or 'none'}: "
        f"{plain(edited.around(shown.trace, token))}"
    )
    table = shown.table()
    to = right.selectbox(
        "to group",
        [g for g in range(len(table)) if [g] != own.tolist()],
        format_func=lambda g: _name(shown, g),
        key="edit_to",
    )
    st.button(
        "Add this move",
        key="edit_add_move",
        icon=":material/arrow_forward:",
        disabled=to is None or len(edits) >= MAX_EDITS,
        on_click=_add,
        args=(edits, {"layer": shown.layer, "router": shown.router, "token": token, "to": to}),
    )


def _merge(shown: Shown, edits: list[dict[str, Any]]) -> None:
    st.markdown("**Merge two groups**")
    groups = list(range(len(shown.table())))
    if len(groups) < 2:
        st.caption("There is only one group.")
        return
    left, right = st.columns(2)
    gone = left.selectbox("Merge", groups, format_func=lambda g: _name(shown, g), key="edit_gone")
    into = right.selectbox("into", groups, index=1, format_func=lambda g: _name(shown, g), key="edit_into")
    st.button(
        "Add this merge",
        key="edit_add_merge",
        icon=":material/merge:",
        disabled=gone == into or len(edits) >= MAX_EDITS,
        on_click=_add,
        args=(edits, {"layer": shown.layer, "router": shown.router, "merge": [gone, into]}),
    )


def _name(shown: Shown, group: int) -> str:
    return f"{group_label(group)} · {shown.table()[group].name}"


def _add(edits: list[dict[str, Any]], edit: dict[str, Any]) -> None:
    if edit not in edits:
        edits.append(edit)


def _list(shown: Shown, edits: list[dict[str, Any]]) -> None:
    if not edits:
        return
    st.markdown(f"**{len(edits)} edit{'s' if len(edits) > 1 else ''}**")
    for i, edit in enumerate(edits):
        left, right = st.columns([5, 1], vertical_alignment="center")
        left.markdown(f"{i + 1}. {plain(say(edit, shown.trace.tokens))}")
        right.button("✕", key=f"edit_drop_{i}", type="tertiary", help="Take it back", on_click=edits.pop, args=(i,))
    with st.container(horizontal=True):
        st.button("Undo the last", key="edit_undo", icon=":material/undo:", on_click=edits.pop)
        st.button("Clear all", key="edit_clear", type="tertiary", on_click=edits.clear)


def _suggest(shown: Shown, edits: list[dict[str, Any]]) -> None:
    """One thing to try: merge the two largest groups."""
    order = sorted(shown.table(), key=lambda g: -g.size)
    if len(order) < 2:
        return
    gone, into = order[1].number, order[0].number
    st.button(
        f"Try: merge the two largest groups, {group_label(gone)} into {group_label(into)}",
        key="edit_try",
        icon=":material/lightbulb:",
        on_click=_add,
        args=(edits, {"layer": shown.layer, "router": shown.router, "merge": [gone, into]}),
    )


# ---- the run --------------------------------------------------------------------------------------------------------


def _run(page: Page, shown: Shown, edits: list[dict[str, Any]]) -> Trace | None:
    """The button or the progress; the edited Trace once it is there."""
    if not edits:
        return None
    request = {**page.request(layers=[shown.layer]), "edits": [dict(edit) for edit in edits]}
    job_id = selection.asked(request)
    job = page.engine.get(job_id) if job_id else None
    with st.container(key="edit_run_box"):
        if job is not None and job.state == "done" and job.result:
            return _load(job.result["trace"])
        if job is not None:
            job_status(page.engine, job_id, key="edit_job", what="the edited run", session=page.session)
            if not job.finished:
                return None
        try:
            cost = page.engine.estimate("trace", request)
        except FocusError as error:
            st.caption(f"{error.message} {error.hint}".strip())
            return None
        if st.button(
            priced(f"Run with {'these edits' if len(edits) > 1 else 'this edit'}", cost), type="primary", key="edit_run"
        ):
            begin(page, "trace", request)
    return None


def _load(path: str) -> Trace:
    return selection.load_trace(path, 0.0)
