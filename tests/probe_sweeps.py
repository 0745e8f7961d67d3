"""Probes of sweeps, made by hand: invented figures, which only tests may read."""

from __future__ import annotations

from typing import Any

from tests.probe_documents import document, documents

SWEEP = {
    "lora-r8-0.0003": ("lora", 3e-4, 8, 0.08, 0.0),
    "lora-r8-0.001": ("lora", 1e-3, 8, 0.12, 0.02),
    "lora-r8-0.01": ("lora", 1e-2, 8, 0.10, 0.3),
    "lora-r32-0.003": ("lora", 3e-3, 32, 0.16, 0.1),
    "full-1e-05": ("full", 1e-5, None, 0.10, 0.05),
    "full-3e-05": ("full", 3e-5, None, 0.17, 0.1),
    "focus-full-3e-05": ("full", 3e-5, None, 0.18, 0.5),
}
"""(kind, learning rate, rank, gain in nats, harm) of every arm."""


def made(name: str) -> dict[str, Any]:
    """One arm, invented."""
    kind, rate, rank, gain, harm = SWEEP[name]
    variant = "focus" if name.startswith("focus") else "dense"
    found = document(variant, f"build/forgetting/{name}", harm=harm, gain=gain)
    found["training"] = {"kind": kind, "learning_rate": rate, "tokens": 819200}
    if rank is not None:
        found["training"]["rank"] = rank
    if kind == "full":
        found["weights"]["used"] = "b2" * 32
        found["training"]["weights"] = {"before": "a1" * 32, "after": "b2" * 32}
    return found


def sweeps() -> list[dict[str, Any]]:
    """Dense, what ships, and every arm above."""
    return [*documents(), *(made(name) for name in SWEEP)]
