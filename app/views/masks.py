"""Which pairs are computed, and what is lost? One layer's mask over the whole text, then all layers and heads."""

from __future__ import annotations

import dataclasses

import numpy as np
import streamlit as st

from analysis import masks as words
from analysis.captions import what_ran
from analysis.distance import figure as distance_figure
from analysis.distance import sentence as distance_sentence
from analysis.distance import table as distance_table
from analysis.numbers import percent, sig3
from analysis.overview import dense_within
from app.ui import links, runs, selection, settings, texts
from app.ui.badges import badge
from app.ui.export import document, saveable
from app.ui.figure import plot
from app.ui.guard import guarded, plain
from app.ui.mask import heads as heads_tab
from app.ui.mask import held, mask_canvas, mask_data, part, second, state
from app.ui.mask import lost as lost_pairs
from app.ui.mask.data import MAX_SHOWN
from app.ui.strip.data import heads_of, kept_by, mask_name, router_count, router_label, router_of
from app.ui.view import Needs, Page, View
from focus_core.pattern import Pattern
from focus_core.trace import Trace

TABS = ["Layers and heads", "By distance"]
_SUB = {"delta_color": "off", "delta_arrow": "off"}


def render(page: Page) -> None:
    """Draw the page."""
    runs.prepare_in_background(page)
    st.title("Which pairs are computed, and what is lost?", anchor=False)
    trace = page.trace
    if trace is None:
        runs.nothing_yet(page)
        _explain(page)
        return
    page = _opening_link(page, trace)
    layer = min(page.layer, int(trace.provenance["layers"]) - 1)
    router = _chosen_router(page, trace)
    heads = heads_of(trace, page.head, router)
    lost = lost_pairs.lost_in(page, trace, layer, heads)
    runs.headline(page, words.answer(trace, layer, heads, lost), plain(what_ran(trace)))
    with st.container(key="masks_notices"):
        _notices(page, trace)
    # What has not run yet is asked for above the picture; how a run goes on is told below it.
    with st.container(key="masks_run"):
        if not page.source.current:
            with st.columns([1, 1.4])[0]:
                runs.run_box(page)
    _picture(page)
    _figures(page, trace, layer, heads, lost)
    everywhere, distance = st.tabs(TABS, key="masks_tab", on_change="rerun", bind="query-params")
    with everywhere:
        if everywhere.open:
            guarded(lambda: heads_tab.render(page, trace, layer))
    with distance:
        if distance.open:
            guarded(lambda: _distance(page, trace, layer, heads))
    _explain(page)


# ---- link and state -------------------------------------------------------------------------------------------------


def _opening_link(page: Page, trace: Trace) -> Page:
    """Take the router, the held pair and the part of the mask that the opening link names."""
    notices: list[str] = []
    links.check("router", range(router_count(trace)), 0, notices, lambda r: router_label(trace, r), bound=False)
    links.check("masks_tab", TABS, TABS[0], notices)
    if page.source and page.source.current:
        state.from_link(trace, notices)
    return dataclasses.replace(page, notices=links.keep_notices(notices))


def _chosen_router(page: Page, trace: Trace) -> int:
    """The router that is shown; of several, the control's choice where all heads are meant."""
    return router_of(trace, page.head, selection.shown_router())


# ---- picture --------------------------------------------------------------------------------------------------------


@st.fragment
def _picture(page: Page) -> None:
    """The mask and what belongs to the held pair: only this part reruns while one looks around."""
    guarded(lambda: _mask_and_held(page))


def _mask_and_held(page: Page) -> None:
    trace = page.trace
    layer = min(page.layer, int(trace.provenance["layers"]) - 1)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        _badges(page, trace)
        if router_count(trace) > 1 and page.head is None:
            selection.keep_router(router_count(trace))
            st.selectbox(
                "Router",
                range(router_count(trace)),
                format_func=lambda r: router_label(trace, r),
                key="router",
                label_visibility="collapsed",
                width=210,
                on_change=lambda: st.session_state.update(_mask_whole=True),
            )
            if st.session_state.pop("_mask_whole", False):
                st.rerun()
        router = _chosen_router(page, trace)
        options = second.options(page, trace, router)
        chosen = second.choose(options)
    heads = heads_of(trace, page.head, router)
    pin, view = state.current(trace)
    name, label, lost, said = _name(trace), "", None, ""
    pattern = trace.pattern(layer)
    # A container that is always there keeps the canvas's place among the elements, and so its view.
    with st.container(key="masks_over"):
        other = second.pattern_of(page, trace, options[chosen], layer) if chosen else None
        if other is not None:
            found = words.overlay(pattern, other, heads[0], heads[0])
            label = options[chosen].label
            if options[chosen].router is not None:
                name, label = (mask_name(trace, which) for which in (router, options[chosen].router))
            st.markdown(words.overlay_answer(found, name, label) + _their_mass(trace, layer, heads, other))
            shares = {k: getattr(found, k) for k in ("both", "first", "second", "neither")}
            if found.rows < found.count:
                said = f"Shares from {found.rows:,} of {found.count:,} rows."
        else:
            lost, said = lost_pairs.drawn(page, trace, layer, heads, pin, view)
            shares = words.shares(pattern, heads[0], lost and lost_pairs.lost_in(page, trace, layer, heads))
            if f"queries.{layer}" not in trace.arrays and trace.provenance["variant"] != "dense":
                _not_recorded(trace, layer)
    data = mask_data(
        trace,
        layer,
        heads[0],
        label=name,
        other=other,
        other_label=label,
        lost=lost,
        shares=shares,
        said=said,
        select=st.session_state.get("_mask_select"),
        view=st.session_state.get("_mask_look"),
    )
    title = f"Mask of {name}, layer {layer}" + (f", over {label}" if label else "")
    with saveable(
        key=state.KEY,
        name=title,
        page=lambda: document(title, part({**data, "select": [*pin, 1] if pin else None}), note=what_ran(trace, layer)),
        rows=lambda: words.row_table(trace, layer, heads[0], lost),
    ):
        drawn = mask_canvas(data, key=state.KEY)
    held_now = drawn["pinned"]
    state.keep(held_now, drawn["view"], link=bool(page.source and page.source.current))
    links.write("router", str(router) if router and page.head is None else "")
    if held_now and max(held_now) < len(trace):
        held.render(trace, layer, heads, int(held_now[0]), int(held_now[1]))


def _their_mass(trace: Trace, layer: int, heads: list[int], other: Pattern) -> str:
    theirs = words.mass_on(trace, layer, heads, other)
    if theirs is None:
        return ""
    # The number of the tile below, and not one that differs from it by rounding.
    recorded = trace.arrays.get("mass_kept")
    own = (
        words.mass_on(trace, layer, heads, trace.pattern(layer)) if recorded is None else recorded[layer, heads].mean()
    )
    mine = float(own)
    return f" Their pairs hold {percent(mine)} and {percent(theirs)} of dense attention."


def _not_recorded(trace: Trace, layer: int) -> None:
    """Which layers' lost pairs are known, where this one's are not."""
    have = trace.attention_layers
    note = str(trace.provenance.get("note") or "")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"What is lost in layer {layer} is not in this recording. {note}".strip(), width="content")
        if have:
            near = min(have, key=lambda other: abs(other - layer))
            if st.button(f"Show layer {near}", key="masks_near", on_click=_show_layer, args=(near,)):
                st.rerun()


def _show_layer(layer: int) -> None:
    st.session_state["layer"] = layer


def _name(trace: Trace) -> str:
    return settings.variant_label(str(trace.provenance["variant"]))


def _beyond(trace: Trace, layer: int) -> str:
    window = trace.provenance["native"][layer] or trace.provenance["window"]
    where = "Beyond the window pairs" if window else "Pairs"
    return f"{where} are kept by {kept_by(trace)} alone"


def _distance(page: Page, trace: Trace, layer: int, heads: list[int]) -> None:
    found = words.by_distance(trace, layer, heads)
    window = int(trace.provenance["native"][layer] or trace.provenance["window"])
    st.markdown(f"**{distance_sentence(found, window)}**")
    st.caption(
        f"{_beyond(trace, layer)}: were that by chance, the kept share of dense attention "
        "would be the kept share of pairs."
        + ("" if found.rows == len(trace) else f" From {found.rows:,} of {len(trace):,} rows.")
    )
    plot(
        distance_figure(found, window),
        key="by_distance",
        alt=f"Dense attention and kept pairs by distance, layer {layer}, {words.heads_text(heads)}",
        name=f"By distance, layer {layer}, {words.heads_text(heads)}",
        rows=lambda: distance_table(found),
        note=what_ran(trace, layer),
    )


# ---- beside it ------------------------------------------------------------------------------------------------------


def _notices(page: Page, trace: Trace) -> None:
    links.show_notices(page.notices)
    p = trace.provenance
    if page.source and not page.source.current:
        runs.show_not_run(page)
    if p["variant"] == "dense":
        st.info("Dense attention drops nothing: choose another attention to see a mask.", icon=":material/grid_on:")
        st.button("Take Focus", key="masks_focus", on_click=runs.use_variant, args=(settings.DEFAULT,))
    elif len(trace) <= (reach := dense_within(trace)):
        st.info(
            f"This text has {len(trace):,} tokens, no more than the window and first tokens together ({reach:,}): "
            "every token sees all before it, so this is dense attention by definition.",
            icon=":material/straighten:",
        )
        smaller = max(1, len(trace) // 8)
        with st.container(horizontal=True):
            st.button("Take a 1,024-token passage", key="masks_text", on_click=runs.use_text, args=(texts.names()[0],))
            st.button(
                f"Use a window of {smaller} (not the trained one)",
                key="masks_window",
                on_click=settings.set_field,
                args=(page.variant, page.adapter, "window", smaller),
            )
    if len(trace) > MAX_SHOWN:
        st.caption(f"The mask shows the first {MAX_SHOWN:,} of {len(trace):,} tokens; the figures count all.")


def _badges(page: Page, trace: Trace) -> None:
    source, p = page.source, trace.provenance
    word = source.kind if source.current else "earlier settings"
    badge(word, f"{p.get('time', '')} on {p.get('device', '')}, {p.get('dtype', '')}.")
    if settings.off_training(p["variant"], p.get("adapter"), p.get("config") or {}):
        badge("not as trained")


def _figures(page: Page, trace: Trace, layer: int, heads: list[int], lost: words.LostPairs | None) -> None:
    p = trace.provenance
    one, two, three, run = st.columns(4, gap="medium")
    if page.source.current:
        with run:
            runs.run_box(page)
    which = f"{words.heads_text(heads)}, layer {layer}"
    kept = trace.arrays["kept_pairs"]
    one.metric(
        "Pairs computed",
        percent(float(kept[layer, heads].mean())),
        f"{percent(float(kept.mean()))} over all layers",
        help=f"Of all causal query-key pairs; {which}.",
        **_SUB,
    )
    if (mass := trace.arrays.get("mass_kept")) is not None:
        two.metric(
            "Dense attention kept",
            percent(float(mass[layer, heads].mean())),
            f"{percent(float(mass.mean()))} over all layers",
            help=f"Share of the dense model's attention that lies on the computed pairs; {which}.",
            **_SUB,
        )
    if lost is not None and p["variant"] != "dense":
        each = len(lost.keys) / max(1, len(lost.rows))
        three.metric(
            "Lost keys a query",
            sig3(each),
            f"with {percent(lost.lost_mass)} of its attention",
            help="Dropped keys among those that together hold 90 % of the query's dense attention; mean over "
            f"{len(lost.rows):,} queries, {which}.",
            **_SUB,
        )


def _explain(page: Page) -> None:
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            "Every row is a token that looks, every column a token before it: dense attention computes the whole "
            "triangle. Focus computes the neighbours (the band), the first tokens (the stripe at the left) and the "
            "pairs whose groups fit (blue). A grey pair costs nothing, and an orange one should not have been dropped: "
            "it is among those that hold 90 % of the query's dense attention."
        )
        st.latex(
            r"\text{lost}(i) = \{\, j \in S_i : \neg\,\text{keep}(i,j) \,\}, \quad "
            r"S_i = \text{smallest set with} \sum_{j \in S_i} p_{ij} \ge 0.9"
        )
        trace = page.trace
        if trace is not None and trace.attention_layers and trace.provenance["variant"] != "dense":
            st.button(
                "Try: hold the pair that dense attention misses most",
                key="masks_try",
                icon=":material/lightbulb:",
                on_click=_hold_worst,
                args=(page,),
            )


def _hold_worst(page: Page) -> None:
    """Hold the lost pair with the most dense attention, at the shown layer or the nearest that was recorded."""
    trace = page.trace
    layer = min(page.layer, int(trace.provenance["layers"]) - 1)
    layer = min(trace.attention_layers, key=lambda other: abs(other - layer))
    lost = lost_pairs.lost_in(page, trace, layer, heads_of(trace, page.head, _chosen_router(page, trace)))
    st.session_state["layer"], st.session_state["over"] = layer, second.NONE
    if not len(lost.keys):
        return
    row = np.repeat(lost.rows, np.diff(lost.start))
    late = np.where(row >= len(trace) // 4, lost.mass, 0)
    worst = int(np.argmax(late))
    state.hold(int(row[worst]), int(lost.keys[worst]))
    state.look_at(0, 0, min(len(trace), MAX_SHOWN))


VIEW = View(
    key="masks",
    title="Masks and sparsity",
    section="See",
    icon=":material/grid_on:",
    needs=Needs(model=True, text=True, variant=True, layer=True, head=True),
    render=render,
    order=20,
)
