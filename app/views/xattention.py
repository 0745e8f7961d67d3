"""How do a few diagonals find the blocks that matter? XAttention's block scores, its cut, and what it misses."""

from __future__ import annotations

import importlib
from dataclasses import replace

import streamlit as st

from analysis.captions import what_ran
from analysis.xattention import words
from analysis.xattention.head import Head, Setting
from analysis.xattention.recall import best_at
from analysis.xattention.scores import MODES
from app.ui import files, links, runs, selection, sidebar
from app.ui.badges import badge
from app.ui.export import document, saveable
from app.ui.guard import fragment, guarded, plain
from app.ui.view import Needs, Page, View
from app.ui.xattention import source, state
from app.ui.xattention.blocks import blocks_data, canvas, part

_FORCED = 2
"""Blocks of a row that are kept whatever their score."""


def render(page: Page) -> None:
    """Draw the page."""
    st.title("How do a few diagonals find the blocks that matter?", anchor=False)
    notices: list[str] = []
    state.from_link(notices)
    page = source.with_source(page)
    page = replace(page, notices=links.keep_notices(notices))
    _prepare(page)
    with st.sidebar:
        files.run_files(page)
    links.write("run", selection.link_of(page.engine, page.request(), page.source))
    links.show_notices(page.notices)
    if page.trace is None:
        runs.nothing_yet(page)
    else:
        fragment(_picture, page)
    opened = st.tabs(list(state.TABS), key=state.TAB, on_change="rerun", bind="query-params")
    for tab, module in zip(opened, state.TABS.values(), strict=True):
        if tab.open:
            with tab:
                guarded(lambda module=module: importlib.import_module(f"app.ui.xattention.{module}").render(page))
    _explain(page)


def _prepare(page: Page) -> None:
    """Load the model, and run the dense pass of a shipped text, while the recording is looked at."""
    if page.source is not None and page.source.kind == "recorded" and source.ships(page):
        runs.prepare_in_background(replace(page, source=replace(page.source, current=True)))
    else:
        runs.prepare_in_background(page)


# ---- picture --------------------------------------------------------------------------------------------------------


def _picture(page: Page) -> None:
    """The answer, the controls, and the canvas: only this part reruns while one looks around."""
    trace = page.trace
    found = state.shown_head(page)
    if found is None:
        _nothing_here(page, min(page.layer, int(trace.provenance["layers"]) - 1))
        return
    layer, head = found
    above = st.container()
    _controls(page, head)
    # A link's values are known once its widgets are drawn.
    shown = state.head_of(page.source, layer, head, state.setting())
    with above:
        _answer(page, shown, layer, head)
    at = state.picked(shown)
    state.write(shown, at)
    title = f"Blocks of layer {layer}, head {head}"
    data = blocks_data(shown, trace.tokens, at, state.serial())
    with saveable(
        key=state.KEY,
        name=title,
        page=lambda: document(title, part(data), note=what_ran(trace, layer)),
        rows=shown.table,
    ):
        canvas(data, key=state.KEY)


def _answer(page: Page, shown: Head, layer: int, head: int) -> None:
    setting = shown.setting
    best = best_at(shown.true, shown.count, setting.block, setting.voters, shown.pairs)
    said = words.answer(
        layer=layer,
        head=head,
        stride=setting.stride,
        mode=setting.mode,
        pairs=shown.pairs,
        mass=shown.mass,
        best=max(best, shown.mass),
    )
    st.markdown(f"#### {said}", help=plain(what_ran(page.trace)))
    if shown.blocks <= _FORCED:
        long = "one block" if shown.blocks == 1 else f"{shown.blocks} blocks"
        st.caption(
            f"The text is {long} long. The first one and a row's own are always kept: nothing is left to choose."
        )


def _controls(page: Page, head: int) -> None:
    """The few controls of the picture; a change of what is scored draws the tabs anew too."""
    if st.session_state.pop("_xa_whole", False):
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium", key="xa_controls"):
        _choice("Stride", state.STRIDES, state.STRIDE, Setting.stride, "1 score in so many is read.")
        _choice("Block", state.BLOCKS, state.BLOCK, Setting.block, "Tokens a side of what is kept or dropped as one.")
        st.slider(
            "Threshold",
            0.0,
            1.0,
            Setting.threshold,
            0.01,
            key=state.THRESHOLD,
            bind="query-params",
            width=190,
            on_change=_moved,
            help="Share of a row's sampled attention that its kept blocks hold.",
        )
        st.selectbox(
            "Scorer",
            MODES,
            key=state.MODE,
            format_func=str.capitalize,
            bind="query-params",
            width=150,
            on_change=_changed,
            help="Which scores are read. The oracle reads all of them: it shows what could be had, at dense cost.",
        )
        st.selectbox(
            "Whose queries choose",
            list(state.VOTERS_NAMES),
            format_func=state.VOTERS_NAMES.get,
            key=state.VOTERS,
            bind="query-params",
            width=200,
            on_change=_changed,
            help="As published, a block's own queries choose its keys, so later tokens of the block have a say in what "
            "its first ones see. Here the queries of the block before it choose, and decoding runs the same.",
        )
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        source_, p = page.source, page.trace.provenance
        badge(source_.kind, f"{p.get('time', '')} on {p.get('device', '')}.")
        if state.setting().voters == "own":
            badge("leaks", "The published form.")
        if head != page.head or sidebar.head_is_given():
            st.caption(
                f"Every head keeps its own blocks: this is head {head}, which keeps fewest. The sidebar has the others."
            )
    if not page.source.current:
        name, model = p.get("text_name") or "another text", runs.model_label(str(p["model"]))
        of = "" if p["model"] == page.model else f" on {model}"
        said = f"Your selection has not run yet: shown are the blocks of “{name}”{of}."
        st.info(plain(said), icon=":material/history:")
        with st.columns([1, 1.4])[0]:
            runs.run_box(page)


def _choice(label: str, options: tuple[int, ...], key: str, default: int, help: str) -> None:
    st.segmented_control(
        label,
        options,
        default=default,
        required=True,
        key=key,
        bind="query-params",
        on_change=_changed,
        help=help,
    )


def _changed() -> None:
    st.session_state["_xa_whole"] = True


def _moved() -> None:
    """Only the tab that marks the threshold follows the slider."""
    st.session_state["_xa_whole"] = (st.session_state.get(state.TAB) or state.FIRST) == state.FIRST


def _nothing_here(page: Page, layer: int) -> None:
    """Say why this layer has no blocks to show, and offer the nearest that has."""
    p, have = page.trace.provenance, page.trace.attention_layers
    if p["native"][layer] is not None:
        own = int(p["native"][layer])
        st.markdown(f"#### Layer {layer} is the model's own sliding window of {own:,} tokens: no blocks are chosen.")
        _offer([at for at in have if p["native"][at] is None], layer)
        return
    st.markdown(f"#### The queries and keys of layer {layer} are not in this recording.")
    note = str(p.get("note") or "")
    st.caption(f"It has those of {'layers ' + ', '.join(map(str, have)) if have else 'no layer'}. {note}".strip())
    _offer(have, layer)
    with st.columns([1, 1.4])[0]:
        runs.run_box(page)


def _offer(layers: list[int], layer: int) -> None:
    if layers:
        near = min(layers, key=lambda other: abs(other - layer))
        if st.button(f"Show layer {near}", key="xa_near", type="primary", on_click=_show_layer, args=(near,)):
            st.rerun()


def _show_layer(layer: int) -> None:
    st.session_state["layer"] = layer


# ---- beside it ------------------------------------------------------------------------------------------------------


def _explain(page: Page) -> None:
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            "The pairs of tokens are cut into blocks, and a block is computed whole or not at all. To find those that "
            "matter without computing them all, XAttention reads a few scores of each: in every tile of stride × "
            "stride pairs those on one antidiagonal, which crosses every row and every column. A softmax over "
            "their means says how much attention each tile seems to hold, and a row keeps its best blocks until they "
            "hold the threshold."
        )
        st.latex(
            r"A_{IJ} = \sum_{(r,c) \in (I,J)} \operatorname{softmax}_c \Big( \tfrac{1}{S\sqrt{d}} "
            r"\sum_{i<S} q_{rS+S-1-i} \cdot k_{cS+i} \Big), \qquad "
            r"\text{keep}(I) = \text{smallest set with } \sum_J A_{IJ} \ge \tau \sum_J A_{IJ}"
        )
        st.button(
            "Try: what the best dropped block would have held",
            key="xa_try",
            icon=":material/lightbulb:",
            on_click=_try,
            args=(page,),
        )


def _try(page: Page) -> None:
    """Lower the threshold and pick the dropped block with the most dense attention."""
    st.session_state[state.THRESHOLD] = 0.8
    st.session_state[state.MODE] = "antidiagonal"
    found = state.shown_head(page)
    if found is not None:
        state.pick(*state.head_of(page.source, *found, state.setting()).worst_dropped())


def _clearest(page: Page) -> int:
    """The head that is shown while none is chosen."""
    found = state.shown_head(source.with_source(page))
    return found[1] if found is not None else 0


VIEW = View(
    key="xattention",
    title="XAttention",
    section="Methods",
    icon=":material/view_comfy:",
    needs=Needs(model=True, text=True, layer=True, head=_clearest),
    render=render,
    order=10,
)
