"""The tab of the recorded frontier: every pattern in one frozen model, pairs kept against what they cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pandas as pd
import streamlit as st

from analysis.frontier_figure import plane
from analysis.frontier_marks import PREFIX, TEXTS, Mark, answer, marks, of
from analysis.numbers import percent, sig3
from app.ui import links, recorded
from app.ui.badges import badge
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.runs import model_label
from app.ui.view import Page

TEXT, TOKENS = KEYS = ("compare_pairs_text", "compare_pairs_tokens")
LENGTHS = (1024, 4096, 8192)
_USUAL = 4096
T = TypeVar("T")


def _tokens(length: int) -> str:
    return f"{length:,} tokens"


def from_link(notices: list[str]) -> None:
    """Take the text and the length from the opening link."""
    links.check(TEXT, TEXTS, "persuasion", notices, TEXTS.__getitem__)
    links.check(TOKENS, LENGTHS, _USUAL, notices, _tokens)


def render(page: Page, say: Callable[[str], None]) -> None:
    """Draw the tab.

    Args:
        page: the page.
        say: draws the page's sentence.
    """
    found = marks(recorded.documents(PREFIX))
    if not found:
        say("No frontier is recorded here.")
        return
    sentence = st.container()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        text = _control("Text", TEXT, list(TEXTS), "persuasion", TEXTS.__getitem__)
        context = _control("Length", TOKENS, list(LENGTHS), _USUAL, _tokens)
    here = of(found, text, context)
    say(answer(found, text, context))
    with sentence:
        _origin(here or found)
    plot(
        plane(found, text, context),
        key="compare_pairs",
        alt=f"Change of perplexity against pairs kept, {TEXTS[text]}, {context:,} tokens, one mark a line; "
        "the table below has every mark.",
        name=f"Frontier: {TEXTS[text].lower()} at {context} tokens",
        note=", ".join(_runs(here)),
    )
    st.caption(
        "Left is cheaper, down is better, the dashed line is dense attention. Bars are one standard error of the "
        "difference on the same tokens, dotted lines join one setting's values; Brown fiction has one or two "
        "windows and no bars. Fewer pairs are no times: On a GPU has those. Pointing at a mark tells its adapter, "
        "settings and command. Nothing at the left of the page changes what was recorded."
    )
    with st.expander("Every mark as a table", icon=":material/table:"):
        _table(here)
    _explain()


def _control(label: str, key: str, options: list[T], usual: T, shown: Callable[[T], str]) -> T:
    picked = st.segmented_control(
        label,
        options,
        default=usual,
        required=True,
        format_func=shown,
        key=key,
        bind="query-params",
        label_visibility="collapsed",
    )
    return usual if picked is None else picked


def _runs(here: list[Mark]) -> list[str]:
    """Card and day of each run, most marks first."""
    found = [f"{mark.where.get('device') or 'CPU'}, {str(mark.where.get('time'))[:10]}" for mark in here]
    return sorted(dict.fromkeys(found), key=found.count, reverse=True)


def _origin(here: list[Mark]) -> None:
    """Where the marks come from, in one line."""
    models = ", ".join(dict.fromkeys(model_label(str(mark.document.get("model"))) for mark in here))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge("recorded", "python -m focus_core run experiments/frontier-plain.toml (data/results/frontier-*.json)")
        st.caption(plain(f"{models}, its own weights frozen; {'; '.join(_runs(here))}"))


def _table(here: list[Mark]) -> None:
    table = [
        {
            "Line": mark.name,
            "Pairs kept": percent(mark.kept),
            "Perplexity against dense": mark.changed(),
            "Perplexity": sig3(mark.document.get("ppl"), 4),
            "Dense": sig3(mark.document.get("dense_ppl"), 4),
            "Windows": mark.windows,
            "Adapter": mark.adapter,
            "Settings": mark.settings(),
            "Recorded": _runs([mark])[0],
            "Numbers": mark.document.get("dtype"),
            "Command": mark.document.get("command"),
        }
        for mark in sorted(here, key=lambda mark: mark.kept)
    ]
    columns = {"Line": st.column_config.TextColumn(pinned=True), "Command": st.column_config.TextColumn(width="large")}
    st.dataframe(pd.DataFrame(table), hide_index=True, key="compare_pairs_table", column_config=columns)


def _explain() -> None:
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            "A pattern says which earlier tokens a token may see, and is worth its pairs if the same model, read "
            "through it, predicts as well as with all of them: of two marks above one another the lower chose better. "
            "Focus's router was trained on five novels of the held-out novel's author; on code it has no such lead."
        )
        st.latex(
            r"\text{change} = \exp\Big(\tfrac{1}{n}\sum_i \big[\log p_\text{dense}(x_i) - \log p_\text{pattern}(x_i)"
            r"\big]\Big) - 1"
        )
        st.button("Try: the same on code", key="compare_pairs_try", icon=":material/lightbulb:", on_click=_try_code)


def _try_code() -> None:
    st.session_state[TEXT] = "python_code"
