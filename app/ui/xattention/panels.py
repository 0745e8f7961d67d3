"""Small maps of blocks side by side, alone or beside the canvas on which scores are painted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st

from app.ui.export import component_part
from app.ui.xattention.blocks import HERE, KEPT, colours, packed

_SHARED = ("../cividis.js", "base.js", "panels.js")
_TAIL = '<div class="sr" aria-live="polite"></div><div class="tip" role="tooltip"></div></div>'
_EASEL = "Scores of pairs: rows look, columns are looked at. Arrow keys move the brush, Space paints the chosen score."
PANELS = f'<div class="fl fp"><div class="panels"></div>{_TAIL}'
EASEL = (
    '<div class="fl fp"><div class="room"><div class="left">'
    f'<div class="stage easel" tabindex="0" role="application" aria-label="{_EASEL}">'
    '<canvas class="base"></canvas><canvas class="over"></canvas></div><div class="tools">brush '
    + "".join(f'<button type="button" data-brush="{b}" title="{b} × {b} pairs">{b}</button>' for b in (1, 2, 4))
    + '<span class="gap"></span>score '
    + "".join(
        f'<button type="button" data-score="{s}" title="{t}">{n}</button>'
        for s, n, t in ((1, "+", "Looks at it"), (0, "0", "Erases"), (-1, "−", "Looks away from it"))
    )
    + '<span class="gap"></span><button type="button" title="An empty canvas">Clear</button></div></div>'
    f'<div class="aside" style="max-width:none"><div class="panels"></div></div></div>{_TAIL}'
)


@dataclass(frozen=True)
class Panel:
    """One small map.

    Attributes:
        title: what it shows.
        note: the numbers under it.
        kept: (n, n) bool.
        share: (n, n) what the colour says, 0 to 1.
        rank: (n, n) place in the row; None draws none.
        meaning: what the numbers are, when they are pointed at.
    """

    title: str
    note: str
    kept: np.ndarray
    share: np.ndarray
    rank: np.ndarray | None = None
    meaning: str = ""


def panels_data(panels: Sequence[Panel], real: np.ndarray, across: int = 3) -> dict[str, Any]:
    """What the component draws, as JSON values; ``real`` is the (n, n) true share of each row."""
    return {
        "n": len(real),
        "real": packed(real, np.float32),
        "across": across,
        "panels": [
            {
                "title": p.title,
                "note": p.note,
                "meaning": p.meaning,
                "share": packed(p.share, np.float32),
                "marks": packed(np.where(p.kept, KEPT, 0), np.uint8),
                "rank": None if p.rank is None else packed(p.rank, np.int16),
            }
            for p in panels
        ],
    }


def css() -> str:
    """The styles of both."""
    return colours("fp") + (HERE / "blocks.css").read_text("utf-8") + (HERE / "panels.css").read_text("utf-8")


def js(own: str) -> str:
    """The module of ``few.js`` or ``paint.js``."""
    return "\n".join((HERE / name).read_text("utf-8") for name in (*_SHARED, own))


def part(data: dict[str, Any], *, easel: bool = False) -> str:
    """The panels, or the painted scores with theirs, within a page that stands alone."""
    html, own = (EASEL, "paint.js") if easel else (PANELS, "few.js")
    return component_part(html=html, css=css(), js=js(own), data=data, place="panels")


@st.cache_resource(show_spinner=False)
def _component(name: str, version: float) -> Any:
    html, own = (EASEL, "paint.js") if name == "easel" else (PANELS, "few.js")
    return st.components.v2.component(f"focus_lab_{name}", html=html, css=css(), js=js(own))


def _version() -> float:
    return max(path.stat().st_mtime for path in HERE.glob("*.[jc]s*"))


def few(data: dict[str, Any], *, key: str) -> None:
    """Draw panels."""
    _component("panels", _version())(data=data, key=key)


def easel(data: dict[str, Any], *, key: str, on_painted: Callable[[], None]) -> None:
    """Draw the canvas with its panels; what is painted stands in ``st.session_state[key]["painted"]``."""
    _component("easel", _version())(data=data, key=key, default={"painted": None}, on_painted_change=on_painted)
