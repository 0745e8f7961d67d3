"""What two vision models make of one image, as words, rows and shares; the image of a file as the models read it."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.numbers import percent, sig3
from focus_core.errors import InvalidInput
from focus_core.vision.data import border_shade, eight_bits, on_white, squared

KIND_WORDS = {"softmax": "softmax", "karat": "KArAt", "xattention": "XAttention"}
SHARE, WEIGHT = "Share of the row", "Weight"
MOST_PIXELS = 40_000_000


@dataclass(frozen=True)
class Curves:
    """What a key's own score adds to its own weight.

    Attributes:
        x: [depth, heads, points], scores.
        own: [depth, heads, tokens, points].
    """

    x: np.ndarray
    own: np.ndarray


@dataclass(frozen=True)
class Looked:
    """One model's look at an image; token 0 is the class token, the others are the patches in reading order.

    Attributes:
        name: the model's.
        word: what sentences call it.
        kind: of its attention.
        classes: their names.
        probabilities: [classes].
        maps: [depth, heads, N, N], what multiplies the values.
        scores: [depth, heads, N, N], what softmax or the learned functions get.
        rollout: [grid, grid].
        row_sums: [depth, heads, N].
        negative: [depth, heads], the share of weights below zero.
        mass: [depth, heads], the share of the class token's attention on the object's pixels.
        curves: the learned functions; None for softmax.
    """

    name: str
    word: str
    kind: str
    classes: tuple[str, ...]
    probabilities: np.ndarray
    maps: np.ndarray
    scores: np.ndarray
    rollout: np.ndarray
    row_sums: np.ndarray
    negative: np.ndarray
    mass: np.ndarray
    curves: Curves | None

    @property
    def grid(self) -> int:
        """Patches along a side."""
        return round((self.maps.shape[-1] - 1) ** 0.5)

    @property
    def says(self) -> int:
        """The likeliest class."""
        return int(np.argmax(self.probabilities))

    def row(self, layer: int, head: int, query: int, unit: str) -> np.ndarray:
        """[N], one token's weights: as they are, or over the sum of their sizes."""
        return in_unit(self.maps[layer, head, query], unit)


def in_unit(weights: np.ndarray, unit: str) -> np.ndarray:
    """Weights as they are, or as shares of the sum of their sizes."""
    if unit != SHARE:
        return weights
    return weights / max(float(np.abs(weights).sum()), 1e-12)


def unpack(found: dict[str, Any], word: str, kind: str, classes: tuple[str, ...]) -> Looked:
    """One model's part of a ``vision`` job's result."""
    depth, heads, n = found["depth"], found["heads"], found["tokens"]
    grid = round((n - 1) ** 0.5)
    curves = None
    if (raw := found["curves"]) is not None:
        points = raw["points"]
        curves = Curves(
            _array(raw["x"], "<f4", (depth, heads, points)), _array(raw["own"], "<f2", (depth, heads, n, points))
        )
    return Looked(
        found["name"],
        word,
        kind,
        classes,
        np.asarray(found["probabilities"]),
        _array(found["maps"], "<f2", (depth, heads, n, n)),
        _array(found["scores"], "<f2", (depth, heads, n, n)),
        _array(found["rollout"], "<f4", (grid, grid)),
        _array(found["row_sums"], "<f4", (depth, heads, n)),
        np.asarray(found["negative_share"], float),
        np.asarray(found["object_mass"], float),
        curves,
    )


def _array(packed: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed), dtype).astype(np.float32).reshape(shape)


def words_of(kinds: list[str], titles: list[str]) -> list[str]:
    """What sentences call the models: their attention where it differs, else what their titles do not share."""
    short = [KIND_WORDS.get(kind, kind) for kind in kinds]
    if len(set(short)) == len(short):
        return short
    parts = [title.partition(", ") for title in titles]
    alike = len({first for first, _, _ in parts}) == 1 and all(last for _, _, last in parts)
    return [last for _, _, last in parts] if alike else list(titles)


def answer(looked: list[Looked], truth: int | None, layer: int, head: int, query: int) -> str:
    """The page's sentence."""
    one = looked[0]
    of = f"Shown {_a(one.classes[truth])}, " if truth is not None else "Shown your image, "
    said = " and ".join(f"{m.word} says {m.classes[m.says]} ({percent(float(m.probabilities.max()))})" for m in looked)
    return f"{of}{said}. {rows_sentence(looked, layer, head, query)}"


def rows_sentence(looked: list[Looked], layer: int, head: int, query: int) -> str:
    """What the shown rows add up to and how much of them is negative."""
    parts = []
    for m in looked:
        row = m.maps[layer, head, query]
        negative = float((row < 0).mean())
        none = "none is negative" if negative == 0 else f"{percent(negative)} are negative"
        total = number(float(m.row_sums[layer, head, query]))
        parts.append(f"{m.word}'s weights here add up to {total} and {none}")
    return "; ".join([parts[0][:1].upper() + parts[0][1:], *parts[1:]]) + "."


def number(value: float) -> str:
    """A signed number with three figures and a true minus."""
    return ("−" if value < 0 else "") + sig3(abs(value))


def _a(name: str) -> str:
    """A class as one meets it: ``an ankle boot``, ``trousers``, ``an 8``."""
    if name == "Trouser":
        return "trousers"
    said = name if name[:2] == "T-" else name.lower()
    return f"{'an' if said[0] in 'aeiou8' else 'a'} {said}"


def most_negative(looked: Looked, layer: int, head: int) -> int:
    """The token that the class token's row takes away most; the class token itself where none is negative."""
    row = looked.maps[layer, head, 0].copy()
    row[0] = 0
    return int(np.argmin(row)) if row.min() < 0 else 0


def table(looked: list[Looked], layer: int, head: int, query: int) -> pd.DataFrame:
    """One row a patch: both models' weights and shares."""
    grid = looked[0].grid
    places = ["class token", *(f"row {i // grid + 1}, column {i % grid + 1}" for i in range(grid * grid))]
    columns: dict[str, Any] = {"token": places}
    for m in looked:
        columns[f"{m.word} weight"] = m.row(layer, head, query, WEIGHT)
        columns[f"{m.word} share"] = m.row(layer, head, query, SHARE)
    return pd.DataFrame(columns)


def converted(data: bytes, side: int, channels: int) -> tuple[np.ndarray, list[str]]:
    """A file as the models read it: square, ``side`` pixels, bright on dark as the training images are.

    Args:
        data: of a picture file that Pillow reads.
        side: of the models' images.
        channels: 1 or 3.

    Returns:
        uint8 [channels, side, side], and a sentence for everything that was changed.

    Raises:
        InvalidInput: it is no picture, or too large.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        opened = Image.open(io.BytesIO(data))
        wide, high = opened.size
        if wide * high > MOST_PIXELS:
            raise InvalidInput(
                f"The picture has {wide:,} x {high:,} pixels.", f"Up to {MOST_PIXELS // 10**6} million are read."
            )
        picture: Image.Image = eight_bits(ImageOps.exif_transpose(opened))
        mode = picture.mode
        picture = on_white(picture).convert("L" if channels == 1 else "RGB")
    except InvalidInput:
        raise
    except Image.DecompressionBombError:
        raise InvalidInput(
            "The picture has more pixels than can be opened safely.", f"Up to {MOST_PIXELS // 10**6} million are read."
        ) from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        raise InvalidInput(
            "The file is no picture that can be read.", "Take a PNG, JPEG, WebP, BMP or GIF that opens elsewhere."
        ) from None
    said = []
    if picture.size != (side, side):
        wide, high = picture.size
        picture = squared(picture, side)
        said.append(f"scaled from {wide:,} x {high:,} to {side} x {side} pixels")
    if channels == 1 and mode not in ("L", "1"):
        said.append("its colours made grey")
    pixels = np.asarray(picture, np.uint8)
    if border_shade(pixels if channels == 1 else pixels.mean(-1)) > 127:
        pixels = 255 - pixels
        said.append("turned to its negative, since the training images are bright on black")
    pixels = pixels[None] if channels == 1 else np.moveaxis(pixels, -1, 0)
    return np.ascontiguousarray(pixels), said
