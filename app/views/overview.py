"""Does every token need to see every other? The text itself, coloured by group, with what each token still sees."""

from __future__ import annotations

import dataclasses

import numpy as np
import streamlit as st

from analysis import overview as words
from analysis.captions import settings as settings_text
from analysis.captions import what_ran
from analysis.numbers import percent, sig3, spread
from analysis.tables import token_rows
from app.ui import links, runs, selection, settings, texts
from app.ui.badges import badge
from app.ui.bars import Bar, bars, shown
from app.ui.export import document, saveable
from app.ui.guard import guarded, plain
from app.ui.strip import part as strip_part
from app.ui.strip import token_strip
from app.ui.strip.data import (
    MAX_SHOWN,
    Lost,
    heads_of,
    kept_by,
    lost_keys,
    router_count,
    router_label,
    router_of,
    strip_data,
)
from app.ui.view import Needs, Page, View
from focus_core.trace import Trace

KEY = "overview_strip"
PICTURES = {"groups": "Who sees whom", "damage": "Where it hurts"}
_SUB = {"delta_color": "off", "delta_arrow": "off"}


def render(page: Page) -> None:
    """Draw the page."""
    runs.prepare_in_background(page)
    st.title("Does every token need to see every other?", anchor=False)
    trace = page.trace
    if trace is None:
        runs.nothing_yet(page)
        _explain(page)
        return
    page = _opening_link(page, trace)
    found = words.figures(trace)
    runs.headline(page, words.answer(found), plain(_what_ran(trace)))
    # A container of its own keeps the strip's place among the elements, and so its DOM and scroll, when notices come.
    with st.container(key="notices"):
        _notices(page, trace)
    picture, numbers = st.columns([3.4, 1], gap="medium")
    with numbers:
        _figures(page, trace, found)
        runs.run_box(page)
    with picture:
        _picture(page)
    _explain(page)


def _opening_link(page: Page, trace: Trace) -> Page:
    """Take the router and the held token that the opening link names."""
    notices: list[str] = []
    links.check("router", range(router_count(trace)), 0, notices, lambda r: router_label(trace, r), bound=False)
    links.check("picture", PICTURES, "groups", notices, PICTURES.get)
    # Counted as in the text, from 1; held once the text that the link means is the one shown.
    raw = links.opening("tok") if page.source and page.source.current else ""
    if token := links.number(raw, min(len(trace), MAX_SHOWN)):
        if KEY in st.session_state:
            hold(token - 1)
            st.session_state["_asked_pin"] = token - 1
        else:
            st.session_state["_pin"] = token - 1
    elif raw:
        notices.append(f"In the link, token {raw[:60]} does not exist; none is held.")
    return dataclasses.replace(page, notices=links.keep_notices(notices))


def _what_ran(trace: Trace) -> str:
    p = trace.provenance
    return (
        f"{p['model']} on {len(trace):,} tokens, {p['variant']}: {settings_text(p.get('config'), p.get('adapter'))}; "
        f"means over {p['layers']} layers and {p['heads']} heads."
    )


def _notices(page: Page, trace: Trace) -> None:
    links.show_notices(page.notices)
    source = page.source
    if source and not source.current:
        runs.show_not_run(page)
    if source and source.recorded is not None and (moved := words.difference(trace, source.recorded)):
        st.warning(moved, icon=":material/difference:")
    if sentence := words.partial_warning(trace):
        left, right = st.columns([4, 1], vertical_alignment="center")
        left.warning(f"{sentence} Try a shipped passage, or another model.", icon=":material/translate:")
        right.button("Take a passage", key="partial_text", on_click=runs.use_text, args=(texts.names()[0],))
    if len(trace) <= (reach := words.dense_within(trace)):
        _too_short(page, trace, reach)
    if len(trace) > MAX_SHOWN:
        st.caption(f"The strip shows the first {MAX_SHOWN:,} of {len(trace):,} tokens; the figures count all.")


def _title(trace: Trace) -> str:
    name = trace.provenance.get("text_name")
    return f"“{name}”" if name else "your text"


def _too_short(page: Page, trace: Trace, reach: int) -> None:
    st.info(
        f"This text has {len(trace):,} tokens, no more than the window and first tokens together ({reach:,}): every "
        "token sees all before it, so this is dense attention by definition.",
        icon=":material/straighten:",
    )
    smaller = max(1, len(trace) // 8)
    with st.container(horizontal=True):
        st.button("Take a 1,024-token passage", key="short_text", on_click=runs.use_text, args=(texts.names()[0],))
        st.button(
            f"Use a window of {smaller} (not the trained one)",
            key="short_window",
            on_click=settings.set_field,
            args=(page.variant, page.adapter, "window", smaller),
        )


def _figures(page: Page, trace: Trace, found: words.Figures) -> None:
    source = page.source
    word = source.kind if source.current else "earlier settings"
    p = trace.provenance
    detail = f"{p.get('time', '')} on {p.get('device', '')}, {p.get('dtype', '')}."
    with st.container(horizontal=True, gap="small"):
        badge(word, detail)
        if settings.off_training(p["variant"], p.get("adapter"), p.get("config") or {}):
            badge("not as trained")
        if words.trained_on(trace):
            badge("trained on")
    layer = min(page.layer, len(trace.arrays["kept_pairs"]) - 1)
    here = trace.arrays["kept_pairs"][layer]
    here = float(here.mean() if page.head is None else here[page.head])
    st.metric(
        "Pairs computed",
        percent(found.kept_pairs),
        f"{percent(here)} in layer {layer}",
        help="Of all causal query-key pairs, mean over heads.",
        **_SUB,
    )
    if found.mass_kept is not None:
        mass = trace.arrays["mass_kept"][layer]
        mass = float(mass.mean() if page.head is None else mass[page.head])
        st.metric(
            "Dense attention kept",
            percent(found.mass_kept),
            f"{percent(mass)} in layer {layer}",
            help="Share of the dense model's attention that lies on the computed pairs.",
            **_SUB,
        )
    st.metric(
        "Perplexity against dense",
        words.change_text(found.change) if found.judged else "–",
        f"{spread(found.spread)}, {found.scored:,} tokens"
        if found.judged
        else f"too short to judge: {found.scored} token{'' if found.scored == 1 else 's'}",
        help=f"How much worse (+) or better (−) the model predicts this text: {sig3(found.dense_ppl)} dense, "
        f"{sig3(found.ppl)} with these pairs only. ± is the standard error over this text's tokens.",
        **_SUB,
    )


@st.fragment
def _picture(page: Page) -> None:
    """The strip and what belongs to the held token: only this part reruns when a token is held."""
    guarded(lambda: _strip_and_held(page))


def _strip_and_held(page: Page) -> None:
    trace = page.trace
    p = trace.provenance
    layer = min(page.layer, int(p["layers"]) - 1)
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        mode = st.segmented_control(
            "Picture",
            list(PICTURES),
            default="groups",
            required=True,
            format_func=PICTURES.get,
            key="picture",
            bind="query-params",
            label_visibility="collapsed",
        )
        router = 0
        if router_count(trace) > 1 and page.head is None:
            selection.keep_router(router_count(trace))
            router = st.selectbox(
                "Router",
                range(router_count(trace)),
                format_func=lambda r: router_label(trace, r),
                key="router",
                label_visibility="collapsed",
                width=210,
            )
            each = int(trace.provenance["heads"]) // int(trace.provenance["kv_heads"])
            st.caption(
                "Mask" if trace.has_blocks else "Router",
                width="content",
                help="Every query head keeps blocks of its own."
                if trace.has_blocks
                else f"A KV head holds the keys and values that {each} query head{'s share' if each > 1 else ' uses'}; "
                "its router is the small trained map that puts each token into groups for it.",
            )
    router = router_of(trace, page.head, router)
    pin = _pin(trace)
    query = None if pin is None else max(0, pin - 1) if mode == "damage" else pin
    lost = None if query is None else lost_keys(trace, layer, query, page.head, router)
    data = strip_data(trace, layer, router=router, mode=mode or "groups", lost=lost, select=_select(trace))
    name = f"{_title(trace).strip('“”')}, {p['variant']}, layer {layer}"
    with saveable(
        key=KEY,
        name=name,
        page=lambda: document(name, strip_part(data), note=what_ran(trace, layer)),
        rows=lambda: token_rows(trace, layer, router),
    ):
        after = token_strip(data, key=KEY, held=st.session_state.get("_held_first"))
    st.session_state["_pin"] = after
    links.write("router", str(router) if router and page.head is None else "")
    if page.source and page.source.current:
        # What the strip was asked to hold stays in the address until the browser has answered.
        held = st.session_state.get("_asked_pin") if after is None else after
        links.write("tok", "" if held is None else str(held + 1))
    if after is not None or not (page.source and page.source.current):
        st.session_state.pop("_asked_pin", None)
    own = trace.provenance["native"][layer]
    if own is not None:
        st.caption(f"Layer {layer} is the model's own sliding window of {own:,} tokens and stays as it is.")
    if after is None:
        if mode == "damage":
            _hurt(trace)
        else:
            st.caption("← → move from token to token, Enter holds one, Esc lets go.")
        return
    _held(page, trace, layer, router, after, mode, lost if after == pin else None)


def _pin(trace: Trace) -> int | None:
    state = st.session_state.get(KEY)
    pin = state.get("pinned") if state else st.session_state.get("_pin")
    return int(pin) if pin is not None and int(pin) < min(len(trace), MAX_SHOWN) else None


def _select(trace: Trace) -> tuple[int, int] | None:
    """A token that the page itself wants held: from a button, or again after another page was open."""
    if KEY not in st.session_state:
        # Whoever leaves before the browser has answered leaves with the token held.
        pin = st.session_state["_held_first"] = _pin(trace)
        if pin is None:
            st.session_state.pop("_select", None)
        else:
            hold(pin)
    return st.session_state.get("_select")


def hold(token: int) -> None:
    """Hold a token in the strip (a button's callback)."""
    st.session_state["_select"] = (token, st.session_state.get("_select", (0, 0))[1] + 1)


def _held(page: Page, trace: Trace, layer: int, router: int, token: int, mode: str, lost: Lost | None) -> None:
    query = max(0, token - 1) if mode == "damage" else token
    lost = lost or lost_keys(trace, layer, query, page.head, router)
    heads = heads_of(trace, page.head, router)
    which = f"head {heads[0]}" if len(heads) == 1 else f"the mean of heads {heads[0]} to {heads[-1]}"
    if mode == "damage" and token > 0:
        change = float(trace.arrays["dense_nll"][token - 1] - trace.arrays["nll"][token - 1])
        turned = "less" if change < 0 else "more"
        st.markdown(
            f"It became **{abs(change):.2f} nats {turned} likely** than with dense attention. It is predicted from the "
            "token before it; this is what that token could draw on in this layer.",
            help=words.nats_help(change),
        )
    if lost is None:
        _not_recorded(trace, layer)
        return
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown(f"**Where its dense attention went** ({which}, layer {layer})")
        bars(_rows(trace, lost, np.argsort(-lost.mass, kind="stable")[:8]))
    with right:
        count = f"{len(lost.keys)} token{'s' if len(lost.keys) > 1 else ''}"
        said = f"{count} with {percent(lost.lost_share)} of its attention" if len(lost.keys) else "nothing"
        st.markdown(
            f"**What was lost**: {said}",
            help="A dropped token among those that together hold 90 % of this query's dense attention.",
        )
        bars(_rows(trace, lost, lost.keys[:8]), empty="All tokens that together hold 90 % of its attention are kept.")
        st.caption(f"All dropped tokens together held {percent(lost.share)}.")


def _not_recorded(trace: Trace, layer: int) -> None:
    have = trace.attention_layers
    st.caption(
        f"Where dense attention went in layer {layer} is not in this recording."
        + (f" {trace.provenance['note']}" if trace.provenance.get("note") else "")
    )
    if have:
        near = min(have, key=lambda other: abs(other - layer))
        if st.button(f"Show layer {near}", key="near_layer", on_click=_show_layer, args=(near,)):
            st.rerun()


def _show_layer(layer: int) -> None:
    st.session_state["layer"] = layer


def _rows(trace: Trace, lost: Lost, keys: np.ndarray) -> list[Bar]:
    p, gone = trace.provenance, set(lost.keys.tolist())
    sinks = p.get("sinks") or 0
    rows = []
    for key in map(int, keys):
        if not lost.kept[key]:
            kind = "lost" if key in gone else "dropped"
            note = kind
        elif key < sinks:
            kind, note = "sink", "first token"
        elif lost.query - key < p["window"]:
            kind, note = "window", "itself" if key == lost.query else "nearby"
        else:
            kind, note = "kept", f"by {kept_by(trace)}"
        rows.append(Bar(trace.tokens[key], f"{key + 1:,}", float(lost.mass[key]), kind, note))
    return rows


def _hurt(trace: Trace) -> None:
    worst = words.most_hurt(trace)
    if sentence := words.untouched(trace):
        st.caption(sentence)
    if not worst:
        st.caption("No token became less likely.")
        return
    st.markdown("**Hurt most** (change of log-likelihood in nats)", help=words.nats_help(worst[0][1]))
    with st.container(horizontal=True, gap="small"):
        for token, change in worst:
            if token < MAX_SHOWN:
                label = plain(shown(trace.tokens[token], 16))
                st.button(f"{label} −{abs(change):.2f}", key=f"hurt_{token}", on_click=hold, args=(token,))


def _explain(page: Page) -> None:
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            "In dense attention every token looks at all earlier ones. Focus learns a few groups; a token looks at its "
            "neighbours, at the first tokens, and far away only at tokens of the groups it looks for. The model's own "
            "weights stay as they were, so what you see is what the same model does with fewer pairs."
        )
        st.latex(
            r"\text{keep}(i,j) \iff j \le i \;\wedge\; "
            r"\big(i-j < w \;\vee\; j < s \;\vee\; Q_i \cap K_j \neq \emptyset\big)"
        )
        trace = page.trace
        if trace is not None and trace.attention_layers:
            st.button(
                "Try: hold the token that loses most",
                key="try_lost",
                icon=":material/lightbulb:",
                on_click=_hold_most_lost,
                args=(page,),
            )


def _hold_most_lost(page: Page) -> None:
    trace = page.trace
    layer = min(page.layer, int(trace.provenance["layers"]) - 1)
    if layer not in trace.attention_layers:
        layer = min(trace.attention_layers, key=lambda other: abs(other - layer))
        st.session_state["layer"] = layer
    router = router_of(trace, page.head, selection.shown_router())
    shown_tokens = min(len(trace), MAX_SHOWN)
    queries = np.unique(np.linspace(shown_tokens // 4, shown_tokens - 1, 48).astype(int))
    best = max(queries.tolist(), key=lambda q: lost_keys(trace, layer, q, page.head, router).share)
    st.session_state["picture"] = "groups"
    hold(best)


VIEW = View(
    key="overview",
    title="Overview",
    section="Start",
    icon=":material/visibility:",
    needs=Needs(model=True, text=True, variant=True, layer=True, head=True),
    render=render,
    order=0,
)
