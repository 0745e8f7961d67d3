"""The tab where variants are measured side by side on the same tokens, the losing region included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from analysis import comparison as words
from analysis.choose_words import NAMES
from analysis.comparison_figures import memory_bars, speed_by_length
from analysis.frontier import MEASURES, frontier
from analysis.measured import merge, provenance, refused
from app.ui import comparisons, links, runs
from app.ui import gates as gate_tab
from app.ui.compare import match
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.measurement import Measurement, Shown
from app.ui.view import Page

RUN = Measurement(comparisons.KIND, "compare", "the comparison")
LINES, LENGTHS, REPEATS, NOVEL, MEASURE, SIZE = (
    f"compare_{name}" for name in ("lines", "lengths", "repeats", "novel", "by", "at")
)

USUAL_LENGTHS, USUAL_REPEATS = (256, 512, 1024), 5
ALL_REPEATS = (3, 5, 9, 15)
TABS = ["Speed by length", "Soft to hard gate", "Memory"]


def render(page: Page, options: dict[str, dict[str, Any]], say: Callable[[str], None]) -> None:
    """Draw the tab.

    Args:
        page: the page.
        options: the lines that can be compared, by name.
        say: draws the page's sentence.
    """
    picture, controls = st.columns([2.3, 1], gap="medium")
    with controls:
        request, found = _controls(page, options)
        _run(page, request)
    shown = RUN.find(page, request, lambda: comparisons.shipped("compare"))
    RUN.to_link(page, shown)
    result = shown.result if shown else merge([])
    _size_from_link(shown, words.lengths(result))
    with picture:
        _origin(page, shown)
        size = _picture(page, shown, result)
    of = _other_model(page, shown)
    say(
        f"{of}: {said}"
        if (said := words.answer(result, size, recorded=bool(shown and shown.recorded))) and of
        else said
    )
    match.show(page, found)
    _table(shown, result)
    speed, gates, memory = st.tabs(TABS, key="compare_tab", bind="query-params")
    with speed:
        _speed(result)
    with gates:
        gate_tab.render(page)
    with memory:
        _memory(result)
    _explain()


def from_link(page: Page, options: dict[str, dict[str, Any]], notices: list[str]) -> None:
    """Take the controls from the opening link; what does not exist is said."""
    links.check("compare_tab", TABS, TABS[0], notices)
    links.check(MEASURE, MEASURES, "time", notices, MEASURES.get)
    links.restore(LINES, options, notices, several=True)
    links.restore(LENGTHS, comparisons.LENGTHS, notices, several=True)
    links.restore(REPEATS, ALL_REPEATS, notices)
    links.restore(NOVEL, (True,), notices)
    match.from_link(options, notices)
    RUN.from_link(page, notices)


def _size_from_link(shown: Shown | None, sizes: list[int]) -> None:
    """Show the length that the opening link names, once all lengths are there."""
    if shown is not None and not shown.result.get("complete"):
        return
    notices: list[str] = []
    before = st.session_state.get(SIZE)
    links.restore(SIZE, sizes, notices)
    if st.session_state.get(SIZE) != before:
        st.session_state["_compare_picked"] = True
    if notices:
        links.keep_notices(notices)
        st.rerun()


def _to_link(options: dict[str, Any], lines: list[str], lengths: list[int], repeats: int, novel: bool) -> None:
    links.write(LINES, "" if lines == comparisons.defaults(options) else ",".join(lines))
    links.write(LENGTHS, "" if sorted(lengths) == list(USUAL_LENGTHS) else ",".join(map(str, sorted(lengths))))
    links.write(REPEATS, "" if repeats in (None, USUAL_REPEATS) else str(repeats))
    links.write(NOVEL, "True" if novel else "")


def _controls(page: Page, options: dict[str, dict[str, Any]]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Draw the controls; gives the request, and what a search for equal settings found."""
    st.session_state.setdefault(LINES, comparisons.defaults(options))
    st.session_state[LINES] = [k for k in st.session_state[LINES] if k in options]
    lines = st.multiselect(
        "Beside dense",
        list(options),
        key=LINES,
        format_func=lambda k: options[k]["label"],
        placeholder="Choose variants",
        wrap=True,
        help="Dense attention is always measured, in the same run and on the same tokens. The variant at the left "
        f"comes with its settings; the others as they ship. {NAMES}",
        persist_state="session",
    )
    st.session_state.setdefault(LENGTHS, list(USUAL_LENGTHS))
    lengths = st.pills(
        "Tokens",
        comparisons.LENGTHS,
        selection_mode="multi",
        format_func=lambda n: f"{n:,}",
        key=LENGTHS,
        wrap=True,
        persist_state="session",
        help="Each length is a run of its own. Perplexity is over the first windows of that many tokens.",
    )
    novel = st.toggle(
        "Read the novel Persuasion",
        key=NOVEL,
        persist_state="session",
        help="Long enough for every length; no group was trained on it.",
    )
    st.session_state.setdefault(REPEATS, USUAL_REPEATS)
    repeats = st.segmented_control(
        "Repeats",
        ALL_REPEATS,
        key=REPEATS,
        required=True,
        persist_state="session",
        help="Timed runs of each variant, interleaved, in an order that rotates.",
    )
    _to_link(options, lines, lengths, repeats, novel)
    entries: list[dict[str, Any]] | None = [options[k] for k in lines]
    preset, found = match.controls(lines, options), None
    if preset and lengths:
        entries, found = match.entries(page, entries or [], preset, max(lengths), novel)
    request = comparisons.request(page, entries or [], lengths, int(repeats or 5), novel)
    return request and RUN.counted(request), found


def _run(page: Page, request: dict[str, Any] | None) -> None:
    if request is None:
        missing = "Paste a text, or turn on the novel." if page.text is None else "Choose a variant and a length."
        if st.session_state.get(match.SAME, match.AS_CHOSEN) != match.AS_CHOSEN and st.session_state.get(LINES):
            missing = "Find the settings first."
        st.button("Run", type="primary", disabled=True, width="stretch", key="compare_run")
        st.caption(missing)
        return
    RUN.box(
        page,
        request,
        "Run",
        key="compare_run",
        progress="compare_job",
        again="Run again",
        ways_out=lambda said: _ways_out(page, said, request),
        type="primary",
        width="stretch",
    )


def _ways_out(page: Page, said: str, request: dict[str, Any]) -> None:
    """Buttons for the nearest things that work."""
    novel = bool(st.session_state.get(NOVEL))
    tokens = comparisons.text_tokens(page, novel)
    fitting = [n for n in request["lengths"] if tokens is None or n <= tokens]
    if "tokens" in said and not novel:
        st.button("Read Persuasion instead", key="compare_way_novel", on_click=_set, args=(NOVEL, True))
    if 0 < len(fitting) < len(request["lengths"]):
        label = f"Take the lengths up to {fitting[-1]:,}"
        st.button(label, key="compare_way_fit", on_click=_set, args=(LENGTHS, fitting))
    elif len(request["lengths"]) > 1:
        shorter = request["lengths"][:-1]
        label = f"Leave out {request['lengths'][-1]:,} tokens"
        st.button(label, key="compare_way_shorter", on_click=_set, args=(LENGTHS, shorter))
    elif request["lengths"] != [256]:
        st.button("Take 256 tokens", key="compare_way_256", on_click=_set, args=(LENGTHS, [256]))
    if page.text is None or page.text.name is None:
        first = runs.texts.names()[0]
        st.button("Take a shipped passage", key="compare_way_text", on_click=runs.use_text, args=(first,))


def _set(key: str, value: Any) -> None:
    st.session_state[key] = value


def _other_model(page: Page, shown: Shown | None) -> str:
    """The model of what is shown, as people read it, where it is not the chosen one; else empty."""
    model = shown.result.get("about", {}).get("model", page.model) if shown is not None else page.model
    return "" if model == page.model else runs.model_label(str(model))


def _origin(page: Page, shown: Shown | None) -> None:
    """Where the numbers come from, in one line."""
    if shown is None:
        return
    if of := _other_model(page, shown):
        said = f"Shown is {of}, not {runs.model_label(page.model)}: press Run to measure that one."
        st.caption(f":material/history: {plain(said)}")
    about = shown.result.get("about", {})
    where = about.get("environment", {})
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if shown.origin == "earlier settings":
            st.badge("earlier settings", color="orange", help="The choices at the right have not run yet.")
        else:
            color = "blue" if shown.recorded else "green"
            st.badge(shown.origin, color=color, help=words.BADGES[shown.origin])
        if not shown.result.get("complete"):
            st.badge("partial", color="orange", help=words.BADGES["partial"])
        st.caption(plain(provenance(about)), help=_how(about, where))
    if words.was_busy(about):
        st.caption(
            f":material/warning: The machine was busy when the run began (load {about['load_before']:.1f} on "
            f"{where.get('cores')} cores): trust the ratios, not the milliseconds."
        )


def _how(about: dict[str, Any], where: dict[str, Any]) -> str:
    command = f" Command: `{about['command']}`." if about.get("command") else ""
    return (
        f"Whole-model prefill of one sequence, {words.counts(about.get('repeats'))} repeats of all variants in turn, "
        f"the order rotated; shown are the median and the 10th to the 90th percentile. Perplexity: the first "
        f"{words.counts(about.get('windows'))} windows at most, no BOS, the same tokens for all. "
        f"torch {where.get('torch')}, {where.get('threads')} threads.{command}"
    )


def _picture(page: Page, shown: Shown | None, result: dict[str, Any]) -> int:
    """Draw the frontier at the chosen length, and give that length."""
    sizes = words.lengths(result)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        measure = st.segmented_control(
            "Cost",
            list(MEASURES),
            default="time",
            required=True,
            format_func=MEASURES.get,
            key=MEASURE,
            bind="query-params",
            label_visibility="collapsed",
        )
        if len(sizes) > 1:
            # The longest, also when it has only just arrived, until someone picks another.
            if not st.session_state.get("_compare_picked") or st.session_state.get(SIZE) not in sizes:
                st.session_state[SIZE] = sizes[-1]
            size = st.segmented_control(
                "Length",
                sizes,
                required=True,
                format_func=lambda n: f"{n:,} tokens",
                key=SIZE,
                on_change=_set,
                args=("_compare_picked", True),
                label_visibility="collapsed",
                persist_state="session",
            )
        else:
            size = sizes[-1] if sizes else 0
    links.write(SIZE, str(size) if sizes and size != sizes[-1] else "")
    recorded = bool(shown and shown.recorded)
    points = comparisons.recorded_points(page.model) if measure == "pairs" else ()
    figure = frontier(result, size, measure or "time", recorded=recorded, others=points)
    plot(
        figure,
        key="compare_frontier",
        alt=f"Perplexity change against {MEASURES[measure or 'time'].lower()} at {size:,} tokens, one point a variant.",
        name=f"Quality against {MEASURES[measure or 'time'].lower()} at {size} tokens",
        note=provenance(result.get("about", {})),
    )
    for said in words.losses(result, size, measure or "time"):
        st.markdown(f":orange[:material/trending_down:] {plain(said)}")
    if measure == "time":
        for said in words.undecided(result, size):
            st.markdown(f":gray[:material/drag_handle:] {plain(said)}")
    whole = [row["label"] for row in words.scored(result, size) if row.get("dense_by_definition")]
    if whole:
        st.info(
            f"At {size:,} tokens the window and the first tokens reach everything, so {plain(', '.join(whole))} "
            f"{'is' if len(whole) == 1 else 'are'} dense attention by definition. Longer texts tell more.",
            icon=":material/straighten:",
        )
    if points:
        st.caption("Open squares were recorded on other text and lengths: hover for which, where and when.")
    return size


def _table(shown: Shown | None, result: dict[str, Any]) -> None:
    table = words.table(result, recorded=bool(shown and shown.recorded))
    for one in result.get("about", {}).get("refused", []):
        st.info(plain(refused(one)), icon=":material/block:")
    if table.empty:
        return
    st.dataframe(
        table,
        hide_index=True,
        key="compare_table",
        column_config={
            "Badges": st.column_config.ListColumn(help=" · ".join(f"{k}: {v}" for k, v in words.BADGES.items())),
            "Tokens": st.column_config.NumberColumn(format="localized"),
            "Scored tokens": st.column_config.NumberColumn(format="localized"),
            "Variant": st.column_config.TextColumn(pinned=True, help=NAMES),
        },
    )


def _speed(result: dict[str, Any]) -> None:
    part = st.segmented_control(
        "Part",
        ["model", "attention"],
        default="model",
        required=True,
        format_func={"model": "Whole prefill", "attention": "Attention alone"}.get,
        key="compare_part",
        label_visibility="collapsed",
    )
    plot(
        speed_by_length(result, part or "model"),
        key="compare_speed",
        alt="Time over dense's by length: measured with its spread, and counted.",
        name=f"Speed by length, {'attention alone' if part == 'attention' else 'whole prefill'}",
        note=provenance(result.get("about", {})),
    )
    for said in words.speed_verdicts(result, "ratio" if part != "attention" else "attention_ratio"):
        st.markdown(f"- {plain(said)}")
    st.caption(
        "Dotted: what the counted operations alone would give. The gap between it and the measured line is planning, "
        "gathering and memory traffic."
    )


def _memory(result: dict[str, Any]) -> None:
    plot(
        memory_bars(result),
        key="compare_memory",
        alt="Peak memory of the prefill by length and variant.",
        name="Peak memory by length",
        note=provenance(result.get("about", {})),
    )
    how = result.get("about", {}).get("peak_how")
    st.caption(
        f"Most bytes of tensors held at once during one prefill, beyond the weights ({how or 'not measured yet'}); "
        "buffers inside a library are not seen. The cache keeps every token's keys and values, and 8 bytes a layer "
        "and router for its groups: Focus saves time, not cache."
    )


def _explain() -> None:
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            "Every point is a real run of the same model on the same tokens, with another attention put in. Left is "
            "faster, down is a better guess of the next token; dense attention is the cross-hair, and the shaded side "
            "is where a variant loses to it. Attention is only a part of a model's time, so even attention for free "
            "would not make the whole model free: the longer the text, the larger the part that can be saved."
        )
        st.latex(
            r"\frac{T(N)}{T_\text{dense}(N)} \approx \frac{a + b\,\kappa(N)\,N}{a + b\,N}, "
            r"\quad \kappa = \text{pairs kept}"
        )
        st.button(
            "Try: find the length where it starts to pay",
            key="compare_try",
            icon=":material/lightbulb:",
            on_click=_try_lengths,
        )


def _try_lengths() -> None:
    st.session_state[NOVEL] = True
    st.session_state[LENGTHS] = [512, 1024, 2048, 4096]
    st.session_state[REPEATS] = 3
