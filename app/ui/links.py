"""Links and limits: values in the address that do not exist are said, and a public server keeps to its list."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

import streamlit as st

from app.ui.guard import plain

ALLOWED = "FOCUS_LAB_MODELS"
"""Environment variable: comma-separated model ids that a server bound to more than localhost may load."""

_LOCAL = {"localhost", "127.0.0.1", "::1"}

_NAMES = {
    "groups_tab": "tab",
    "masks_tab": "tab",
    "compare_view": "part of the page",
    "compare_same": "preset",
    "compare_like": "line to match",
    "compare_asked": "number to match",
    "compare_context": "context",
    "compare_batch": "batch",
    "compare_card": "card",
    "compare_rank": "bottleneck",
    "compare_numbers": "type of numbers",
    "compare_device": "device",
    "compare_text": "text of the perplexity",
    "compare_tab": "tab",
    "compare_gpu": "picture",
    "cache_tab": "tab",
    "cache_lines": "measured cache",
    "cache_prompt": "number of tokens read",
    "cache_dtype": "number format",
    "cache_card_shape": "model of the card",
    "compare_by": "cost",
    "compare_at": "shown length",
    "compare_lines": "variant",
    "compare_lengths": "length",
    "compare_repeats": "number of repeats",
    "compare_novel": "choice of the novel",
    "collapse_weights": "part that may move",
    "variant": "attention",
    "adapter": "trained groups",
    "head": "attention head",
    "over": "second mask",
    "rank": "measure to rank by",
    "rank_way": "order of heads",
    "features_tab": "tab",
    "features_k": "number of features kept",
    "features_select": "choice of what survives",
    "features_sparse": "choice of what is made sparse",
    "features_overlap": "choice for pairs that share nothing",
    "features_maps": "adapter with maps",
    "features_by": "measure of size",
    "codes": "pair of tokens",
    "xa_tab": "tab",
    "xa_stride": "stride",
    "xa_block": "block",
    "xa_threshold": "threshold",
    "xa_voters": "choice of whose queries decide",
    "xa_mode": "scorer",
}
"""Parameters whose controls people know by another name."""


def name_of(key: str) -> str:
    """A parameter as its control is called."""
    return _NAMES.get(key, key.replace("_", " "))


def check(
    key: str,
    options: Collection[Any],
    shown: Any,
    notices: list[str],
    label: Callable[[Any], str] = str,
    *,
    bound: bool = True,
) -> None:
    """Read a control's value from the opening link, before its widget is drawn.

    Streamlit writes and reads the labels that people see and drops any other value in silence; here a link may also
    hold the short name, and a value that does not exist is said.

    Args:
        key: the parameter, which is also the widget's key.
        options: what exists.
        shown: what is shown instead of a value that does not exist.
        notices: where the sentence goes.
        label: the widget's ``format_func``.
        bound: whether Streamlit reads the labels itself (``bind="query-params"``).
    """
    seen = st.session_state.setdefault("_checked", set())
    if key in seen:
        return
    seen.add(key)
    raw = st.query_params.get(key)
    if raw is None or (bound and raw in {label(option) for option in options}):
        return
    asked = raw.casefold()
    named = [option for option in options if asked in (str(option).casefold(), label(option).casefold())]
    if named:
        st.session_state[key] = named[0]
    else:
        notices.append(f"In the link, {name_of(key)} {raw[:60]} does not exist; showing {label(shown)}.")


def number(raw: str, largest: int) -> int | None:
    """A whole number from 1 to ``largest`` as a link writes it; None when it is anything else."""
    return int(raw) if raw.isdecimal() and len(raw) < 10 and 1 <= int(raw) <= largest else None


def opening(key: str) -> str:
    """A parameter that belongs to no control, as the opening link has it, once a session; then empty."""
    return st.session_state.setdefault("_opening", dict(st.query_params)).pop(key, "")


def restore(key: str, options: Iterable[Any], notices: list[str], *, several: bool = False) -> None:
    """Set a control from the opening link, ``key=a,b``, by its values' short names; what does not exist is said."""
    raw = opening(key)
    by_name = {str(option): option for option in options}
    named = list(filter(None, raw.split(",") if several else [raw]))
    found = [by_name[name] for name in named if name in by_name]
    if found:
        st.session_state[key] = found if several else found[0]
    for name in named:
        if name not in by_name:
            notices.append(f"In the link, {name_of(key)} {name[:60]} does not exist; it is left out.")


def write(key: str, value: str) -> None:
    """Put a parameter that belongs to no control into the address; an empty one is left out."""
    written = st.session_state.setdefault("_written", {})
    written[key] = value
    _put(key, value)


def rewrite() -> None:
    """Put back what was written before: another page's address begins without it."""
    for key, value in st.session_state.get("_written", {}).items():
        _put(key, value)


def _put(key: str, value: str) -> None:
    if not value:
        st.query_params.pop(key, None)
    elif st.query_params.get(key) != value:
        st.query_params[key] = value


def seed(key: str, value: Any) -> None:
    """Set a control before it is drawn, over what the opening link says of it."""
    st.session_state.setdefault("_checked", set()).add(key)
    st.session_state[key] = value


def keep_notices(new: Iterable[str]) -> tuple[str, ...]:
    """Notices stay for the session's next runs until they are dismissed."""
    kept = st.session_state.setdefault("_notices", [])
    kept.extend(notice for notice in new if notice not in kept)
    return tuple(kept)


def show_notices(notices: Iterable[str]) -> None:
    """What could not be used as it was given, until it is dismissed."""
    notices = list(notices)
    for notice in notices:
        st.warning(plain(notice), icon=":material/link_off:")
    if notices:
        st.button("Understood", key="notices_ok", on_click=dismiss_notices, type="tertiary")


def dismiss_notices() -> None:
    """Forget what was said about links and settings."""
    st.session_state["_notices"] = []


def keep_to_list() -> None:
    """Let a server that is open to others load the default model alone, unless it was given a list."""
    if st.get_option("server.address") not in _LOCAL:
        os.environ.setdefault(ALLOWED, "")


def refused(model: str) -> str:
    """Why a free model id or path may not be used on this server; empty when it may."""
    listed = os.environ.get(ALLOWED)
    allowed = [name.strip() for name in (listed or "").split(",") if name.strip()]
    if model in allowed or (listed is None and st.get_option("server.address") in _LOCAL):
        return ""
    can = f"It can load {', '.join(allowed)}." if allowed else "It loads the listed models only."
    return f"This server is open to others and does not load {model[:80]}. {can}"
