"""What two vision models make of one image: attention, predictions and learned functions.

Request: ``{models: [name, ...], pixels, side, channels}``; ``pixels`` are uint8 in base64, [channels,
side, side]. Result: ``{models: [...], seconds}`` in the request's order, arrays as base64 of little-endian numbers.
"""

from __future__ import annotations

import base64
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from focus_core.errors import InvalidInput
from focus_core.jobs.costs import Estimate, Host

if TYPE_CHECKING:
    from focus_core.vision.vit import ViT

STORED = False
"""An image may be a person's own, and looking again takes a moment."""
POINTS = 48
MOST = 2
_SECONDS, _BYTES = 0.3, 120_000_000


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Two forward passes of small models; see ``focus_core.handlers``."""
    _models(request)
    _pixels(request)
    return Estimate(_SECONDS, _BYTES, "Less than a second.")


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Read the models, then look with each; ``seconds`` are those of looking."""
    infos = _models(request)
    loaded = []
    for place, info in enumerate(infos):
        context.check()
        context.progress(0.9 * place / len(infos), f"Reading {info.title}.")
        loaded.append(_load(info.name, (info.path / "model.safetensors").stat().st_mtime))
    pixels, began = _pixels(request), time.perf_counter()
    found = [_looked(info, model, pixels) for info, model in zip(infos, loaded, strict=True)]
    return {"models": found, "seconds": time.perf_counter() - began}


def _models(request: dict[str, Any]) -> list[Any]:
    from focus_core.vision.models import vision_models

    names = request.get("models")
    if not isinstance(names, list) or not 1 <= len(names) <= MOST:
        raise InvalidInput("No vision models are named.", f"Name one or {MOST}.")
    known = {info.name: info for info in vision_models()}
    missing = [name for name in names if not isinstance(name, str) or name not in known]
    if missing:
        raise InvalidInput(f"There is no vision model {missing[0]!r}.", f"There are {', '.join(known) or 'none'}.")
    chosen = [known[name] for name in names]
    for info in chosen:
        if (info.config.image, info.config.channels) != (request.get("side"), request.get("channels")):
            raise InvalidInput(
                f"{info.title} reads images of {info.config.image} x {info.config.image} pixels and "
                f"{info.config.channels} channels, and got {request.get('side')} and {request.get('channels')}.",
                "Convert the image, or take a model of its size.",
            )
    return chosen


def _pixels(request: dict[str, Any]) -> np.ndarray:
    side, channels = int(request["side"]), int(request["channels"])
    try:
        data = np.frombuffer(base64.b64decode(str(request.get("pixels")), validate=True), np.uint8)
    except ValueError:
        data = np.empty(0, np.uint8)
    if data.size != channels * side * side:
        raise InvalidInput(f"The image has {data.size:,} numbers.", f"It needs {channels * side * side:,} of 0 to 255.")
    return data.reshape(channels, side, side)


@lru_cache(maxsize=4)
def _load(name: str, modified: float) -> ViT:
    from focus_core.vision.models import load_vision_model

    return load_vision_model(name)


def _looked(info: Any, model: ViT, pixels: np.ndarray) -> dict[str, Any]:
    from focus_core.vision.data import normalise
    from focus_core.vision.look import look
    from focus_core.vision.own import scores_of

    image = normalise(pixels)
    seen, scores = look(model, image), scores_of(model, image)
    return {
        "name": info.name,
        "probabilities": [float(p) for p in seen.probabilities],
        "depth": seen.maps.shape[0],
        "heads": seen.maps.shape[1],
        "tokens": seen.maps.shape[-1],
        "maps": _pack(seen.maps, "<f2"),
        "scores": _pack(scores, "<f2"),
        "rollout": _pack(seen.rollout, "<f4"),
        "row_sums": _pack(seen.row_sums, "<f4"),
        "negative_share": seen.negative_share.tolist(),
        "object_mass": seen.object_mass.tolist(),
        "curves": _curves(model, scores) if info.config.attention.kind == "karat" else None,
    }


def _curves(model: ViT, scores: np.ndarray) -> dict[str, Any]:
    """Every key's own function in every layer and head, over the scores of this image and a little beyond."""
    from focus_core.vision.own import own_curves

    depth, heads, tokens = scores.shape[:3]
    xs = np.empty((depth, heads, POINTS), np.float32)
    own = np.empty((depth, heads, tokens, POINTS), np.float32)
    for layer in range(depth):
        for head in range(heads):
            low, high = float(scores[layer, head].min()), float(scores[layer, head].max())
            room = 0.08 * max(high - low, 1e-3)
            xs[layer, head] = np.linspace(low - room, high + room, POINTS)
            own[layer, head] = own_curves(model, layer, head, xs[layer, head])
    return {"points": POINTS, "x": _pack(xs, "<f4"), "own": _pack(own, "<f2")}


def _pack(values: np.ndarray, dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode("ascii")
