"""What the fake engine does for the page about groups: maps without UMAP, and edits of the sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from focus_core.maps import principal_axes
from focus_core.trace import Trace


def draw_map(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """A map of a Trace's routing space: its principal axes, bent so that it is another picture."""
    trace = Trace.load(request["trace"])
    layer, router = request["layer"], request["router"]
    points = trace.routing_points(layer)[:, router].astype(np.float32)
    placed, beside, _ = principal_axes(points, trace.arrays[f"centroids.{layer}"][router])
    np.savez(path, points=np.sign(placed) * np.sqrt(np.abs(placed)), centroids=beside)
    return {"map": str(path), "fitted": len(trace), "method": "umap", "seconds": 0.1}


def apply_edits(trace: Trace, edits: list[dict[str, Any]]) -> None:
    """Change the sets as the engine does, and a tenth of the predictions with them."""
    for edit in edits:
        for name in ("key_bits", "query_bits"):
            sets = trace.arrays[name][edit["layer"], edit["router"]]
            if "merge" in edit:
                gone, into = edit["merge"]
                member = sets >> np.int64(gone) & 1
                sets[:] = (sets & ~(member << np.int64(gone))) | (member << np.int64(into))
            else:
                sets[edit["token"]] = np.int64(1) << edit["to"]
    layers = {edit["layer"] for edit in edits}
    for layer in layers:
        trace.arrays["kept_pairs"][layer] = [
            trace.pattern(layer).density(0, h) for h in range(trace.provenance["heads"])
        ]
    trace.arrays["nll"][::10] += 0.2
    trace.arrays["top_p"][::10] = trace.arrays["top_p"][::10] / 2
    trace.provenance["edits"] = edits
