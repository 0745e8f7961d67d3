"""The shipped Traces, what the app shows before any model is loaded: ``python -m data.build.traces``.

One file a passage in ``data/traces``, with maps of every layer and router. Run it again after an adapter changes
(``--fresh``). What is finished lies in ``.work/traces``, so that a run that was stopped goes on where it was:
the Traces take a few seconds each, the maps about two minutes a passage on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from focus_core import assets
from focus_core.maps import joint_map
from focus_core.models.catalog import DEFAULT
from focus_core.trace import Trace

ADAPTER, KMEANS = "smollm2-directed-k16", "smollm2-kmeans-k16"
ATTENTION_LAYERS = {"persuasion opening": [1, 9, 20]}
"""Layers whose queries and keys ship: they are most of a file."""
WORK = assets.DATA.parent / ".work" / "traces"


def file_name(text: str) -> str:
    """Name of a passage's Trace file."""
    return f"{text.replace(' ', '-')}.npz"


def capture(names: list[str]) -> None:
    """Record each passage with the router, and the k-means control's key sets beside it."""
    wanted = [name for name in names if not (WORK / file_name(name)).exists()]
    if not wanted:
        return
    from focus_core.adapter import load_adapter
    from focus_core.capture import capture_trace
    from focus_core.models.loading import load_model
    from focus_core.variants import make

    loaded = load_model(DEFAULT)

    def run(variant: str, adapter: str, name: str, layers: list[int]) -> Trace:
        module = load_adapter(assets.adapters()[adapter]["path"], loaded.model)
        return capture_trace(
            loaded,
            make(variant, module.serve),
            module,
            assets.load_text(name).text,
            text_name=name,
            adapter_name=adapter,
            layers=layers,
        )

    for name in wanted:
        trace = run("focus", ADAPTER, name, ATTENTION_LAYERS.get(name, []))
        trace.arrays["kmeans_bits"] = run("kmeans", KMEANS, name, []).arrays["key_bits"]
        trace.save(WORK / file_name(name))
        print(f"{name}: {len(trace)} tokens recorded", flush=True)


def place(names: list[str]) -> None:
    """Map every layer and router of each passage; one small file each, written whole."""
    for name in names:
        trace = Trace.load(WORK / file_name(name))
        for layer in range(sum(key.startswith("key_points.") for key in trace.arrays)):
            for router in range(len(trace.arrays[f"key_points.{layer}"])):
                path = _map_file(name, layer, router)
                if path.exists():
                    continue
                found = joint_map(trace.routing_points(layer)[:, router], trace.arrays[f"centroids.{layer}"][router])
                path.parent.mkdir(parents=True, exist_ok=True)
                half = path.with_suffix(".half.npz")
                np.savez(half, points=found.points, centroids=found.centroids)
                os.replace(half, path)
            print(f"{name}: layer {layer}", flush=True)


def assemble(name: str) -> Path:
    """Put a passage's Trace and maps into the file that ships; the points themselves stay behind."""
    trace = Trace.load(WORK / file_name(name))
    dropped = ("key_points.", "query_points.", "centroids.")
    arrays: dict[str, Any] = {key: value for key, value in trace.arrays.items() if not key.startswith(dropped)}
    for layer in range(trace.provenance["layers"]):
        parts = [_map_file(name, layer, router) for router in range(len(trace.arrays[f"key_points.{layer}"]))]
        maps = [np.load(part) for part in parts]
        arrays[f"map.{layer}"] = np.stack([m["points"] for m in maps]).astype(np.float16)
        arrays[f"map_centroids.{layer}"] = np.stack([m["centroids"] for m in maps]).astype(np.float16)
    provenance = {**trace.provenance, "recorded": True}
    shipped = dataclasses.replace(trace, provenance=provenance, arrays=arrays)
    return shipped.save(assets.DATA / "traces" / file_name(name), compress=True)


def _map_file(name: str, layer: int, router: int) -> Path:
    return WORK / name.replace(" ", "-") / f"{layer}-{router}.npz"


def main() -> None:
    """Record, map and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=assets.text_names("passage"), help="passages (default: all)")
    parser.add_argument("--fresh", action="store_true", help="begin again, whatever is finished")
    args = parser.parse_args()
    for name in args.names:
        if args.fresh:
            (WORK / file_name(name)).unlink(missing_ok=True)
            shutil.rmtree(_map_file(name, 0, 0).parent, ignore_errors=True)
    capture(args.names)
    place(args.names)
    for name in args.names:
        path = assemble(name)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
