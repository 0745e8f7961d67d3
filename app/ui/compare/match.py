"""Presets of the comparison: settings under which the chosen variants keep, predict or cache the same."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from analysis import matching as words
from analysis.measured import refused
from app.ui import comparisons, links
from app.ui.guard import plain
from app.ui.measurement import Measurement, arrived
from app.ui.view import Page

RUN = Measurement("match", "match", "the search")
SAME, LIKE, ASKED = (f"compare_{name}" for name in ("same", "like", "asked"))
AS_CHOSEN, A_NUMBER = "chosen", "number"
PRESETS = {
    AS_CHOSEN: "Settings as chosen",
    "pairs": "Same pairs kept",
    "perplexity": "Same perplexity",
    "cache": "Same cache bytes",
}
WINDOWS = {"pairs": 1, "perplexity": 2, "cache": 1}
"""Windows of the text that are measured in a search."""


def from_link(options: dict[str, dict[str, Any]], notices: list[str]) -> None:
    """Take the preset from the opening link; what does not exist is said."""
    links.restore(SAME, PRESETS, notices)
    links.restore(LIKE, [*options, A_NUMBER], notices)
    raw = links.opening(ASKED)
    value = _read(raw)
    if value is not None:
        st.session_state[ASKED] = value
    elif raw:
        notices.append(f"In the link, {links.name_of(ASKED)} {raw[:60]} is no number; it is left out.")


def controls(lines: list[str], options: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Draw the preset's controls.

    Returns:
        ``{quantity, target}``; None where settings are as chosen.
    """
    st.session_state.setdefault(SAME, AS_CHOSEN)
    quantity = st.selectbox(
        "Settings",
        list(PRESETS),
        format_func=PRESETS.get,
        key=SAME,
        persist_state="session",
        # A number of percent is none of bytes.
        on_change=lambda: st.session_state.pop(ASKED, None),
        help="Three ways to be fair: settings are searched so that every variant keeps the same pairs, predicts as "
        "well, or caches the same bytes, as nearly as its settings allow.",
    )
    if quantity in (None, AS_CHOSEN):
        for name in (SAME, LIKE, ASKED):
            links.write(name, "")
        return None
    choices = [*lines, A_NUMBER]
    if st.session_state.get(LIKE) not in choices:
        st.session_state[LIKE] = choices[0]
    like = st.selectbox(
        "As much as",
        choices,
        format_func=lambda k: "a number" if k == A_NUMBER else options[k]["label"],
        key=LIKE,
        persist_state="session",
        help="The line whose value the others are to match; it stays as it is.",
    )
    links.write(SAME, quantity)
    links.write(LIKE, "" if like == choices[0] else str(like))
    if like != A_NUMBER:
        links.write(ASKED, "")
        return {"quantity": quantity, "target": {"entry": options[like]}}
    label, usual = words.ASKED[quantity]
    st.session_state.setdefault(ASKED, usual)
    number = st.number_input(label, key=ASKED, persist_state="session", step=1.0)
    links.write(ASKED, f"{number:.12g}")
    return {"quantity": quantity, "target": {"value": words.from_shown(quantity, float(number))}}


def entries(
    page: Page, entries: list[dict[str, Any]], preset: dict[str, Any], length: int, novel: bool
) -> tuple[list[dict[str, Any]] | None, dict[str, Any] | None]:
    """The chosen lines with the settings that were found; draws the search's button or progress meanwhile.

    Returns:
        The entries, None while there are none yet; and what the search gave, in whole or in part.
    """
    text = comparisons.text_fields(page, novel)
    if text is None or not entries:
        return None, None
    quantity = preset["quantity"]
    request = {
        "model": page.model,
        **text,
        "entries": entries,
        **preset,
        "length": length,
        "windows": WINDOWS[quantity],
    }
    job = RUN.job(page, request) or _before(page, request)
    found = arrived(job, "about")
    if job is None or job.state != "done":
        RUN.box(
            page,
            request,
            "Find the settings",
            key="match_run",
            progress="match_job",
            note="Nothing is run: it is counted." if quantity == "cache" else "",
            most=True,
            icon=":material/tune:",
            type="primary",
            width="stretch",
        )
        return None, found
    return [_entry(page, row) for row in job.result["rows"] if row["within"]] or None, found


def show(page: Page, found: dict[str, Any] | None) -> None:
    """Draw what a search gave: for every line what was asked for, what it reached and how that is known."""
    if found is None or not found["rows"]:
        return
    about = found["about"]
    with st.expander(f"Settings found: {words.headline(found)}", icon=":material/tune:", expanded=True):
        labels = {row["key"]: _entry(page, row)["label"] for row in found["rows"]}
        wide = {name: st.column_config.TextColumn(width=130) for name in ("Reached", "Verdict")}
        table = pd.DataFrame(words.table(found, labels))
        st.dataframe(table, hide_index=True, key="match_table", column_config=wide)
        for said in words.unreached(found, labels):
            st.markdown(f":gray[:material/block:] {plain(said)}")
        for one in about.get("refused", []):
            st.markdown(f":gray[:material/block:] {plain(refused(one))}")
        st.caption(plain(words.how(about)))


def _before(page: Page, request: dict[str, Any]) -> Any:
    """A search that was done before this session asked; None when there is none."""
    key = page.engine.key(RUN.kind, request)
    found = page.engine.recall(key) if key else None
    return found if found is not None and found.state == "done" else None


def _entry(page: Page, row: dict[str, Any]) -> dict[str, Any]:
    """A line of the comparison with the settings that were found."""
    found = comparisons.line(page, row["variant"], row["config"], row["adapter"])
    return {**found, "label": row["label"]} if row["config"] == row["given"] else found


def _read(raw: str) -> float | None:
    try:
        value = float(raw)
    except ValueError:
        return None
    return value if abs(value) < 1e12 else None
