"""The map of a router's space: one dot a token for what it is, one ring for what it looks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from app.ui.export import component_page

HERE = Path(__file__).parent
SCRIPTS = ("../bring.js", "../strip/words.js", "points.js", "told.js", "scatter.js")
"""The small helpers for sets, letters and quotes are the strip's, so that both write them alike."""
HTML = """<div class="fl fm"><div class="bar"></div><div class="body">
<div class="stage" tabindex="0" role="application" aria-label="Map of the tokens. Arrow keys go to the next point, Page
Up and Page Down to the next token of the text, Enter selects, plus and minus zoom, Escape lets go."
><canvas></canvas><canvas></canvas></div><div class="list" role="group" aria-label="Legend"></div></div>
<div class="hint">Point at a token to read it, click it or a group to select. Wheel zooms, drag moves; on the keyboard:
arrows, Enter, + −, Esc.</div><div class="sr" aria-live="polite"></div><div class="tip" role="tooltip"></div></div>"""


def js() -> str:
    """The map's module."""
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)


def css() -> str:
    """The map's styles."""
    return (HERE / "scatter.css").read_text(encoding="utf-8")


def page(data: dict[str, Any], title: str, note: str = "") -> str:
    """A page with the map alive in it, that works with the network off."""
    return component_page(title, html=HTML, css=css(), js=js(), data=data, note=note)


@st.cache_resource(show_spinner=False)
def _component(version: float) -> Any:
    return st.components.v2.component("focus_lab_scatter", html=HTML, css=css(), js=js())


def scatter(data: dict[str, Any], *, key: str) -> dict[str, Any] | None:
    """Draw the map; returns what was selected in it: ``group``, ``token`` (None for none) and the ``serial`` it saw.

    Args:
        data: of :func:`app.ui.scatter.data.scatter_data`. It goes to the browser once: an equal one is not sent again.
        key: the element's key; the selection also stands in ``st.session_state[key].picked``.
    """
    component = _component(max((HERE / name).stat().st_mtime for name in (*SCRIPTS, "scatter.css")))
    picked = component(data=data, key=key, default={"picked": None}, on_picked_change=_noted).picked
    return dict(picked) if picked else None


def _noted() -> None:
    """The selection is read from the state; Streamlit asks for a callback to keep it."""
