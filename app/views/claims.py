"""What was claimed, and what did we measure? The ledger of every claim behind the project."""

from __future__ import annotations

import streamlit as st

from analysis.choose_words import GROUPED
from analysis.claims import METHODS, VERDICTS, answer, table, verdict_bars
from app.ui import claim, links
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.view import Needs, Page, View
from focus_core.claims import claims

METHOD, VERDICT, ONE, TABLE = "claims_method", "claims_verdict", "claims_one", "claims_table"
ALL = "all"
_START = "focus-speed-1m"


def render(page: Page) -> None:
    """Draw the page."""
    st.title("What was claimed, and what did we measure?", anchor=False)
    sentence = st.container()
    every = {one["id"]: one for one in claims()}
    notices: list[str] = []
    links.check(METHOD, [ALL, *METHODS], ALL, notices, _method)
    links.check(VERDICT, [ALL, *VERDICTS], ALL, notices, _verdict)
    links.restore(ONE, every, notices)
    links.show_notices(links.keep_notices(notices))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        method = st.selectbox(
            "Method", [ALL, *METHODS], key=METHOD, format_func=_method, bind="query-params", width=220
        )
        verdict = st.selectbox(
            "Verdict", [ALL, *VERDICTS], key=VERDICT, format_func=_verdict, bind="query-params", width=220
        )
    of_method = [one for one in every.values() if method in (ALL, one["method"])]
    shown = [one for one in of_method if verdict in (ALL, one["verdict"])]
    sentence.markdown(f"#### {plain(answer(of_method, None if method == ALL else method))}")
    plot(
        verdict_bars(shown),
        key="claims_bars",
        alt="Claims by method and verdict.",
        name="claims",
        rows=lambda: table(shown),
        note="Every claim of the project's four source documents.",
    )
    if not shown:
        st.info("No claim of this method has this verdict.", icon=":material/filter_alt_off:")
        return
    _rows([one["id"] for one in shown], shown)
    opened = _opened(shown, every)
    links.write(ONE, opened)
    claim.show(page, every[opened])
    _explain()


def _rows(ids: list[str], shown: list) -> None:
    """The table; a click opens a claim."""
    st.dataframe(
        table(shown)[["verdict", "claim", "measured", "method"]],
        key=TABLE,
        hide_index=True,
        height=min(36 * (len(shown) + 1), 330),
        on_select=lambda: _clicked(ids),
        selection_mode="single-row",
        column_config={
            "method": st.column_config.TextColumn(width=95),
            "verdict": st.column_config.TextColumn(width=130),
            "measured": st.column_config.TextColumn(width=140),
        },
    )


def _clicked(ids: list[str]) -> None:
    rows = st.session_state[TABLE]["selection"]["rows"]
    if rows and rows[0] < len(ids):
        st.session_state[ONE] = ids[rows[0]]


def _opened(shown: list, every: dict) -> str:
    """The claim that is open: chosen, linked, or the first that is shown."""
    ids = [one["id"] for one in shown]
    if st.session_state.get(ONE) not in ids:
        st.session_state[ONE] = _START if _START in ids else ids[0]
    return st.selectbox("Claim", ids, key=ONE, format_func=lambda name: every[name]["claim"])


def _method(name: str) -> str:
    return METHODS.get(name, "All methods")


def _verdict(name: str) -> str:
    return "Every verdict" if name == ALL else name.capitalize()


def _explain() -> None:
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            "The project began with four documents that praise sparse attention. Each of their claims stands here with "
            "the condition under which its paper states it, and with our own number, read from a recorded result. A "
            "verdict follows from the numbers: a claim that nothing decides yet is open. "
            f"In the settings, {GROUPED}"
        )
        st.latex(r"\text{change of perplexity} = 100 \left( \mathrm{ppl} / \mathrm{ppl}_{\text{dense}} - 1 \right)")
        st.button(
            "Try: halve a cache on this machine",
            key="claims_try",
            icon=":material/lightbulb:",
            on_click=_try,
        )


def _try() -> None:
    st.session_state.update({METHOD: ALL, VERDICT: ALL, ONE: "slim-half"})


VIEW = View(
    key="claims",
    title="Claims",
    section="Decide",
    icon=":material/fact_check:",
    needs=Needs(),
    render=render,
    order=20,
)
