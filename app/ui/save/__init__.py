"""The small Save menu: pictures are made in the browser from what is drawn, pages and tables here when asked for."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

from app.ui.guard import log
from focus_core.errors import FocusError

HERE = Path(__file__).parent
SCRIPTS = ("picture.js", "save.js")
HTML = """<div class="save"><span class="said" role="status"></span>
<button type="button" aria-haspopup="menu" aria-expanded="false">Save ▾</button>
<div class="menu" role="menu" popover="auto"></div></div>"""
MIME = {"html": "text/html;charset=utf-8", "csv": "text/csv;charset=utf-8"}


@st.cache_resource(show_spinner=False)
def _component(version: float) -> Any:
    js = "\n".join((HERE / name).read_text("utf-8") for name in SCRIPTS)
    return st.components.v2.component("focus_lab_save", html=HTML, css=(HERE / "save.css").read_text("utf-8"), js=js)


def area_key(key: str) -> str:
    """Key of the container that holds a figure and its menu."""
    return f"{key}_saveable"


def file_name(name: str) -> str:
    """A name that every file system takes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80] or "figure"


@st.fragment
def menu(key: str, name: str, makers: dict[str, Callable[[bool], str]]) -> None:
    """Draw the menu inside the container ``area_key(key)``, below what it saves.

    Args:
        key: of the figure.
        name: what the files are called.
        makers: ``html`` and ``csv``: called with whether the page is dark when that file is asked for.
    """
    own = f"{key}_save"
    state = st.session_state.get(own)
    wanted = (state.get("wanted") if state else None) or ""
    kind, _, theme = wanted.partition(" ")
    data: dict[str, Any] = {
        "kinds": ["png", "svg", *makers],
        "name": file_name(name),
        "area": "st-key-" + re.sub(r"[^a-zA-Z0-9_-]", "-", area_key(key)),
    }
    if kind in makers:
        data["file"] = {"kind": kind, "serial": uuid.uuid4().hex, **made(kind, makers[kind], theme == "dark")}
    component = _component(max((HERE / file).stat().st_mtime for file in (*SCRIPTS, "save.css")))
    component(data=data, key=own, on_wanted_change=_noted)


def made(kind: str, maker: Callable[[bool], str], dark: bool) -> dict[str, str]:
    """``text`` and ``mime`` of a file, or the sentence that says why there is none."""
    try:
        return {"text": maker(dark), "mime": MIME[kind]}
    except FocusError as error:
        return {"error": f"{error.message} {error.hint}".strip()}
    except Exception as error:
        log.exception("a file could not be made")
        return {"error": f"The file could not be made ({type(error).__name__})."}


def _noted() -> None:
    """What was asked for is read from the state; Streamlit asks for a callback to keep it."""
