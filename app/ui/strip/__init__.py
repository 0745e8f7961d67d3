"""The token strip: the text itself, coloured by group; point at a token to see what it still sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from analysis import palette
from app.ui.export import component_part

HERE = Path(__file__).parent
SCRIPTS = ("../bring.js", "words.js", "strip.js")
HTML = """<div class="fl"><div class="say"></div>
<div class="text" tabindex="0" role="group" aria-label="The text. Arrow keys move, Enter holds a token, Escape lets go."
></div><div class="bar" aria-label="Legend"></div>
<div class="sr" aria-live="polite"></div><div class="tip" role="tooltip"></div></div>"""
_LETTER = (
    "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 11 10'%3E%3Ctext x='0' y='9.2' font-size='11' "
    "font-family='sans-serif' font-weight='700' fill='%237b8291'%3E{letter}%3C/text%3E%3C/svg%3E"
)


def css() -> str:
    """The strip's styles: the fixed part and one rule a colour."""
    rules = [f"--g{i}:{color};" for i, color in enumerate(palette.GROUPS)]
    rules += [f"--pair-{name}:{color};" for name, color in palette.PAIRS.items()]
    rules += [f"--worse:{palette.WORSE};", f"--better:{palette.BETTER};"]
    out = [".fl{" + "".join(rules) + "}"]
    for i, letter in enumerate(palette.LETTERS):
        tint = f"color-mix(in srgb, var(--g{i}) 30%, var(--bg))"
        out.append(
            f'.c.g{i}{{background-image:url("data:image/svg+xml,{_LETTER.format(letter=letter)}");'
            f"background-color:{tint};box-shadow:inset 0 -.13em 0 var(--g{i})}}"
        )
    out.append(
        f'.c.mix{{background-image:url("data:image/svg+xml,{_LETTER.format(letter="+")}"),'
        "linear-gradient(color-mix(in srgb, var(--bg) 60%, transparent) 0 0),var(--stripes);"
        "background-size:auto .52em,100% 100%,100% 100%;"
        "background-clip:border-box,content-box,content-box;background-position:left 1px top .06em,0 0,0 0}"
    )
    for step in range(1, 5):
        share = 12 + 15 * step
        out.append(
            f".c.bad{step}{{background-color:color-mix(in srgb, var(--worse) {share}%, var(--bg));"
            f"box-shadow:inset 0 -{0.05 * step:.2f}em 0 var(--worse)}}"
            f".c.good{step}{{background-color:color-mix(in srgb, var(--better) {share}%, var(--bg));"
            "text-decoration:underline dotted var(--better)}"
        )
    return "\n".join(out) + (HERE / "strip.css").read_text(encoding="utf-8")


def js() -> str:
    """The strip's module."""
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)


def part(data: dict[str, Any], *, place: str = "strip") -> str:
    """The strip alive within a page that stands alone (``app.ui.export.document``); a held token stays held."""
    lost = data.get("lost")
    data = {**data, "select": [lost["query"], 1] if lost else None}
    return component_part(html=HTML, css=css(), js=js(), data=data, place=place)


@st.cache_resource(show_spinner=False)
def _component(version: float) -> Any:
    return st.components.v2.component("focus_lab_strip", html=HTML, css=css(), js=js())


def token_strip(data: dict[str, Any], *, key: str, held: int | None = None) -> int | None:
    """Draw the strip; returns the pinned token, None while nothing is pinned.

    Args:
        data: of :func:`app.ui.strip.data.strip_data`.
        key: the element's key; the pin also stands in ``st.session_state[key].pinned`` before this is called.
        held: what is pinned until the browser has said what is: the same in every run while the strip is there.
    """
    component = _component(max((HERE / name).stat().st_mtime for name in (*SCRIPTS, "strip.css")))
    result = component(data=data, key=key, default={"pinned": held}, on_pinned_change=_noted)
    pinned = result.pinned
    return int(pinned) if pinned is not None else None


def _noted() -> None:
    """The pin is read from the state; Streamlit asks for a callback to keep it."""
