"""GPU results made by hand, in the form that ``benchmarks.gpu_record`` gives."""

from __future__ import annotations

from typing import Any

SPREAD = {"median": 2.0, "p10": 1.9, "p90": 2.1, "n": 5}


def document(*rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """One document; the hash of its sources is none that they ever had."""
    return {
        "file": "bench-x-h200.json",
        "about": "x",
        "command": "python -m benchmarks.gpu_x --json x.json",
        "environment": {"device": "NVIDIA H200", "driver": "580", "torch": "2", "time": "2026-11-30T01:00:00+00:00"},
        "sources": ["focus_core/evaluation/sources.py"],
        "source_hash": "0" * 64,
        "checks": [],
        "rows": list(rows),
        **fields,
    }


def prefill(tokens: int, faster: float, **fields: Any) -> dict[str, Any]:
    """A row of Focus's forward, so many times faster than cuDNN."""
    return {
        "phase": "prefill",
        "heads": 12,
        "kv": 12,
        "dim": 64,
        "tokens": tokens,
        "groups": 16,
        "looks": 1,
        "ms": SPREAD,
        "baseline": "cudnn",
        "cudnn_ms": {**SPREAD, "median": 2.0 * faster},
        "speedup": faster,
        "against_fa2": 1.6 * faster,
        "pair_limit": 15.0,
        "share_of_limit": faster / 15,
        "stages_ms": {"plan": 0.5, "group_pass": 1.5},
        "extra_over_qkvo": 0.75,
        "extra_mb": 100.0,
        "error": 1e-3,
        **fields,
    }
