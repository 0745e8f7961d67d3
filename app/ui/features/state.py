"""The controls of the page Features and the two picked tokens: in the session and in the address."""

from __future__ import annotations

import numpy as np
import streamlit as st

from analysis.features.codes import Codes, Head, strongest_pair
from app.ui import links
from app.ui.features import maps
from app.ui.view import Page
from focus_core.trace import Trace

TEXT_KEY = "features_text"
K, SELECT, SPARSE, OVERLAP, MAPS = (f"features_{name}" for name in ("k", "select", "sparse", "overlap", "maps"))
TAB, BY = "features_tab", "features_by"
SELECTS = {"features": "Dimensions", "pairs": "Rotary pairs"}
MAPPED_SELECTS = {"features": "Dimensions", "first": "The first ones"}
SPARSES = {"both": "Queries and keys", "keys": "Keys alone"}
OVERLAPS = {"zero": "Score 0", "exclude": "Dropped"}


def default_features(dim: int) -> int:
    """A quarter of the head's dimensions, even."""
    return max(2, dim // 8 * 2)


def controls(page: Page, dim: int, rotary: int, notices: list[str]) -> tuple[Codes, str]:
    """Draw the controls; returns how codes are made, and the adapter whose maps come first (``none`` without)."""
    known = [maps.NONE, *maps.names(page.model)]
    sizes = list(range(2, dim + 1, 2))
    links.check(K, sizes, default_features(dim), notices)
    # Streamlit reads an odd number from a link as well.
    asked = st.session_state.get(K, st.query_params.get(K))
    if asked is not None and str(asked) not in map(str, sizes):
        st.session_state[K] = default_features(dim)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium", key="features_controls"):
        count = st.slider(
            f"Features kept, of {dim}",
            2,
            sizes[-1],
            default_features(dim),
            step=2,
            key=K,
            bind="query-params",
            width=190,
            help="How many dimensions of a head survive in a query and in a key.",
        )
        adapter = maps.NONE
        if len(known) > 1:
            links.check(MAPS, known, maps.NONE, notices, bound=False)
            if st.session_state.get(MAPS) not in known:
                st.session_state[MAPS] = maps.NONE
            adapter = st.selectbox(
                "Maps before the choice",
                known,
                format_func=lambda name: maps.label(page.model, name),
                key=MAPS,
                width=190,
                help="An adapter that was trained for codes maps queries and keys first.",
            )
            links.write(MAPS, "" if adapter == maps.NONE else adapter)
        selects = SELECTS if adapter == maps.NONE else MAPPED_SELECTS
        if adapter == maps.NONE and not rotary:
            selects = {"features": SELECTS["features"]}
        select = _choice(
            "Largest",
            selects,
            SELECT,
            notices,
            "What survives: the largest dimensions, as in the paper, or the largest rotary pairs, two dimensions that "
            "a token's position rotates together.",
        )
        sparse = _choice("Features kept of", SPARSES, SPARSE, notices, "Whole queries lose less, with the same cache.")
        overlap = _choice(
            "Nothing shared", OVERLAPS, OVERLAP, notices, "The paper's algorithm keeps such a pair, with score 0."
        )
    return Codes(int(count), select, sparse, overlap), adapter


def _choice(label: str, options: dict[str, str], key: str, notices: list[str], help: str) -> str:
    first = next(iter(options))
    links.check(key, options, first, notices, lambda name: options.get(name, str(name)))
    if st.session_state.get(key) not in (None, *options):
        st.session_state[key] = first
    chosen = st.segmented_control(
        label,
        list(options),
        default=first,
        required=True,
        format_func=options.get,
        key=key,
        bind="query-params",
        help=help,
    )
    return chosen or first


def pair(trace: Trace, head: Head, notices: list[str]) -> tuple[int, int]:
    """The picked query and key: from the text, from the opening link ``codes=12-5``, or an instructive pair."""
    count, text = len(trace), trace.provenance.get("text_hash")
    raw = links.opening("codes")
    if raw:
        numbers = [links.number(part, count) for part in raw.split("-")]
        if len(numbers) == 2 and all(numbers) and numbers[1] <= numbers[0]:  # type: ignore[operator]
            keep(trace, numbers[0] - 1, numbers[1] - 1)  # type: ignore[operator]
        else:
            notices.append(f"In the link, codes {raw[:60]} is no token and one before it; another pair is shown.")
    state = st.session_state.get(TEXT_KEY)
    picked = state.get("picked") if state else None
    if picked and list(picked) != st.session_state.get("_features_seen"):
        st.session_state["_features_seen"] = list(picked)
        keep(trace, *map(int, picked))
    known = st.session_state.get("_features_pair")
    if known and known[0] == text and 0 <= known[2] <= known[1] < count:
        return known[1], known[2]
    return first_pair(trace, head)


def keep(trace: Trace, query: int, key: int) -> None:
    """Pick a pair of this text."""
    st.session_state["_features_pair"] = (trace.provenance.get("text_hash"), query, key)


def first_pair(trace: Trace, head: Head) -> tuple[int, int]:
    """Two words between which this head's dense attention is strong; the last token and the first without any."""
    words = np.array([len(token.strip()) > 3 and token.strip().isalpha() for token in trace.tokens])
    return strongest_pair(head, words) or (len(words) - 1, 0)
