"""Probes made by hand, as ``python -m focus_core probe`` writes them: dense, Focus and LoRA."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from focus_core.evaluation.abilities import chat
from focus_core.evaluation.abilities.run import outcomes_of, replies_of, rows_of
from focus_core.evaluation.abilities.tasks import TASKS, Sizes, units
from focus_core.variants import make

SIZES = Sizes(pairs=20, lengths=(512, 2048), haystacks=2)
SERVED = {"groups": 16, "query_topk": 4, "key_topk": 1, "window": 128, "sinks": 4}


def document(variant: str = "dense", adapter: str | None = None, *, harm: float = 0.0, gain: float = 0.0) -> dict:
    """One probe.

    Args:
        variant: ``dense`` or ``focus``.
        adapter: its name.
        harm: share of the needles, pairs and instructions that dense gets right and this one does not.
        gain: by how much the perplexity of Persuasion falls, in nats; the others rise by half of it.
    """
    config = SERVED if variant == "focus" else {}
    done = {unit.name: _unit(unit, variant, harm, gain) for unit in units(TASKS, SIZES)}
    todo = units(TASKS, SIZES)
    weights = {"before": "a1" * 32, "inside": "a1" * 32, "after": "a1" * 32}
    return {
        "format": 1,
        "model": "smollm2",
        "revision": "r",
        "variant": variant,
        "config": make(variant, config).to_dict(),
        "adapter": adapter and "0" * 16,
        "adapter_name": adapter,
        "items": "same",
        "dtype": "float32",
        "adapter_parameters": 460800 if adapter else 0,
        "served": True,
        "tasks": list(TASKS),
        "sizes": dataclasses.asdict(SIZES),
        "rows": rows_of(todo, done, make(variant, config)),
        "outcomes": outcomes_of(todo, done),
        "replies": replies_of(todo, done),
        "weights": {**weights, "same": True, "tensors": 272, "logits_change": 0.0},
        "device": "cpu",
        "notes": [],
        "environment": {"device": "A CPU", "time": "2026-11-30T09:00:00+00:00"},
        "seconds": 1.0,
        "command": "python -m focus_core probe",
    }


def documents() -> list[dict]:
    """Dense, and both ways to adapt it."""
    return [
        document(),
        document("focus", "smollm2-directed-k16", harm=0.5, gain=0.02),
        document("dense", "smollm2-lora-r8", harm=0.05, gain=0.15),
    ]


def _unit(unit: Any, variant: str, harm: float, gain: float) -> dict[str, Any]:
    dice = random.Random(unit.name)
    # What fits into the window is dense by definition.
    bare = unit.where == "bare" and variant == "focus"

    def right(chance: float) -> bool:
        # Both are drawn, so that the same item comes out alike for all.
        held, kept = dice.random() < chance, dice.random() >= harm
        return held and (bare or kept)

    if unit.task == "texts":
        change = -gain if unit.where == "domain" else gain / 2
        found = {"ppl": 30 * 2.718281828**change, "dense_ppl": 30.0, "nll_diff": change, "nll_se": 0.004}
        return {**found, "tokens": 3069, "kept_pairs": 0.3, "windows": 3, "longest": 1024}
    if unit.task == "pairs":
        return {"margins": [1.0 if right(0.9) else -1.0 for _ in range(SIZES.pairs)], "longest": 40 if bare else 300}
    if unit.task == "needle":
        found = []
        for depth in (0.1, 0.3, 0.5, 0.7, 0.9):
            good = right(1.0)
            found.append({"depth": depth, "rank": 1 if good else 4, "logp": -1.0, "margin": 0.5, "exact": good})
        return {"asked": found, "longest": int(unit.where), "candidates": 16}
    name = "follows" if unit.part == "instructions" else "refuses"
    said = [
        {"id": one["id"], "reply": f"A reply to {one['id']}.", name: right(0.6)} for one in chat.prompts()[unit.part]
    ]
    return {"replies": said, "longest": 100 if bare else 400}
