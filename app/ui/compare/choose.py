"""The tab that ranks variants for a model, a length and a card by what was recorded, and says what was not."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from analysis import choose_words as words
from analysis.choose import BOTTLENECKS, Ask, Choice, Line, by_records
from analysis.choose import choose as choose_from
from analysis.choose_figures import bytes_on_a_card
from analysis.records import Record, full, of_model
from app.ui import links, recorded
from app.ui.compare import measure, support
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.runs import model_label
from app.ui.settings import variant_label
from app.ui.view import Page
from focus_core.models.facts import ModelFacts
from focus_core.models.shapes import shape_of
from focus_core.variants import VARIANTS, make

CONTEXT, BATCH, CARD, RANK, NUMBERS, DEVICE, TEXT = (
    f"compare_{name}" for name in ("context", "batch", "card", "rank", "numbers", "device", "text")
)
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
BATCHES = (1, 4, 16, 64)
CARDS = (0, 2, 4, 8, 16, 24, 48, 80, 141)
"""GB; 0 is any."""
ITEMSIZES = {"float32": 4, "bfloat16": 2}
USUAL: dict[str, Any] = {CONTEXT: 4096, BATCH: 1, CARD: 8, RANK: "prefill", NUMBERS: "float32"}
ANY = "all"
_AT_THE_LEFT = (
    "Of the controls at the left, the model counts here, and the attention with its settings is one of the lines; the "
    "text is read by Measure alone."
)
_GREY = "color: rgba(128, 132, 149, 0.85)"


def from_link(found: list[Record], notices: list[str]) -> None:
    """Take the controls from the opening link; what does not exist is said."""
    for key, options in (
        (CONTEXT, CONTEXTS),
        (BATCH, BATCHES),
        (CARD, CARDS),
        (RANK, BOTTLENECKS),
        (NUMBERS, ITEMSIZES),
        (DEVICE, [ANY, *_devices(found)]),
        (TEXT, [ANY, *_texts(found)]),
    ):
        links.restore(key, options, notices)


def render(
    page: Page, options: dict[str, dict[str, Any]], facts: ModelFacts | None, say: Callable[[str], None]
) -> None:
    """Draw the tab.

    Args:
        page: the page.
        options: the lines that can be compared, by name.
        facts: the model's; None while they are not known.
        say: draws the page's sentence.
    """
    shape = shape_of(page.model)
    mine = None if shape is None else (shape.heads, shape.kv_heads, shape.head_dim)
    found = [r for r in recorded.lines() if r.served and of_model(r, page.model, mine)]
    ask = _controls(found)
    known: dict[str, Any] = {"model": page.model, "weights": shape.values if shape else None, "facts": facts}
    lines = _lines(page, options, facts)
    choices = choose_from(lines, found, ask, **known)
    say(words.answer(choices, ask, model_label(page.model)))
    if all(choice.why_not for choice in choices):
        _nearest(ask, lambda other: any(not c.why_not for c in choose_from(lines, found, other, **known)))
    picked = _table(choices, ask)
    grey = " Grey lines cannot be taken, for the reason that stands there." if any(c.why_not for c in choices) else ""
    st.caption(f"{words.RULES[ask.bottleneck]}{grey} {_AT_THE_LEFT}")
    _take(picked)
    with st.expander("What it needs on the card", icon=":material/memory:"):
        _bytes(choices, ask)
    _explain()


def _controls(found: list[Record]) -> Ask:
    for key, value in USUAL.items():
        st.session_state.setdefault(key, value)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        bottleneck = st.segmented_control(
            "What hurts most",
            list(BOTTLENECKS),
            format_func=BOTTLENECKS.get,
            key=RANK,
            required=True,
            persist_state="session",
            help="Variants are ranked by this.",
        )
        context = _pick("Context", CONTEXTS, CONTEXT, lambda n: f"{n:,} tokens", "Tokens that the model must hold.")
        batch = _pick("Batch", BATCHES, BATCH, str, "Sequences at once: each has a cache of its own.")
        said = "What does not fit is greyed with its bytes."
        card = _pick("Card memory", CARDS, CARD, lambda n: f"{n} GB" if n else "any", said)
        with st.popover("Records", icon=":material/database:"):
            numbers = _pick("Numbers", tuple(ITEMSIZES), NUMBERS, str, "Type of weights and cache, for the bytes.")
            device = _recorded("Speed measured on", _devices(found), DEVICE)
            text = _recorded("Perplexity measured on", _texts(found), TEXT)
    for key, value in USUAL.items():
        own = st.session_state[key]
        links.write(key, "" if own == value else str(own))
    return Ask(
        context=int(context),
        batch=int(batch),
        card=card * 1e9 if card else None,
        bottleneck=bottleneck or "prefill",
        itemsize=ITEMSIZES[numbers],
        device=None if device == ANY else device,
        text=None if text == ANY else text,
    )


def _pick(label: str, options: tuple, key: str, show: Callable[[Any], str], help: str) -> Any:
    return st.selectbox(label, options, format_func=show, key=key, persist_state="session", help=help, width=140)


def _recorded(label: str, known: list[str], key: str) -> str:
    """One place of measurement for all lines, at first the one with the most records: others would not compare."""
    options, usual = [ANY, *known], known[0] if known else ANY
    if st.session_state.get(key) not in options:
        st.session_state[key] = usual
    chosen = st.selectbox(label, options, key=key, persist_state="session")
    links.write(key, "" if chosen == usual else chosen)
    return chosen


def _devices(found: list[Record]) -> list[str]:
    return by_records(r.device for r in found if r.speed is not None)


def _texts(found: list[Record]) -> list[str]:
    return by_records(r.text for r in found if r.quality is not None)


def _lines(page: Page, options: dict[str, dict[str, Any]], facts: ModelFacts | None) -> list[Line]:
    lines = [_line("dense", {"variant": "dense", "config": {}, "adapter": None, "label": "Dense"}, facts)]
    lines += [_line(key, entry, facts) for key, entry in options.items()]
    there = {entry["variant"] for entry in options.values()}
    for name in sorted(VARIANTS):
        if name not in (*there, "dense"):
            said = support.refusal(name, {}, facts) or support.lacking(name, page.model)
            entry: dict[str, Any] = {"variant": name, "config": {}, "adapter": None, "label": variant_label(name)}
            lines.append(_line(name, entry, facts, said))
    return lines


def _line(key: str, entry: dict[str, Any], facts: ModelFacts | None, refused: str = "") -> Line:
    variant, adapter = entry["variant"], entry["adapter"]
    return Line(
        key=key,
        label=entry["label"],
        variant=make(variant, entry["config"]),
        config=full(variant, entry["config"]) or {},
        adapter=adapter,
        adapter_bytes=support.adapter_bytes(adapter),
        refused=refused or support.refusal(variant, entry["config"], facts),
        training=support.training_of(variant, adapter),
    )


def _table(choices: list[Choice], ask: Ask) -> list[Choice]:
    """Draw the ranked lines; gives those that were ticked."""
    table = words.table(choices, ask)
    grey = [bool(c.why_not) for c in choices]

    def paint(column: pd.Series) -> list[str]:
        missing = [value == words.NOT_MEASURED for value in column]
        return [_GREY if g or m else "" for g, m in zip(grey, missing, strict=True)]

    event = st.dataframe(
        table.style.apply(paint),
        hide_index=True,
        # Ticks are places in the table: another order begins without any.
        key=f"compare_choose_{zlib.crc32(' '.join(c.line.key for c in choices).encode())}",
        on_select="rerun",
        selection_mode="multi-row",
        height=min(38 + 35 * len(table), 560),
        column_config={
            "Rank": st.column_config.TextColumn(width=45),
            "Variant": st.column_config.TextColumn(width=_wide(table["Variant"], 160, 420), help=words.NAMES),
            words.RUNS: st.column_config.TextColumn(width=220),
            "Training": st.column_config.TextColumn(width=_wide(table["Training"], 100, 320)),
            "Speed": st.column_config.TextColumn(
                width=_wide(table["Speed"], 150, 330),
                label=f"{'Decode' if ask.bottleneck == 'decode' else 'Prefill'} speed, dense = 1",
                help="Times faster than dense in the same recorded run, with the 10th and 90th percentile; above 1 is "
                "faster. Of a whole model where nothing else is said; attention alone is only a part of its time. "
                "Where the asked length was not timed, the nearest that was is shown and named.",
            ),
            "Perplexity": st.column_config.TextColumn(
                "Perplexity against dense",
                width=_wide(table["Perplexity"], 150, 240),
                help="Of the served function, on the same tokens as dense, as recorded. "
                f"{_behind(choices, ask)} Where only windows of another length were read, the cell says so.",
            ),
            "Pairs kept": st.column_config.TextColumn(
                help="In the run whose perplexity stands beside it, else in the one that was timed; of the asked "
                "length where there is one.",
                width=_wide(table["Pairs kept"], 100, 200),
            ),
            "Needs": st.column_config.TextColumn(
                "Needs at least",
                width=110,
                help="Weights, cache at this context and batch, and one layer's attention: counted.",
            ),
            "Cache a token": st.column_config.TextColumn(width=105),
            "Perplexity measured": st.column_config.TextColumn(width=_wide(table["Perplexity measured"], 120, 560)),
        },
    )
    rows = event["selection"]["rows"] if event else []
    return [choices[i] for i in rows if i < len(choices)]


def _wide(cells: pd.Series, least: int, most: int) -> int:
    """Pixels of a column in which its longest cell is not cut, within limits."""
    return min(most, max(least, 18 + round(6.4 * max(map(len, cells), default=0))))


def _behind(choices: list[Choice], ask: Ask) -> str:
    """Windows and tokens behind most perplexities of the asked length, and where each line's own stand."""
    found = [c.quality for c in choices if c.quality is not None and c.quality.length == ask.context]
    usual = by_records(words.measured_on(r).partition(";")[0] for r in found)
    most = f"Mostly {usual[0]}, in windows of {ask.context:,}; each" if usual else "Each"
    return f"{most} line's own number of windows and tokens stands under Perplexity measured."


def _nearest(ask: Ask, runs: Callable[[Ask], bool]) -> None:
    """The button of the nearest wish that something meets: a shorter context, then fewer sequences, then any card."""
    ways: list[tuple[str, Any, str, dict[str, Any]]] = [
        (CONTEXT, n, f"Take {n:,} tokens", {"context": n}) for n in reversed(CONTEXTS) if n < ask.context
    ]
    ways += [(BATCH, n, f"Take a batch of {n}", {"batch": n}) for n in reversed(BATCHES) if n < ask.batch]
    ways.append((CARD, 0, "Take any card", {"card": None}))
    for key, value, label, change in ways:
        if runs(dataclasses.replace(ask, **change)):
            st.button(label, key="compare_nearest", type="primary", on_click=_set, args=(key, value))
            return


def _set(key: str, value: Any) -> None:
    st.session_state[key] = value


def _take(picked: list[Choice]) -> None:
    """The button that takes what is ticked into the comparison."""
    able = [c for c in picked if not c.why_not and c.line.key != "dense"]
    left = [c for c in picked if c.why_not]
    label = f"Compare {'these ' if len(able) > 1 else ''}{len(able)} on your text" if able else "Tick lines to compare"
    st.button(
        label,
        key="compare_take",
        icon=":material/arrow_forward:",
        type="primary" if able else "secondary",
        disabled=not able,
        on_click=_measure,
        args=([c.line.key for c in able],),
    )
    for choice in left:
        st.caption(f"{plain(choice.line.label)} stays out: {plain(choice.why_not)}.")


def _measure(keys: list[str]) -> None:
    st.session_state[measure.LINES] = keys
    st.session_state["compare_view"] = "Measure"


def _bytes(choices: list[Choice], ask: Ask) -> None:
    plot(
        bytes_on_a_card(choices, ask),
        key="compare_bytes",
        alt="Bytes of weights, cache and one layer's attention by variant, with the card as a line.",
        name=f"Bytes needed at {ask.context} tokens",
        note=f"Counted at {ask.itemsize} bytes a number, batch {ask.batch}.",
    )
    st.caption(
        "Counted from the model's shape and each variant's settings, not measured: weights and cache are exact, and of "
        "the rest one layer's queries, keys, values and output are counted alone, so it is the least that is needed. "
        "Where a run's live cache was measured in the same type of numbers, its bytes a token are taken."
    )


def _explain() -> None:
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            "Every variant that this program has, for the model at the left and the length, batch and card above. "
            "Speed and perplexity come from recorded runs, each with its length, text, card and day; a cell that says "
            "*not measured* is a run that nobody has made. Tick lines to measure them on your own text in the next tab."
        )
        st.latex(r"\text{needs} = \text{weights} + \text{batch} \cdot N \cdot \text{cache a token} + \text{one layer}")
        st.button(
            "Try: which variants fit 64 long texts on a small card",
            key="compare_choose_try",
            icon=":material/lightbulb:",
            on_click=_try,
        )


def _try() -> None:
    st.session_state.update({CONTEXT: 8192, BATCH: 64, CARD: 24, RANK: "memory"})
