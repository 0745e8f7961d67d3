"""What does it cost, what does it save? A choice by what is known, then a measurement side by side."""

from __future__ import annotations

import streamlit as st

from app.ui import comparisons, links, recorded
from app.ui.compare import back, choose, forgotten, frontier, gpu, measure, support
from app.ui.guard import plain
from app.ui.view import Needs, Page, View

PART = "compare_view"
CHOOSE, MEASURE, FRONTIER, FORGOTTEN, GPU = PARTS = ("Choose", "Measure", "Frontier", "What is forgotten", "On a GPU")
_OF_CHOOSE = (choose.CONTEXT, choose.BATCH, choose.CARD, choose.RANK, choose.NUMBERS, choose.DEVICE, choose.TEXT)
_OF_OTHERS = (*_OF_CHOOSE, *forgotten.keys(), *frontier.KEYS, gpu.PICTURE)


def render(page: Page) -> None:
    """Draw the page."""
    st.title("What does it cost, what does it save?", anchor=False)
    sentence = st.container()
    facts = support.facts_of(page)
    every = comparisons.choices(page)
    options = {k: e for k, e in every.items() if not support.refusal(e["variant"], e["config"], facts)}
    notices: list[str] = []
    _part_from_link(notices)
    choose.from_link(recorded.lines(), notices)
    measure.from_link(page, options, notices)
    frontier.from_link(notices)
    forgotten.from_link(page, notices)
    gpu.from_link(notices)
    links.show_notices([*page.notices, *(n for n in links.keep_notices(notices) if n not in page.notices)])

    def say(words: str) -> None:
        sentence.markdown(f"#### {plain(words)}")

    first, second, third, fourth, fifth = st.tabs(PARTS, key=PART, on_change="rerun")
    if first.open:
        with first:
            choose.render(page, every, facts, say)
    if second.open:
        with second:
            measure.render(page, options, say)
            _elsewhere(support.unavailable(page, facts))
    if third.open:
        with third:
            frontier.render(page, say)
    if fourth.open:
        with fourth:
            forgotten.render(page, say)
    if fifth.open:
        with fifth:
            gpu.render(page, say)
    _part_to_link()
    back.in_one_step()


def _part_from_link(notices: list[str]) -> None:
    """A link that names a control of the measurement opens that tab."""
    of_measure = [k for k in st.query_params if k.startswith("compare_") and k not in (PART, *_OF_OTHERS)]
    links.restore(PART, PARTS, notices)
    if PART not in st.session_state:
        st.session_state[PART] = MEASURE if of_measure else CHOOSE


def _part_to_link() -> None:
    """The tab stands in the address where the other controls would not open it."""
    st.session_state.setdefault(PART, CHOOSE)
    shown = st.session_state[PART]
    links.write(PART, "" if shown == CHOOSE and not _names_measure() else shown)


def _names_measure() -> bool:
    return any(k.startswith("compare_") and k not in (PART, *_OF_OTHERS) for k in st.query_params)


def _elsewhere(refused: list[tuple[str, str]]) -> None:
    """Variants that this model cannot take, greyed, with the reason."""
    if not refused:
        return
    with st.expander(f"Not on this model: {len(refused)}", icon=":material/block:"):
        for name, reason in refused:
            st.markdown(f":gray[**{plain(name)}**: {plain(reason)}]")


VIEW = View(
    key="compare",
    title="Compare",
    section="Decide",
    icon=":material/balance:",
    needs=Needs(model=True, text=True, variant=True),
    render=render,
    order=10,
)
