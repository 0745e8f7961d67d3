"""Which dimensions carry the attention? Two tokens' sparse codes, how they overlap, and what that costs and saves."""

from __future__ import annotations

import dataclasses

import numpy as np
import streamlit as st

from analysis.captions import what_ran
from analysis.features.codes import head_of
from app.ui import links, runs
from app.ui.badges import badge
from app.ui.features import cost, error, fewer, maps, picture, source, state, tile, use
from app.ui.features.measured import find
from app.ui.features.shown import Shown
from app.ui.guard import guarded, plain
from app.ui.recorded import document
from app.ui.view import Needs, Page, View
from focus_core.trace import Trace

TABS = ["Which survive", "One tile, step by step", "Error by k", "Cost", "With fewer pairs"]


def render(page: Page) -> None:
    """Draw the page."""
    page = source.with_source(page)
    runs.prepare_in_background(page)
    st.title("Which dimensions carry the attention?", anchor=False)
    if page.trace is None:
        runs.nothing_yet(page)
        _explain(None)
        return
    sentence, notice_box = st.container(), st.container(key="features_notices")
    notices: list[str] = []
    shown = _shown(page, page.trace, notices)
    found, weights = picture.overlap_of(shown)
    with sentence:
        st.markdown(f"#### {picture.answer(shown, found, weights)}", help=plain(what_ran(shown.trace, shown.layer)))
    with notice_box:
        _notices(shown, notices)
    picture.render(shown, found, weights)
    _tabs(shown)
    _explain(shown)


def _shown(page: Page, trace: Trace, notices: list[str]) -> Shown:
    layer, rotary = source.layer_of(page, trace), source.rotary_of(trace)
    head = min(page.head or 0, int(trace.provenance["heads"]) - 1)
    codes, adapter = state.controls(page, int(trace.provenance["head_dim"]), rotary, notices)
    data = head_of(trace, layer, head)
    assert data is not None
    if (mapped := maps.of_head(page.model, adapter, layer, head)) is not None:
        data = data.mapped(*mapped)
    query, key = state.pair(trace, data.plain or data, notices)
    if page.source and page.source.current:
        first = state.first_pair(trace, data.plain or data)
        links.write("codes", "" if (query, key) == first else f"{query + 1}-{key + 1}")
    return Shown(page, trace, layer, head, rotary, codes, adapter, data, query, key)


def _notices(shown: Shown, notices: list[str]) -> None:
    page, trace = shown.page, shown.trace
    links.check("features_tab", TABS, TABS[0], notices)
    links.show_notices(dict.fromkeys([*page.notices, *links.keep_notices(notices)]))
    assert page.source is not None
    if source.opened_lacks(page):
        st.info("What was opened holds no queries and keys: shown is another run.", icon=":material/folder_open:")
    elif not page.source.current:
        runs.show_not_run(page, attention=False)
    said = []
    if shown.layer != page.layer:
        have = ", ".join(map(str, trace.attention_layers))
        said.append(f"Layer {page.layer} is not in this recording, which has layers {have}; shown is {shown.layer}.")
    if trace.provenance["native"][shown.layer] is not None:
        said.append("This layer has a window of its own: SFA leaves it dense, and these codes are not used.")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        p = trace.provenance
        word = page.source.kind if page.source.current else "earlier settings"
        badge(word, f"{p.get('time', '')} on {p.get('device', '')}, {p.get('dtype', '')}.")
        if said:
            st.caption(" ".join(said), width="content")


def _tabs(shown: Shown) -> None:
    request = error.request_of(shown.page, shown.maps)
    # What was recorded is the shipped model's; another model's layers are measured here.
    ships = document(f"features-{shown.page.model}.json") if "/" not in shown.page.model else None
    measured = find(shown.page, error.RUN, request, ships)
    draw = [
        lambda: use.render(shown, measured),
        lambda: tile.render(shown),
        lambda: error.render(shown, measured),
        lambda: cost.render(shown, measured),
        fewer.render,
    ]
    for tab, make in zip(st.tabs(TABS, key="features_tab", on_change="rerun", bind="query-params"), draw, strict=True):
        with tab:
            if tab.open:
                guarded(make)


def _explain(shown: Shown | None) -> None:
    many = f", {shown.data.queries.shape[1]} in this model," if shown is not None else ""
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            f"A query and a key are lists of numbers{many} and their score is the sum of all products. "
            "Sparse feature attention keeps only the largest few of each (blue), so that a product is left where both "
            "keep the same dimension; where they share none, the score is 0. A cache then holds the few numbers and "
            "which dimensions they are, and not the whole key."
        )
        st.latex(r"s_{ij} = \frac{1}{\sqrt{d}} \sum_{u \in S_i \cap S_j} q_{iu}\, k_{ju}, \qquad |S_i| = |S_j| = k")
        if shown is not None:
            st.button(
                "Try: keep 8, and look at the key that this query loses most",
                key="features_try",
                icon=":material/lightbulb:",
                on_click=_lose,
                args=(shown,),
            )


def _lose(shown: Shown) -> None:
    """Keep few features and pick the key whose attention falls most."""
    dim = shown.data.queries.shape[1]
    few = min(8, max(2, dim // 8 * 2))
    st.session_state[state.K] = few
    less = dataclasses.replace(shown, codes=dataclasses.replace(shown.codes, features=few))
    weights = picture.overlap_of(less)[1]
    state.keep(shown.trace, shown.query, int(np.argmax(weights.dense - weights.sparse)))


VIEW = View(
    key="features",
    title="Features",
    section="Methods",
    icon=":material/blur_linear:",
    needs=Needs(model=True, text=True, layer=True, head=lambda _: 0),
    render=render,
    order=20,
)
