"""The held pair and the part of the mask that is looked at: kept across pages, in the link, set by buttons."""

from __future__ import annotations

import streamlit as st

from app.ui import links
from app.ui.mask.data import MAX_SHOWN
from focus_core.trace import Trace

KEY = "masks_canvas"


def hold(query: int, key: int) -> None:
    """Hold a pair in the canvas (a button's callback); query -1 lets go."""
    st.session_state["_mask_pin"] = [query, key] if query >= 0 else None
    st.session_state["_mask_select"] = (query, key, st.session_state.get("_mask_select", (0, 0, 0))[2] + 1)


def look_at(query: int, key: int, span: int) -> None:
    """Show the part of the mask that begins at this pair (a button's callback)."""
    st.session_state["_mask_view"] = [query, key, span]
    st.session_state["_mask_look"] = (query, key, span, st.session_state.get("_mask_look", (0, 0, 0, 0))[3] + 1)


def from_link(trace: Trace, notices: list[str]) -> None:
    """Take ``pair=query-key`` and ``part=query-key-tokens`` of the opening link, counted from 1 as in the text."""
    count = min(len(trace), MAX_SHOWN)
    for name, size in (("pair", 2), ("part", 3)):
        raw = links.opening(name)
        found = numbers(raw, size, count)
        if found and name == "pair" and found[1] > found[0]:
            notices.append(
                f"In the link, pair {raw[:60]} is a token and a later one, which it never sees; none is held."
            )
        elif raw and found is None:
            notices.append(f"In the link, {name} {raw[:60]} does not exist; none is taken.")
        elif found and name == "pair":
            hold(found[0] - 1, found[1] - 1)
        elif found:
            look_at(found[0] - 1, found[1] - 1, found[2])


def numbers(raw: str, size: int, count: int) -> list[int] | None:
    """``12-5-40`` as numbers from 1 to ``count``; None when it is anything else."""
    parts = raw.split("-")
    found = [value for part in parts if (value := links.number(part, count)) is not None]
    return found if len(parts) == len(found) == size else None


def current(trace: Trace) -> tuple[list[int] | None, list[int] | None]:
    """Held pair and view as they are; given to the canvas again after another page was open."""
    count = min(len(trace), MAX_SHOWN)
    if KEY in st.session_state:
        state = st.session_state[KEY]
        pin, view = state.get("pinned"), state.get("view")
    else:
        pin, view = st.session_state.get("_mask_pin"), st.session_state.get("_mask_view")
        for name in ("_mask_select", "_mask_look"):
            st.session_state.pop(name, None)
        if pin and max(pin) < count:
            hold(*pin)
        if view and view[2] <= count and max(view[:2]) < count:
            look_at(*view)
    pin = [int(v) for v in pin] if pin and max(pin) < count else None
    return pin, [int(v) for v in view] if view and view[2] <= count else None


def keep(pin: list[int] | None, view: list[int] | None, *, link: bool) -> None:
    """Mirror what the canvas says, and write it into the address where ``link``."""
    st.session_state["_mask_pin"], st.session_state["_mask_view"] = pin, view
    if link:
        links.write("pair", f"{pin[0] + 1}-{pin[1] + 1}" if pin else "")
        links.write("part", f"{view[0] + 1}-{view[1] + 1}-{view[2]}" if view else "")
