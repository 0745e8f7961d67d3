"""Back to the shipped model, text and settings, with the controls and the address that say so."""

from __future__ import annotations

import streamlit as st

from app.ui import links, settings, texts
from focus_core.models.catalog import DEFAULT

LAYER, HEAD = 1, "all"
"""What the sidebar shows at first; early layers' groups are the easiest to read."""
_MADE = ("_opened", "_last", "_limit", "_prepare", "_runs", "_adapter_wanted")
"""What runs and links left in the session."""


def start() -> None:
    """Set every control that a page shares (a button's callback).

    A control's value is set, never removed: the browser would bring it back, and an address holds it.
    """
    for name in _MADE:
        st.session_state.pop(name, None)
    links.dismiss_notices()
    shared = {"model": DEFAULT, "text": texts.names()[0], "variant": settings.DEFAULT, "layer": LAYER, "head": HEAD}
    st.session_state.update(shared)
    adapter = next(iter(settings.adapters_for(DEFAULT, "router")), None)
    if adapter is not None:
        st.session_state["adapter"] = adapter
    settings.take_usual(settings.DEFAULT, adapter)
