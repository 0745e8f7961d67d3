"""Brings the place where something has just begun into view, when the button that began it is far below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

_SHARED = Path(__file__).parent / "bring.js"
_OWN = """
export default function ({ data, parentElement }) {
  const seen = (window.focusLabBrought = window.focusLabBrought || new Set());
  if (seen.has(data)) return;
  seen.add(data);
  bringIntoView(parentElement.querySelector("span"), true);
}
"""


@st.cache_resource(show_spinner=False)
def _component(version: float) -> Any:
    js = _SHARED.read_text(encoding="utf-8") + _OWN
    return st.components.v2.component("focus_lab_bring", html="<span></span>", js=js)


def into_view(what: str, *, key: str) -> None:
    """Scroll to this place if it lies above what is seen, once in a browser for each ``what``."""
    _component(_SHARED.stat().st_mtime)(data=what, key=key)
