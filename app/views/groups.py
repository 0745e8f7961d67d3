"""What did the groups learn? The routing space as a map, the groups in words, a test of their grammar, and edits."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util

import streamlit as st

from analysis import grammar
from analysis.agreement import MEASURES
from analysis.overview import trained_on
from app.ui import links, runs
from app.ui.badges import MEANING, badge_text
from app.ui.groups import map as map_tab
from app.ui.groups import shown as state
from app.ui.groups.agreement import kmeans_of
from app.ui.guard import guarded, plain
from app.ui.view import Needs, Page, View

TABS = {
    "Map": "map",
    "Groups": "table",
    "Is it grammar?": "agreement",
    "By layer": "by_layer",
    "Edit": "edit",
    "Train": "train",
    "Collapse": "collapse",
}
WITHOUT_ROUTER = ("By layer", "Train", "Collapse")
"""Tabs that show every router, or toys of their own."""


def tabs() -> dict[str, str]:
    """The tabs whose modules are there, by name."""
    return {name: f"app.ui.groups.{m}" for name, m in TABS.items() if importlib.util.find_spec(f"app.ui.groups.{m}")}


def render(page: Page) -> None:
    """Draw the page."""
    runs.prepare_in_background(page)
    st.title("What did the groups learn?", anchor=False)
    notices: list[str] = []
    names = list(tabs())
    links.check(state.TAB, names, names[0], notices)
    links.check(state.SIDE, state.SIDE_NAMES, "keys", notices, state.SIDE_NAMES.get)
    links.check(state.MEASURE, MEASURES, "v_measure", notices, MEASURES.get)
    links.check(state.SCOPE, state.SCOPES, "mean", notices, state.SCOPES.get)
    map_tab.from_link(notices)
    if page.trace is not None:
        state.from_link(page.trace, page.source.current, notices)
    page = dataclasses.replace(page, notices=links.keep_notices(notices))
    sentence, control = st.columns([3.4, 1], gap="medium", vertical_alignment="top")
    tab = st.session_state.get(state.TAB) or st.query_params.get(state.TAB)
    # What is recorded by layer has a sentence of its own, of other texts: two would seem to differ.
    if tab != "By layer":
        with sentence:
            _answer(page)
    if state.shown(page) is not None and tab not in WITHOUT_ROUTER:
        with control:
            state.router_control(page.trace)
    with st.container(key="notices"):
        _notices(page)
    opened = st.tabs(names, key=state.TAB, bind="query-params")
    for tab, module in zip(opened, tabs().values(), strict=True):
        if tab.open:
            with tab:
                guarded(lambda module=module: importlib.import_module(module).render(page))
    if page.trace is not None:
        state.to_link(page.trace, page.source.current)
    _explain(page)
    if page.source and page.source.current:
        with st.columns([1, 2])[0]:
            runs.run_box(page)


def _answer(page: Page) -> None:
    shown = state.shown(page)
    if shown is None:
        st.markdown("#### There are no groups here yet.")
        return
    found = None
    if shown.parts is not None:
        clusters, _ = kmeans_of(page, shown)
        which = shown.identity, shown.layer, shown.router, clusters is not None
        found = state.here(*which, shown.trace, shown.parts, clusters)
    word = page.source.kind if page.source.current else "earlier settings"
    p = shown.trace.provenance
    learned = f" {badge_text('trained on')}" if trained_on(shown.trace) else ""
    said = f" {MEANING['trained on'][1]}" if learned else ""
    st.markdown(
        f"#### {plain(grammar.answer(shown.table(), found, shown.where))} {badge_text(word)}{learned}",
        help=plain(f"{grammar.HELP} Run on {p.get('device', '')}, {p.get('time', '')}.{said}"),
    )


def _notices(page: Page) -> None:
    links.show_notices(page.notices)
    source = page.source
    if source and not source.current:
        runs.show_not_run(page)
    if source is None or not source.current:
        with st.columns([1, 1.4])[0]:
            runs.run_box(page)


def _explain(page: Page) -> None:
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            "A router is a small trained map from a token's hidden state to a few numbers. The nearest centroids, "
            "after a bias that balances the groups, name those that the token **is in** (its key) and **looks for** "
            "(its query); far away, a token sees only tokens of groups it looks for. Nobody told the router about "
            "grammar: whether its groups are parts of speech is a question, and the tab “Is it grammar?” tests it."
        )
        keys, queries = (rf"\operatorname{{top}}_{k}(W_{w} h_{i} \cdot C + b)" for k, w, i in ("1kj", "mqi"))
        st.latex(rf"K_j = {keys}, \qquad Q_i = {queries}")
        shown = state.shown(page)
        if shown is not None:
            purest = grammar.purest(shown.table())
            if purest is not None:
                st.button(
                    "Try: select the purest group",
                    key="try_groups",
                    icon=":material/lightbulb:",
                    on_click=_show_group,
                    args=(purest.number,),
                )


def _show_group(group: int) -> None:
    state.pick(group)
    state.open_tab("Map")


VIEW = View(
    key="groups",
    title="Token groups",
    section="See",
    icon=":material/bubble_chart:",
    needs=Needs(model=True, text=True, variant=True, layer=True),
    render=render,
    order=10,
)
