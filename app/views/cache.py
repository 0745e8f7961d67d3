"""What must be remembered, and is it exact? Bytes of cache a token by variant, each with how exact it is."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis import cache as words
from analysis.cache_figures import bars
from analysis.measured import merge, provenance
from analysis.numbers import memory
from app.ui import links
from app.ui.badges import badge
from app.ui.cache import card, controls, cross, latent, layers, lines, orders
from app.ui.figure import plot
from app.ui.guard import guarded, plain
from app.ui.measurement import Shown
from app.ui.runs import model_label
from app.ui.view import Needs, Page, View
from focus_core.benchmark.cache_probe import DTYPES

TABS = ["By layer and format", "Two orders", "Latent", "Encoder-decoders", "What a card holds"]
TAB, DTYPE = "cache_tab", "cache_dtype"


def render(page: Page) -> None:
    """Draw the page."""
    st.title("What must be remembered, and is it exact?", anchor=False)
    sentence = st.container()
    options, usual = lines.choices(page)
    notices: list[str] = []
    links.check(TAB, TABS, TABS[0], notices)
    controls.from_link(options, notices)
    links.restore(DTYPE, DTYPES, notices)
    lines.RUN.from_link(page, notices)
    links.show_notices([*page.notices, *(n for n in links.keep_notices(notices) if n not in page.notices)])
    picture, side = st.columns([2.3, 1], gap="medium")
    with side:
        request = controls.choose(page, options, usual)
        controls.run_box(page, request)
    shown = lines.RUN.find(page, request, lines.shipped, of=page.model)
    lines.RUN.to_link(page, shown)
    result = shown.result if shown else merge([])
    with picture:
        _origin(page, shown)
        dtype = _format(result)
        plot(
            bars(result, dtype),
            key="cache_bars",
            alt="Bytes of cache a token by variant, each with how exact it is.",
            name="Cache bytes a token",
            rows=lambda: words.table(result, recorded=bool(shown and shown.recorded)),
            note=provenance(result.get("about", {})),
        )
    with sentence:
        model = result.get("about", {}).get("model", page.model)
        of = "" if model == page.model else f"{model_label(str(model))}: "
        st.markdown(f"#### {plain(of + words.answer(result, dtype))}", help=_how(result))
    _refused(page, options, result)
    by_layer, two, small, encoders, held = st.tabs(TABS, key=TAB, on_change="rerun", bind="query-params")
    for tab, draw in (
        (by_layer, lambda: layers.render(result, dtype)),
        (two, lambda: orders.render(result)),
        (small, lambda: latent.render(page)),
        (encoders, cross.render),
        (held, lambda: card.render(page, result)),
    ):
        if tab.open:
            with tab:
                guarded(draw)
    _table(shown, result)
    _explain(options)


def _refused(page: Page, options: dict[str, Any], result: dict[str, Any]) -> None:
    """What does not apply, each with its reason and, where one was recorded, a button to a model that has it."""
    about = result.get("about", {})
    found = {said["label"]: said for said in about.get("refused", [])}
    if about.get("model", page.model) == page.model:
        found |= {said["label"]: said for said in lines.refused(page, options)}
    for label, said in found.items():
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            reason = f"{label} does not apply: {said['reason']}"
            st.caption(f":material/block: {plain(reason)}", help=plain(said.get("hint", "")) or None, width="content")
            other = lines.elsewhere(label, page.model)
            if other is not None and about.get("model") != other["model"]:
                how = "exact to rounding" if other["word"] == words.ROUNDING else other["word"]
                st.button(
                    f"See it in {model_label(other['model']).split(',')[0]}",
                    key=f"cache_see_{label}",
                    icon=":material/visibility:",
                    on_click=controls.set_key,
                    args=("model", other["model"]),
                    help=f"There it keeps {memory(other['bytes'])} a token, {how}.",
                )


def _origin(page: Page, shown: Shown | None) -> None:
    """Where the numbers come from, in one line."""
    if shown is None:
        return
    about = shown.result.get("about", {})
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        command = f"Command: {about['command']}." if about.get("command") else ""
        badge(shown.origin, command)
        if not shown.result.get("complete"):
            st.badge("partial", color="orange", help="The run was stopped or is still going.")
        st.caption(plain(provenance(about)))
    if shown.recorded and about.get("model") != page.model:
        st.caption(
            f":material/history: Shown is {plain(model_label(str(about.get('model'))))}, not "
            f"{plain(model_label(page.model))}: press Run to measure that one."
        )


def _format(result: dict[str, Any]) -> str:
    """The number format in which the caches are shown; a choice where they were measured in several."""
    formats = words.dtypes(result)
    if len(formats) < 2:
        return words.own_format(result)
    if st.session_state.get(DTYPE) not in formats:
        st.session_state[DTYPE] = words.own_format(result)
    chosen = st.segmented_control(
        "Number format",
        formats,
        key=DTYPE,
        required=True,
        label_visibility="collapsed",
        persist_state="session",
    )
    links.write(DTYPE, "" if chosen == words.own_format(result) else str(chosen or ""))
    return str(chosen or words.own_format(result))


def _how(result: dict[str, Any]) -> str:
    about = result.get("about", {})
    if not about:
        return ""
    return (
        f"Each variant reads {about['prompt']:,} tokens and decodes the next {about['decoded']} of the text from its "
        "own cache. Bytes: memory behind every tensor of that live cache. Exact: by the attention's output, layer by "
        "layer, from dense's own inputs."
    )


def _table(shown: Shown | None, result: dict[str, Any]) -> None:
    table = words.table(result, recorded=bool(shown and shown.recorded))
    if table.empty:
        return
    with st.expander("All numbers as a table", icon=":material/table:"):
        st.dataframe(
            table,
            hide_index=True,
            key="cache_table",
            column_config={
                "Variant": st.column_config.TextColumn(pinned=True),
                "Same next token": st.column_config.TextColumn(
                    help="Share of the decoded tokens after which its likeliest next token is dense's."
                ),
                "Same when alone": st.column_config.TextColumn(
                    help="Tokens written like dense when both go on with their own likeliest tokens."
                ),
                "Loss change": st.column_config.TextColumn(
                    help="Of the decoded tokens, against dense: few tokens, so see Compare for quality."
                ),
            },
        )


def _explain(options: dict[str, Any]) -> None:
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            "While a model writes, it keeps a key and a value of every earlier token in every layer: the KV cache, "
            "which soon takes more memory than the weights. GQA shares keys between heads, SFA keeps a few features of "
            "each, Slim keeps the keys alone and makes the values from them, and latent attention keeps one short "
            "vector. Some compute what the model was trained to compute and some another function: the colour says "
            "which, and the number how far off."
        )
        st.latex(
            r"c_\text{dense} = 2\,L\,h_{kv}\,d_h\,b, \quad c_\text{Slim} = L\,h\,d_h\,b, \quad "
            r"c_\text{SFA} = L\,h_{kv}\,(k(b{+}1) + d_h b), \quad c_\text{MLA} = L\,(r + d_r)\,b"
        )
        sizes = [name for name, line in options.items() if line["variant"] == "sfa" and "select" not in line["config"]]
        if sizes:
            st.button(
                "Try: SFA with fewer and more features",
                key="cache_try",
                icon=":material/lightbulb:",
                on_click=controls.set_key,
                args=(controls.LINES, sizes),
            )


VIEW = View(
    key="cache",
    title="KV cache",
    section="Methods",
    icon=":material/memory:",
    needs=Needs(model=True, text=True),
    render=render,
    order=30,
)
