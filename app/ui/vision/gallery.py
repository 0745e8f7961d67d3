"""The shipped test images as a strip of thumbnails by class: one click picks."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

HERE = Path(__file__).parent
SCRIPT, STYLE = HERE / "gallery.js", HERE / "gallery.css"
HTML = '<div class="fg2" role="listbox" aria-label="Test images by class. Arrow keys move, Enter picks."></div>'


def gallery_data(pixels: np.ndarray, labels: np.ndarray, names: tuple[str, ...], picked: int | None) -> dict[str, Any]:
    """What the component draws, as JSON values.

    Args:
        pixels: uint8 [images, side, side], by class.
        labels: [images].
        names: of the classes.
        picked: the shown one; None where another image is shown.
    """
    return {
        "pixels": base64.b64encode(np.ascontiguousarray(pixels, np.uint8).tobytes()).decode("ascii"),
        "side": int(pixels.shape[-1]),
        "labels": [int(label) for label in labels],
        "names": list(names),
        "picked": picked,
    }


@st.cache_resource(show_spinner=False)
def _component(version: float) -> Any:
    css, js = STYLE.read_text("utf-8"), SCRIPT.read_text("utf-8")
    return st.components.v2.component("focus_lab_vision_gallery", html=HTML, css=css, js=js)


def gallery(data: dict[str, Any], *, key: str, on_pick: Callable[[int], None]) -> None:
    """Draw the strip; ``on_pick`` is called with an image's place before the page is drawn again."""
    component = _component(max(path.stat().st_mtime for path in (SCRIPT, STYLE)))
    component(data=data, key=key, on_picked_change=lambda: _picked(key, on_pick))


def _picked(key: str, on_pick: Callable[[int], None]) -> None:
    state = st.session_state.get(key)
    picked = state.get("picked") if state else None
    if picked is not None:
        on_pick(int(picked))
