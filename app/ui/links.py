"""Links and limits: values in the address that do not exist are said, and a public server keeps to its list."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from app.ui.guard import plain

ALLOWED = "FOCUS_LAB_MODELS"
"""Environment variable: comma-separated model ids that a server bound to more than localhost may load."""

_LOCAL = {"localhost", "127.0.0.1", "::1"}

_NAMES = {
    "groups_tab": "tab",
    "masks_tab": "tab",
    "interpreted": "router",
    "interpreted_side": "side",
    "interpreted_measure": "measure",
    "interpreted_layer": "layer of the groups",
    "interpreted_head": "KV head",
    "interpreted_looks": "layer of the far pairs",
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
    "compare_pairs_text": "text",
    "compare_pairs_tokens": "length",
    "compare_prompt": "prompt",
    "compare_behind": "choice of the passage",
    "claims_one": "claim",
    "claims_method": "method",
    "claims_verdict": "verdict",
    "cache_tab": "tab",
    "cache_lines": "measured cache",
    "cache_prompt": "number of tokens read",
    "cache_dtype": "number format",
    "cache_card_shape": "model of the card",
    "cache_card_gb": "memory of the card in GB",
    "cache_card_batch": "number of sequences",
    "cache_card_length": "number of tokens",
    "cache_card_format": "type of numbers",
    "cache_batch": "batch",
    "cache_chip": "card",
    "cache_intensity": "number of operations a byte",
    "cache_width": "shape",
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
    "xa_pattern": "pattern",
    "xa_scope": "place of measurement",
    "vision_tab": "tab",
    "vision_left": "left model",
    "vision_right": "right model",
    "vision_layer": "layer",
    "vision_head": "attention head",
    "vision_show": "choice of row or rollout",
    "vision_unit": "measure of a weight",
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
    why: Callable[[str], str] | None = None,
) -> None:
    """Read a control's value from the opening link, before its widget is drawn.

    Streamlit writes and reads the labels that people see and drops any other value in silence; here a link may also
    hold the short name, which then stands in the address in full, and a value that does not exist is said.

    Args:
        key: the parameter, which is also the widget's key.
        options: what exists.
        shown: what is shown instead of a value that does not exist.
        notices: where the sentence goes.
        label: the widget's ``format_func``.
        bound: whether Streamlit reads the labels itself (``bind="query-params"``).
        why: what is to be said of a value that is not offered, in place of "does not exist", where it says anything.
    """
    if not _first(key):
        return
    raw = st.query_params.get(key)
    if raw is None or (bound and raw in {label(option) for option in options}):
        return
    asked = raw.casefold()
    named = [option for option in options if asked in (str(option).casefold(), label(option).casefold())]
    if named and bound:
        # Streamlit would read none but its labels, and take any other from the address: it is put there in full first.
        keep_notices(notices)
        st.query_params[key] = label(named[0])
        st.rerun()
    elif named:
        st.session_state[key] = named[0]
    else:
        reason = (why(asked) if why else "") or "does not exist"
        notices.append(f"In the link, {name_of(key)} {raw[:60]} {reason}; showing {label(shown)}.")


def amount(key: str, low: float, high: float, shown: str, notices: list[str]) -> None:
    """Read a number's bound control from the opening link, before its widget is drawn; what it cannot be is said.

    Args:
        key: the parameter, which is also the widget's key.
        low: the least that it can be.
        high: the most.
        shown: what is shown instead, as people read it.
        notices: where the sentence goes.
    """
    raw = st.query_params.get(key)
    if not _first(key) or raw is None:
        return
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        span = f"{low:,g} to {high:,g}"
        notices.append(f"In the link, {name_of(key)} cannot be {raw[:60] or 'empty'}, but {span}; showing {shown}.")


def _first(key: str) -> bool:
    """Whether a control is asked for the first time in this session."""
    seen = st.session_state.setdefault("_checked", set())
    new = key not in seen
    seen.add(key)
    return new


def asked_page() -> str:
    """The page that the opening address names; empty for the bare address, and once the page has been drawn."""
    context = get_script_run_ctx()
    return (context.pages_manager.intended_page_name or "") if context else ""


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


def rewrite(page: str) -> None:
    """Put back what was written before, without which another page's address begins; not what is one page's alone."""
    for key, value in st.session_state.get("_written", {}).items():
        if _belongs(key, page):
            _put(key, value)


def _belongs(key: str, page: str) -> bool:
    """Whether a parameter may stand in a page's address; Compare's many are its own, and so is the opened claim."""
    owner = key.partition("_")[0]
    return owner not in ("compare", "claims") or page == owner


def send_again(page: str) -> None:
    """Tell the browser the address once more when another page has been drawn.

    Quick changes of the page let it put the new page's bare address over what it was told at the page's beginning.
    """
    if st.session_state.get("_page") == page:
        return
    st.session_state["_page"] = page
    for key, value in st.session_state.get("_written", {}).items():
        if value and _belongs(key, page):
            st.query_params[key] = value
            return


def _put(key: str, value: str) -> None:
    if not value:
        st.query_params.pop(key, None)
    elif st.query_params.get(key) != value:
        st.query_params[key] = value


def seed(key: str, value: Any) -> None:
    """Set a control before it is drawn, over what the opening link says of it."""
    st.session_state.setdefault("_checked", set()).add(key)
    st.session_state[key] = value


def keep_notices(new: Iterable[str], of: str = "") -> tuple[str, ...]:
    """Notices stay for the session's next runs until they are dismissed, or until their model is not the shown one.

    Args:
        new: sentences.
        of: the model that they are about; empty for any.
    """
    kept = st.session_state.setdefault("_notices", [])
    for notice in new:
        if notice not in kept:
            kept.append(notice)
        if of:
            st.session_state.setdefault("_notices_of", {})[notice] = of
    return tuple(kept)


def drop_notices_of_others(model: str) -> None:
    """Forget what was said about a model that is no longer chosen."""
    owners = st.session_state.get("_notices_of", {})
    left = [notice for notice in st.session_state.get("_notices", []) if owners.get(notice, model) == model]
    st.session_state["_notices"] = left


def say_above(notices: list[str]) -> None:
    """Draw again with these notices, for a part that learns of them after the page has drawn its own."""
    if any(notice not in st.session_state.get("_notices", []) for notice in notices):
        keep_notices(notices)
        st.rerun()


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
