"""Comparison results made by hand, in the form that ``focus_core.benchmark.comparison.compare`` gives."""

from __future__ import annotations

import json
import math
from typing import Any

NLL = 3.0


def spread(median: float, n: int = 5) -> dict[str, float]:
    return {"median": median, "p10": median * 0.95, "p90": median * 1.1, "n": n}


def row(
    variant: str = "focus",
    label: str = "Focus q4",
    length: int = 1024,
    *,
    config: dict[str, Any] | None = None,
    change: float = 0.01,
    error: float | None = 0.002,
    kept: float = 0.31,
    ratio: float | None = 0.8,
    served: bool = True,
    leaks: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """One row; ``change`` is of the mean negative log-likelihood, ``ratio`` None leaves it untimed."""
    config = config or {}
    dense_ms = length * 0.5
    found = {
        "key": json.dumps([variant, config]),
        "label": label,
        "variant": variant,
        "config": config,
        "adapter": None,
        "served": served,
        "leaks": leaks,
        "length": length,
        "windows": 1,
        "scored": length - 1,
        "nll": NLL + change,
        "ppl": math.exp(NLL + change),
        "nll_change": change,
        "nll_change_se": error,
        "ppl_change": math.expm1(change),
        "kept_pairs": kept,
        "kept_by_layer": [kept] * 3,
        "backend": "cpu",
        "masked_dense": not served,
        "dense_by_definition": False,
        "operations": kept * length**2 * 1e5,
        "operations_dense": length**2 * 1e5,
        "kv_bytes_per_token": 46080.0,
        "complete": True,
    }
    if ratio is not None:
        found |= {
            "ms": spread(dense_ms * ratio),
            "attention_ms": spread(dense_ms * ratio * 0.5),
            "ratio": spread(ratio),
            "attention_ratio": spread(ratio * 0.9),
            "peak_bytes": 200 << 20,
            "cache_bytes": length * 46080,
        }
    return found | more


def dense(length: int) -> dict[str, Any]:
    return row("dense", "dense", length, change=0.0, error=0.0, kept=1.0, ratio=1.0, backend="sdpa", masked_dense=False)


def comparison() -> dict[str, Any]:
    """Focus slower than dense at 512 and faster at 1,024 and 2,048; a window that is fast and bad; two soft gates."""
    rows = []
    for length, ratio in ((512, 1.3), (1024, 0.9), (2048, 0.6)):
        rows += [
            dense(length),
            row(length=length, ratio=ratio, config={"gate": "hard", "temperature": 0.1}),
            row("window", "window", length, change=0.3, kept=0.2, ratio=ratio * 0.8),
        ]
    soft = {"served": False, "ratio": None, "kept": 1.0, "backend": "soft"}
    rows += [
        row(label="soft 0.1", config={"gate": "soft", "temperature": 0.1}, change=-0.01, **soft),
        row(label="soft 0.3", config={"gate": "soft", "temperature": 0.3}, change=-0.02, **soft),
        row(label="paper", config={"gate": "paper", "temperature": 0.1}, change=-0.04, leaks=True, **soft),
    ]
    theory = [
        {
            "key": r["key"],
            "label": r["label"],
            "length": n,
            "attention": r["kept_pairs"],
            "model": 0.5 + r["kept_pairs"] / 2,
        }
        for n in (256, 512, 1024, 2048, 4096)
        for r in rows[:3]
        for kept in (r["kept_pairs"],)
    ]
    about = {
        "model": "smollm2",
        "lengths": [512, 1024, 2048],
        "repeats": 5,
        "windows": 4,
        "tokens": 4568,
        "block": 128,
        "note": "",
        "dtype": "float32",
        "layers": 3,
        "native_layers": 0,
        "load_before": 0.1,
        "peak_how": "sum over torch's own allocations",
        "refused": [],
        "theory": theory,
        "environment": {"device": "a laptop's CPU", "time": "2026-11-29T12:00:00+00:00", "cores": 2, "threads": 2},
    }
    return {"about": about, "rows": rows, "complete": True}
