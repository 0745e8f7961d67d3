"""The mask canvas: every pair of tokens, kept or not, at any zoom, drawn from groups, window and sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from analysis import palette
from app.ui.export import component_part
from app.ui.mask.data import mask_data

__all__ = ["mask_canvas", "mask_data", "part"]

HERE = Path(__file__).parent
SCRIPTS = ("../bring.js", "cells.js", "say.js", "paint.js", "input.js", "mask.js")
_HELP = (
    "The mask: rows look, columns are looked at. Arrow keys move the crosshair, with Shift they move the view, "
    "plus and minus zoom, 0 shows all, Enter holds a pair, Escape lets go."
)
_TOOLS = (
    ("in", "Zoom in (+)", "+", ""),
    ("out", "Zoom out (−)", "−", ""),
    ("all", "Show the whole mask (0)", "All", "wide"),
)
HTML = (
    '<div class="fl fm"><div class="say"></div><div class="room">'
    f'<div class="stage" tabindex="0" role="application" aria-label="{_HELP}">'
    '<canvas class="base"></canvas><canvas class="over"></canvas></div>'
    '<div class="side"><div class="tools">'
    + "".join(f'<button type="button" data-does="{d}" title="{t}" class="{c}">{s}</button>' for d, t, s, c in _TOOLS)
    + '</div><canvas class="map" title="The whole mask; click to go there"></canvas>'
    '<div class="bar" aria-label="Legend"></div><div class="note"></div>'
    '<div class="keys"><kbd>scroll</kbd> or <kbd>+</kbd> <kbd>−</kbd> zoom · drag moves · '
    "<kbd>←↑↓→</kbd> crosshair · <kbd>Enter</kbd> holds · <kbd>Esc</kbd> lets go</div></div></div>"
    '<div class="sr" aria-live="polite"></div><div class="tip" role="tooltip"></div></div>'
)


def css() -> str:
    """The canvas's styles and colours."""
    rules = [f"--g{i}:{color};" for i, color in enumerate(palette.GROUPS)]
    rules += [f"--pair-{name}:{color};" for name, color in palette.PAIRS.items()]
    rules.append(f"--pair-second:{palette.SECOND};")
    return ".fm{" + "".join(rules) + "}" + (HERE / "mask.css").read_text(encoding="utf-8")


def js() -> str:
    """The canvas's module."""
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)


def part(data: dict[str, Any], *, place: str = "mask") -> str:
    """The mask alive within a page that stands alone (``app.ui.export.document``)."""
    return component_part(html=HTML, css=css(), js=js(), data=data, place=place)


@st.cache_resource(show_spinner=False)
def _component(version: float) -> Any:
    return st.components.v2.component("focus_lab_mask", html=HTML, css=css(), js=js())


def mask_canvas(data: dict[str, Any], *, key: str) -> dict[str, Any]:
    """Draw a mask.

    Args:
        data: of :func:`app.ui.mask.data.mask_data`.
        key: the element's key; the state also stands in ``st.session_state[key]`` before this is called.

    Returns:
        ``pinned``: [query, key] of the held pair, or None; ``view``: [first query, first key, tokens across] of the
        part that is shown, or None while all of it is.
    """
    component = _component(max((HERE / name).stat().st_mtime for name in (*SCRIPTS, "mask.css")))
    result = component(
        data=data,
        key=key,
        default={"pinned": None, "view": None},
        on_pinned_change=_noted,
        on_view_change=_noted,
    )
    return {"pinned": result.pinned, "view": result.view}


def _noted() -> None:
    """The state is read where it stands; Streamlit asks for a callback to keep it."""
