"""The image beside what each model attends to on it: point to read, click a patch for its row."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from app.ui.export import component_part

HERE = Path(__file__).parent
SCRIPT, STYLE = HERE / "maps.js", HERE / "maps.css"
HTML = (
    '<div class="fl fv"><div class="tiles"></div><div class="scale"><span class="low"></span><i></i>'
    '<span class="high"></span><span class="said"></span></div>'
    '<div class="sr" aria-live="polite"></div><div class="tip" role="tooltip"></div></div>'
)


@dataclass(frozen=True)
class Tile:
    """What one model puts on the image.

    Attributes:
        title: the model.
        values: [grid, grid], of the patches.
        token: of the class token; None where it has none (rollout).
    """

    title: str
    values: np.ndarray
    token: float | None


def maps_data(
    pixels: np.ndarray, tiles: list[Tile], query: int | None, *, grid: int, unit: str, picked: str
) -> dict[str, Any]:
    """What the component draws, as JSON values; all tiles share one scale.

    Args:
        pixels: uint8 [channels, side, side].
        tiles: the models' maps, on grids of one size; none while they are not there.
        query: token whose row is shown, 0 for the class token; None where the map is no row.
        grid: patches along a side.
        unit: ``%`` for shares, else empty.
        picked: what is shown, in words.
    """
    channels, side, _ = pixels.shape
    return {
        "pixels": _pack(pixels, np.uint8),
        "channels": channels,
        "side": side,
        "grid": grid,
        "query": query,
        "unit": unit,
        "picked": picked,
        "most": max((float(np.abs(tile.values).max()) for tile in tiles), default=0.0) or 1.0,
        "signed": any(bool((tile.values < 0).any()) for tile in tiles),
        "tiles": [
            {"title": tile.title, "values": _pack(tile.values, np.float32), "token": tile.token} for tile in tiles
        ],
    }


def part(data: dict[str, Any]) -> str:
    """The maps within a page that stands alone (``app.ui.export.document``): they are read there, and pick nothing."""
    still = {**data, "still": True}
    return component_part(html=HTML, css=STYLE.read_text("utf-8"), js=SCRIPT.read_text("utf-8"), data=still)


@st.cache_resource(show_spinner=False)
def _component(version: float) -> Any:
    css, js = STYLE.read_text("utf-8"), SCRIPT.read_text("utf-8")
    return st.components.v2.component("focus_lab_vision_maps", html=HTML, css=css, js=js)


def attention_maps(data: dict[str, Any], *, key: str) -> None:
    """Draw the maps; the picked token stands in ``st.session_state[key].picked`` when the page is drawn again."""
    component = _component(max(path.stat().st_mtime for path in (SCRIPT, STYLE)))
    component(data=data, key=key, default={"picked": None}, on_picked_change=_noted)


def _noted() -> None:
    """The pick is read from the state; Streamlit asks for a callback to keep it."""


def _pack(values: np.ndarray, dtype: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode("ascii")
