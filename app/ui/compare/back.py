"""One step of the browser's Back leaves the Compare page, however many of its controls were set."""

from __future__ import annotations

from typing import Any

import streamlit as st

# Streamlit makes a step of every parameter that the app writes into the address, and Back over such a step changes
# nothing: the app writes it again.
_JS = """
export default function () {
  if (window.focusLabBack) return;
  window.focusLabBack = true;
  const push = history.pushState.bind(history);
  history.pushState = (state, title, url) => {
    const next = new URL(url ?? location.href, location.href);
    const here = next.pathname === location.pathname && /\\/compare\\/?$/.test(next.pathname);
    if (here) history.replaceState(state, title, url);
    else push(state, title, url);
  };
}
"""


@st.cache_resource(show_spinner=False)
def _component(code: str) -> Any:
    return st.components.v2.component("focus_lab_back", html="<span></span>", js=code)


def in_one_step() -> None:
    """Let what the controls write into the address take the place of what stood there."""
    _component(_JS)(key="compare_back", height=1)
