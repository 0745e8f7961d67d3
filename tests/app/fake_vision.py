"""Vision models by name alone, and what they would make of an image: made by hand from the image's bytes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.vision.config import PRESETS

POINTS = 12
ARMS: dict[str, dict[str, Any]] = {"softmax": {}, "g3b": {"kind": "karat"}}


def write_models(folder: Path, arms: tuple[str, ...] = ("softmax", "g3b")) -> Path:
    """A folder in which the app finds one tiny model an arm; there are no weights."""
    for arm in arms:
        target = folder / f"tiny-{arm}"
        target.mkdir(parents=True)
        (target / "model.safetensors").touch()
        config = PRESETS["tiny"].with_attention(**ARMS[arm]).as_dict()
        about = {"title": f"Tiny ViT, {arm}", "data": "fashion", "seed": 0, "accuracy": 0.9, "model": config}
        (target / "config.json").write_text(json.dumps(about))
    return folder


def result(request: dict[str, Any]) -> dict[str, Any]:
    """A ``vision`` job's result: softmax is sure of class 7; KArAt of class 9, with a third of its weights negative."""
    pixels = base64.b64decode(request["pixels"])
    return {"models": [_looked(name, pixels) for name in request["models"]], "seconds": 0.03}


def _looked(name: str, pixels: bytes) -> dict[str, Any]:
    shape = PRESETS["tiny"]
    depth, heads, n = shape.depth, shape.heads, shape.tokens
    chance = np.random.default_rng(sum(pixels))
    scores = chance.normal(size=(depth, heads, n, n)).astype(np.float32)
    maps = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    learned = "softmax" not in name
    if learned:
        maps = np.where(np.arange(n) % 3 == 1, -maps, maps)
    probabilities = np.full(10, 0.02)
    probabilities[9 if learned else 7] = 0.82
    x = np.broadcast_to(np.linspace(-4, 4, POINTS, dtype=np.float32), (depth, heads, POINTS))
    own = np.sin(x[:, :, None] + np.arange(n)[:, None] / 9) / n
    grid = round((n - 1) ** 0.5)
    return {
        "name": name,
        "probabilities": probabilities.tolist(),
        "depth": depth,
        "heads": heads,
        "tokens": n,
        "maps": _pack(maps, "<f2"),
        "scores": _pack(scores, "<f2"),
        "rollout": _pack(chance.random((grid, grid)) / 49, "<f4"),
        "row_sums": _pack(maps.sum(-1), "<f4"),
        "negative_share": (maps < 0).mean((-1, -2)).tolist(),
        "object_mass": chance.random((depth, heads)).tolist(),
        "curves": {"points": POINTS, "x": _pack(x, "<f4"), "own": _pack(own, "<f2")} if learned else None,
    }


def _pack(values: np.ndarray, dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode("ascii")
