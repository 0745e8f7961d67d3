"""What there is to look with and at: the models that ship, the test images, an image of one's own, and the look."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st

from analysis.vision import Looked, unpack, words_of
from app.ui import selection
from app.ui.view import Page
from focus_core.vision import data, models
from focus_core.vision.models import VisionModelInfo

KIND = "vision"
EACH = 20
"""Thumbnails a class."""


@dataclass(frozen=True)
class Images:
    """The shipped test images, by class."""

    pixels: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """The image that is looked at.

    Attributes:
        pixels: uint8 [channels, side, side].
        place: among the shipped ones; None for one's own.
        label: its class; None where nobody says.
        title: for people.
    """

    pixels: np.ndarray
    place: int | None
    label: int | None
    title: str


def listed() -> list[VisionModelInfo]:
    """The models on this machine whose weights are there, softmax first, the best first among equals."""
    order = {"softmax": 0, "karat": 1}
    found = [info for info in models.vision_models() if info.config.channels == 1]
    return sorted(found, key=lambda m: (m.data != "fashion", order.get(m.config.attention.kind, 2), m.config.width))


@st.cache_data(show_spinner=False, max_entries=2)
def _images(kind: str, path: str, modified: float) -> Images:
    if kind == "digits":
        _, _, pixels, labels = data.digits()
        names: tuple[str, ...] = data.DIGITS
    else:
        pixels, labels, names = data.shipped_images()
    order = np.concatenate([np.flatnonzero(labels == c)[:EACH] for c in range(len(names))])
    return Images(pixels[order], labels[order], tuple(names))


def images_of(kind: str) -> Images | None:
    """The test images of a model's data; None where they are not on this machine."""
    path = data.SHIPPED
    if kind != "digits" and not path.is_file():
        return None
    return _images(kind, str(path), 0.0 if kind == "digits" else path.stat().st_mtime)


def classes_of(info: VisionModelInfo) -> tuple[str, ...]:
    """The names of what a model tells apart."""
    known = data.DIGITS if info.data == "digits" else data.NAMES
    return tuple(known) if len(known) == info.config.classes else tuple(map(str, range(info.config.classes)))


def request_of(infos: list[VisionModelInfo], picture: Picture) -> dict[str, Any]:
    """The job that looks."""
    channels, side, _ = picture.pixels.shape
    return {
        "models": [info.name for info in infos],
        "pixels": base64.b64encode(picture.pixels.tobytes()).decode("ascii"),
        "side": side,
        "channels": channels,
    }


def job_of(page: Page, request: dict[str, Any]) -> Any:
    """The look's job; it is asked for when it is first needed, since it takes no time worth a button."""
    job = page.engine.get(selection.asked(request)) if selection.asked(request) else None
    if job is None or job.state == "cancelled":
        job = page.engine.submit(KIND, request, session=page.session)
        selection.remember(request, job.id)
    return job


def looked(result: dict[str, Any], infos: list[VisionModelInfo]) -> list[Looked]:
    """A finished job's answer, in the models' order."""
    words = words_of([i.config.attention.kind for i in infos], [i.title for i in infos])
    return [
        unpack(found, word, info.config.attention.kind, classes_of(info))
        for found, word, info in zip(result["models"], words, infos, strict=True)
    ]
