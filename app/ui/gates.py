"""The Compare page's tab from the soft gate to the served one: what the paper's soft figure is, and what is served."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis import comparison as words
from analysis.comparison_figures import gate_name, gate_rows, soft_to_hard
from analysis.measured import merge, provenance
from analysis.numbers import percent, sig3
from app.ui import comparisons, runs
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.measurement import Measurement, Shown
from app.ui.view import Page

RUN = Measurement(comparisons.KIND, "gates", "measuring the gates")
LENGTH = 1024
PICKED = "compare_gate"
_PAPER = (
    "The paper's gate also balances groups over the whole sequence, so later tokens change earlier outputs; it has "
    "groups of its own, trained in its form. Its perplexity is shown because it is the published one. "
)


def render(page: Page) -> None:
    """Draw the tab."""
    entries = comparisons.gate_entries(page)
    if not entries:
        st.info("The gates belong to Focus's trained groups, and none ship for this model.", icon=":material/tune:")
        if page.model != default_model():
            st.button("Take the shipped model", key="gates_model", on_click=_use_default_model)
        return
    tokens = comparisons.text_tokens(page, False) or 0
    length = min(LENGTH, tokens)
    request = comparisons.request(page, entries, [length], 1, False, windows=2) if length >= 2 else None
    shown = RUN.find(page, request, lambda: comparisons.shipped("gates"))
    result = shown.result if shown else merge([])
    sizes = words.lengths(result)
    rows = gate_rows(result, sizes[-1]) if sizes else []
    picked = _slider(rows)
    if shown:
        _verdict(picked, shown)
    plot(
        soft_to_hard(result, sizes[-1] if sizes else length, picked["key"] if picked else None),
        key="gates_figure",
        alt="Perplexity change against dense for every gate, from soft to hard.",
        name="From the soft gate to the served one",
        note=provenance(result.get("about", {})),
    )
    st.caption(
        "A soft gate computes every pair and only weakens some: nothing is saved, and no decoder runs it. "
        + (_PAPER if any(entry["config"]["gate"] == "paper" for entry in entries) else "")
        + "What is served is the hard gate at the right."
    )
    with st.container(key="gates_box"):
        _run(page, request)


def _slider(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    if len(rows) < 2:
        return rows[0] if rows else None
    names = [gate_name(r) for r in rows]
    if st.session_state.get(PICKED) not in names:
        st.session_state[PICKED] = names[-1]
    name = st.select_slider("From soft to hard", names, key=PICKED, help="Right is what decoding runs.")
    return rows[names.index(name)]


def _verdict(row: dict[str, Any] | None, shown: Shown) -> None:
    if row is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        for word in words.badges(row, recorded=shown.recorded):
            st.badge(word, color=_colour(word), help=words.BADGES[word])
        if row["served"]:
            st.badge("served", color="green", help="This is the function that decoding runs.")
    interval = words.change_interval(row)
    spread = f" ({percent(interval[0], signed=True)} to {percent(interval[1], signed=True)})" if interval else ""
    st.markdown(
        f"**{plain(gate_name(row))}**: perplexity {sig3(row['ppl'])}, {percent(row['ppl_change'], signed=True)} "
        f"against dense{spread}, computing {percent(row['kept_pairs'])} of the pairs; {row['scored']:,} tokens scored."
    )


def _colour(word: str) -> str:
    return {"live": "green", "recorded": "blue", "leaks": "red", "not served": "orange", "partial": "orange"}.get(
        word, "gray"
    )


def _run(page: Page, request: dict[str, Any] | None) -> None:
    if request is None:
        st.caption("Choose a text to measure the gates on.")
        return
    RUN.box(
        page,
        request,
        "Measure the gates on this text",
        key="gates_run",
        progress="gates_job",
        caption=False,
        ways_out=_shipped_text,
    )


def _shipped_text(said: str) -> None:
    st.button("Take a shipped passage", key="gates_text", on_click=runs.use_text, args=(runs.texts.names()[0],))


def default_model() -> str:
    """The shipped model's name."""
    from focus_core.models.catalog import DEFAULT

    return DEFAULT


def _use_default_model() -> None:
    st.session_state["model"] = default_model()
