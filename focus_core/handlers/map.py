"""UMAP of the routing space of one layer and router of a Trace.

Request: ``{trace: path, layer, router}``. Result: ``{map: path, fitted, method, seconds}``; the file is an npz with
``points`` (P, N, 2) and ``centroids`` (K, 2), see ``focus_core.maps.Map``.
"""

from __future__ import annotations

import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from focus_core.errors import InvalidInput
from focus_core.jobs.costs import Estimate, Host
from focus_core.jobs.files import user_path
from focus_core.maps import EPOCHS, FIT_TOKENS, PREPARING_SECONDS, joint_map, prepare_umap
from focus_core.trace import Trace

_SECONDS_PER_EPOCH_AND_POINT = 2.2e-6
_SECONDS_PER_PLACED = 3e-4
_BYTES = 400_000_000


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Cost of the fit and of placing the rest; see ``focus_core.handlers``."""
    path, layer, router = _checked(request)
    sets, routers, tokens = _sizes(path, layer)
    if router >= routers:
        raise InvalidInput(f"There is no router {router}.", f"Layer {layer} has routers 0 to {routers - 1}.")

    def cost(n: int) -> tuple[float, int]:
        points = sets * min(n, FIT_TOKENS)
        placed = sets * max(0, n - FIT_TOKENS)
        distances = 3 * 8 * points * max(points, 2_048)
        seconds = EPOCHS * points * _SECONDS_PER_EPOCH_AND_POINT + 1e-7 * points**2 + _SECONDS_PER_PLACED * placed
        return seconds, _BYTES + distances

    detail = f"{PREPARING_SECONDS:.0f} s of it prepare UMAP the first time"
    return host.fit("map", cost, tokens, detail=detail, fixed=(PREPARING_SECONDS, 0))


def identity(request: dict[str, Any]) -> Any:
    """Age and size of the Trace file: another one at the same path is another map."""
    status = _checked(request)[0].stat()
    return [status.st_size, status.st_mtime_ns]


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Draw the map and leave it in the store."""
    began = time.monotonic()
    path, layer, router = _checked(request)
    trace = Trace.load(path)
    points = trace.routing_points(layer)
    if points is None:
        raise _no_points(trace.arrays, layer)
    if router >= points.shape[1]:
        raise InvalidInput(f"There is no router {router}.", f"Layer {layer} has {points.shape[1]}.")
    began_umap = time.monotonic()
    prepare_umap(context.progress)
    context.loading_seconds += time.monotonic() - began_umap  # the next map does not take it again
    context.check()
    found = joint_map(
        points[:, router],
        trace.arrays[f"centroids.{layer}"][router],
        progress=lambda share, sentence: context.progress(0.4 + 0.55 * share, sentence),
        cancel=context.cancelled,
    )
    context.progress(0.98, "Saving.")
    np.savez(context.folder / "map.npz", points=found.points, centroids=found.centroids)
    seconds = round(time.monotonic() - began, 3)
    return {"files": {"map": "map.npz"}, "fitted": found.fitted, "method": found.method, "seconds": seconds}


def _checked(request: dict[str, Any]) -> tuple[Path, int, int]:
    name = request.get("trace")
    if not isinstance(name, str) or not name:
        raise InvalidInput("No Trace is named.", "Name the file of a run.")
    path = user_path(name)
    if not path.is_file():
        raise InvalidInput(f"There is no Trace file at {path}.", "Run the text again.")
    numbers = request.get("layer"), request.get("router")
    for what, value in zip(("layer", "router"), numbers, strict=True):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidInput(f"{what} is {value!r:.40}.", "It can be 0 or more.")
    return path, *numbers


def _sizes(path: Path, layer: int) -> tuple[int, int, int]:
    """Point sets, routers and tokens of a layer, from the head of its arrays alone."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            shape: tuple[int, ...] = ()
            if f"key_points.{layer}" in names:
                with archive.open(f"key_points.{layer}.npy") as file:
                    np.lib.format.read_magic(file)
                    shape, _, _ = np.lib.format.read_array_header_1_0(file)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise InvalidInput(f"{path.name} is not a Trace file ({error}).", "Use a file written by `trace`.") from None
    if not shape:
        raise _no_points(names, layer)
    routers, tokens, _ = shape
    return 2 if f"query_points.{layer}" in names else 1, routers, tokens


def _no_points(names: Any, layer: int) -> InvalidInput:
    known = sorted(int(name.split(".")[1]) for name in names if name.startswith("key_points."))
    if not known:
        return InvalidInput("This Trace has no routing space.", "Run the text with Focus and a trained router.")
    return InvalidInput(
        f"This Trace has no routing space of layer {layer}.", f"It has layers {', '.join(map(str, known))}."
    )
