"""Layers x heads as small maps side by side: point to read, click to choose. Plotly's heatmaps report no clicks."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from analysis import palette
from app.ui.export import component_part

HERE = Path(__file__).parent
SCRIPTS = ("../cividis.js", "grid.js")
HTML = (
    '<div class="fl fg"><div class="panels"></div><div class="axis">query head across, layer down</div>'
    '<div class="sr" aria-live="polite"></div><div class="tip" role="tooltip"></div></div>'
)


@dataclass(frozen=True)
class Panel:
    """One small map.

    Attributes:
        title: what it shows.
        meaning: one sentence, shown when the title is pointed at.
        unit: ``%`` (values are shares, 0 to 1) or the unit's name.
        values: (layers, heads).
        low: value of the darkest colour. high: of the lightest.
    """

    title: str
    meaning: str
    unit: str
    values: np.ndarray
    low: float
    high: float


def grid_data(
    panels: Sequence[Panel], picked: tuple[int, int | None] | None, click: str = "Click to look at its mask."
) -> dict[str, Any]:
    """What the component draws, as JSON values.

    Args:
        panels: all with the same layers and heads.
        picked: layer and head that are shown; None of both for none, of the head for all.
        click: what a click does, in one sentence.
    """
    layers, heads = panels[0].values.shape
    return {
        "layers": int(layers),
        "heads": int(heads),
        "picked": list(picked) if picked else None,
        "click": click,
        "panels": [
            {
                "title": p.title,
                "meaning": p.meaning,
                "unit": p.unit,
                "low": p.low,
                "high": p.high,
                "values": base64.b64encode(np.ascontiguousarray(p.values, np.float32).tobytes()).decode("ascii"),
            }
            for p in panels
        ],
    }


def css() -> str:
    """The grid's styles."""
    return f".fg{{--pair-lost:{palette.LOST}}}" + (HERE / "grid.css").read_text("utf-8")


def js() -> str:
    """The grid's module."""
    return "\n".join((HERE / name).read_text("utf-8") for name in SCRIPTS)


def part(data: dict[str, Any], *, place: str = "heads") -> str:
    """The grid within a page that stands alone (``app.ui.export.document``): it is read there, and chooses nothing."""
    return component_part(html=HTML, css=css(), js=js(), data={**data, "still": True}, place=place)


@st.cache_resource(show_spinner=False)
def _component(version: float) -> Any:
    return st.components.v2.component("focus_lab_grid", html=HTML, css=css(), js=js())


def head_grid(data: dict[str, Any], *, key: str, on_pick: Callable[[int, int], None]) -> None:
    """Draw the panels.

    Args:
        data: of :func:`grid_data`.
        key: the element's key.
        on_pick: called with layer and head before the page is drawn again, so that it may set controls.
    """
    component = _component(max((HERE / name).stat().st_mtime for name in (*SCRIPTS, "grid.css")))
    component(data=data, key=key, on_picked_change=lambda: _picked(key, on_pick))


def _picked(key: str, on_pick: Callable[[int, int], None]) -> None:
    state = st.session_state.get(key)
    picked = state.get("picked") if state else None
    if picked:
        on_pick(int(picked[0]), int(picked[1]))
