"""Change the groups by hand and see what the model does with it."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import streamlit as st

from analysis.edits import Effect, Next, effect, next_tokens, say
from analysis.groups import members
from analysis.numbers import percent, sig3, spread
from analysis.overview import change_text
from analysis.palette import BETTER, DROPPED, group_label
from app.ui import selection
from app.ui.badges import badge
from app.ui.bars import shown as readable
from app.ui.groups import shown as page_state
from app.ui.groups.shown import Shown
from app.ui.guard import guarded, plain
from app.ui.jobs import about, job_status
from app.ui.view import Page
from focus_core.errors import FocusError
from focus_core.trace import Trace

MAX_EDITS = 32
_SUB = {"delta_color": "off", "delta_arrow": "off"}


def render(page: Page) -> None:
    """Draw the tab."""
    st.fragment(_fragment)(page)


def _fragment(page: Page) -> None:
    guarded(lambda: _draw(page))


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
        _result(page, shown, edits, after)


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
        f"{plain(_around(shown.trace, token))}"
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


def _around(trace: Trace, token: int) -> str:
    before, after = ("".join(trace.tokens[a:b]) for a, b in ((max(0, token - 6), token), (token + 1, token + 7)))
    return f"…{before}[{trace.tokens[token]}]{after}…".replace("\n", "↵")


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
        takes = f" · about {about(cost.seconds)}" if cost.seconds >= 1 else ""
        if st.button(
            f"Run with {'these edits' if len(edits) > 1 else 'this edit'}{takes}", type="primary", key="edit_run"
        ):
            selection.remember(request, page.engine.submit("trace", request, session=page.session).id)
            st.rerun()
    return None


def _load(path: str) -> Trace:
    return selection.load_trace(path, 0.0)


# ---- before and after -----------------------------------------------------------------------------------------------


def _result(page: Page, shown: Shown, edits: list[dict[str, Any]], after: Trace) -> None:
    before = page.trace
    if len(before) != len(after):
        st.info("The edited run has another number of tokens; run the selection again.", icon=":material/history:")
        return
    layers = sorted({edit["layer"] for edit in edits})
    found = effect(before, after, layers)
    st.markdown(f"#### {plain(sentence(found))}")
    with st.container(horizontal=True, gap="small"):
        badge("live", f"{after.provenance.get('time', '')} on {after.provenance.get('device', '')}.")
        if page.source.kind == "recorded":
            badge("recorded", "The run before the edits; rounding on another machine is within 0.01 nats.")
    a, b, c = st.columns(3)
    which = f"layer {layers[0]}" if len(layers) == 1 else "edited layers"
    a.metric(
        f"Pairs kept in {which}",
        percent(found.kept_here[1]),
        f"from {percent(found.kept_here[0])}; all layers {percent(found.kept[1])}",
        **_SUB,
    )
    b.metric(
        "Perplexity",
        sig3(found.ppl[1], 4),
        f"{change_text(found.change)} {spread(found.spread)} from {sig3(found.ppl[0], 4)}",
        **_SUB,
    )
    c.metric("Tokens changed", f"{found.noticed:,}", f"of {len(after) - 1:,}, by 0.01 nats or more", **_SUB)
    _changed(shown, found, before, after)


def sentence(found: Effect) -> str:
    """What the edits did, in one sentence."""
    pairs = found.kept_here[1] - found.kept_here[0]
    if not found.noticed and abs(pairs) < 5e-5:
        return "Nothing moved: the edits changed neither the pairs nor what the model predicts."
    more = (
        "the same pairs"
        if abs(pairs) < 5e-5
        else f"{sig3(100 * abs(pairs))} percentage points {'more' if pairs > 0 else 'fewer'} pairs"
    )
    cost = (
        "perplexity stays within its own error"
        if abs(found.change) <= found.spread
        else f"perplexity {'rises' if found.change > 0 else 'falls'} by {percent(abs(found.change))}"
    )
    return f"With {more} in the edited layer, {cost}; {found.noticed:,} tokens are predicted differently."


def _changed(shown: Shown, found: Effect, before: Trace, after: Trace) -> None:
    most = found.most_changed()
    if not most:
        st.caption("No token's likelihood changed.")
        return
    st.markdown("**Changed most** (log-likelihood in nats)")
    with st.container(horizontal=True, gap="small"):
        for token in most:
            text, change = plain(readable(after.tokens[token], 14)), found.change_of[token]
            st.button(
                f"{text} {'+' if change > 0 else '−'}{abs(change):.2f}",
                key=f"edit_look_{token}",
                on_click=_look,
                args=(max(0, token - 1),),
            )
    if int(st.session_state.get("edit_after") or 1) > len(after):
        st.session_state["edit_after"] = len(after)
    st.session_state.setdefault("edit_after", max(0, most[0] - 1) + 1)
    left, right = st.columns([1, 3], vertical_alignment="bottom")
    token = int(left.number_input("What comes after token", 1, len(after), key="edit_after")) - 1
    right.caption(plain(_around(after, token)))
    rows = next_tokens(before, after, token)
    if not rows:
        st.caption("This run did not record the likeliest next tokens.")
        return
    actual = after.tokens[token + 1] if token + 1 < len(after) else None
    st.html(_STYLE + _bars(rows, actual))
    st.caption("Grey: before. Blue: after. ◂ is the token that really follows. A dash: not among the eight likeliest.")


def _look(token: int) -> None:
    st.session_state["edit_after"] = token + 1


def _bars(rows: list[Next], actual: str | None) -> str:
    top = max(max(row.before or 0, row.after or 0) for row in rows) or 1.0
    out = []
    for row in rows:
        mark = " ◂" if row.text == actual else ""
        lines = "".join(
            f"<i style='width:{100 * (p or 0) / top:.1f}%;background:{colour}'></i>"
            f"<em>{'–' if p is None else f'{100 * p:.1f} %'}</em>"
            for p, colour in ((row.before, DROPPED), (row.after, BETTER))
        )
        out.append(f"<div><b dir='auto'>{escape(readable(row.text))}{mark}</b><span>{lines}</span></div>")
    return f"<div class='fl-next'>{''.join(out)}</div>"


_STYLE = """<style>
.fl-next{display:grid;gap:.3rem;font-size:.9rem}
.fl-next div{display:grid;grid-template-columns:9rem 1fr;gap:.7rem;align-items:center}
.fl-next b{font-weight:600;text-align:right;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.fl-next span{display:grid;grid-template-columns:1fr 4rem;gap:.1rem .5rem;align-items:center}
.fl-next i{display:block;height:.5rem;border-radius:.2rem;min-width:2px}
.fl-next em{font-style:normal;font-size:.8rem;opacity:.75;text-align:right;font-variant-numeric:tabular-nums}
</style>"""
