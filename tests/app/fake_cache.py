"""The synthetic engine, with caches made by hand. Chosen by FOCUS_LAB_ENGINE."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from focus_core.benchmark.cache_lines import counted_bytes
from focus_core.errors import TooLarge
from focus_core.models.shapes import Shape
from focus_core.variants import make as make_variant
from tests.app import fake
from tests.comparisons import spread

SHAPE = Shape(4, 576, 9, 3, 64, 49152, 8192, 134_515_008)
STOP_AFTER = "FAKE_ROWS"
DENSE = {"variant": "dense", "config": {}, "adapter": None, "label": "dense"}


class CacheEngine(fake.FakeEngine):
    """Answers ``cache`` with rows counted from the settings; errors depend on the variant alone."""

    def submit(self, kind: str, request: dict[str, Any], session: str = ""):
        job = super().submit(kind, request, session)
        if kind == "cache" and job.error is None:
            result = result_of(request)
            rows = result["rows"][: int(os.environ.get(STOP_AFTER, "2"))]
            job.partial = [{"about": result["about"]}, *({"row": {**row, "complete": False}} for row in rows)]
        return job

    def estimate(self, kind: str, request: dict[str, Any]) -> fake.FakeEstimate:
        if kind == "cache" and request["prompt"] > 1024:
            raise TooLarge(
                "The text has 1,142 tokens and 2,080 were asked for.", "Take a prompt of up to 1,110 tokens."
            )
        return super().estimate(kind, request)

    def _work(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        return result_of(request) if kind == "cache" else super()._work(kind, request)


def row(entry: dict[str, Any], error: float | None = 0.5) -> dict[str, Any]:
    """One row; ``error`` of its middle layers in float32, None where they overflow."""
    variant = make_variant(entry["variant"], entry["config"])
    size = counted_bytes(variant, SHAPE, 4)
    dense = entry["variant"] == "dense"
    floor = {"float32": 0.0, "bfloat16": 0.008, "float16": 0.001}
    layers = {
        dtype: {
            "error": [low if dense or error == 0 else error if error is None else max(error, low)] * SHAPE.layers,
            "bytes": [counted_bytes(variant, SHAPE, 4 if dtype == "float32" else 2) / SHAPE.layers] * SHAPE.layers,
        }
        for dtype, low in floor.items()
    }
    return {
        "key": json.dumps([entry["variant"], entry["config"], entry["adapter"]]),
        "label": entry["label"],
        "variant": entry["variant"],
        "config": variant.to_dict(),
        "adapter": entry["adapter"],
        "served": True,
        "leaks": False,
        "bytes_per_token": size,
        "by_layer": [size / SHAPE.layers] * SHAPE.layers,
        "fixed_bytes": 0.0,
        "cache_bytes": size * 288,
        "counted": size,
        "nll": 3.0,
        "nll_change": 0.0 if dense else 0.2,
        "agree": 1.0 if dense or not error else 0.5,
        "same_tokens": 32 if dense or not error else 3,
        "layers": layers,
        "tokens_s": spread(20.0),
        "ratio": spread(1.0 if dense else 1.2),
        "complete": True,
    }


def about(request: dict[str, Any]) -> dict[str, Any]:
    """The head of a result."""
    return {
        "model": request["model"],
        "layers": SHAPE.layers,
        "heads": SHAPE.heads,
        "kv_heads": SHAPE.kv_heads,
        "head_dim": SHAPE.head_dim,
        "dtype": "float32",
        "itemsize": 4,
        "prompt": request["prompt"],
        "decoded": request["decoded"],
        "replayed": 132,
        "replay_steps": 4,
        "text": request["text_name"],
        "environment": {"device": "a synthetic CPU", "time": "2026-11-29T00:00:00", "threads": 2, "torch": "2.13"},
        "gate": [
            {
                "layer": n,
                "condition_k": 3500.0,
                "condition_v": 400.0,
                "largest_kv": 10.8,
                "errors": {d: {"k": 0.5, "x": 0.001, "v": None} for d in ("float32", "bfloat16", "float16")},
                "forms": dict.fromkeys(("float32", "bfloat16", "float16"), "x"),
                "reasons": dict.fromkeys(("float32", "bfloat16", "float16"), "Values from keys have an error of 0.5."),
            }
            for n in range(SHAPE.layers)
        ],
        "refused": [{"label": "Twice", "reason": "its heads are <b>odd</b>.", "hint": "Take an even model."}],
    }


def result_of(request: dict[str, Any]) -> dict[str, Any]:
    """A whole result for a request: what packs keys is approximate, all else is exact to rounding."""
    rows = [row(DENSE, 0.0)]
    for entry in request["entries"]:
        packs = type(make_variant(entry["variant"], entry["config"])).packs_keys
        rows.append(row(entry, 0.5 if packs else 2e-6))
    return {"about": about(request), "rows": rows, "complete": True}


def make() -> CacheEngine:
    """The engine."""
    base = fake.make()
    return CacheEngine(Path(base.folder), base.seconds)
