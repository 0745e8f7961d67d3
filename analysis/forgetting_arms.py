"""The arms of what is forgotten: what each one trains, how it is called, and which of a sweep stand for the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

LORA, FULL, FOCUS_FULL, FOCUS = "lora", "full", "focus-full", "focus"
SWEPT = (LORA, FULL, FOCUS_FULL)
"""Families of several learning rates, of which the best on the training domain stands for all."""
NAMES = {
    FOCUS: "Focus, weights kept",
    LORA: "LoRA, weights kept",
    FULL: "all weights",
    FOCUS_FULL: "all weights through Focus",
}


def arm_key(document: dict[str, Any]) -> str:
    """Names an arm: its adapter, or its variant."""
    name = document.get("adapter_name")
    return PurePath(str(name)).name if name else str(document["variant"])


def training(document: dict[str, Any]) -> dict[str, Any]:
    """How an arm's adapter was made; empty where the probe does not say."""
    return document.get("training") or {}


def family(document: dict[str, Any]) -> str:
    """What is trained: one of ``NAMES``, or the variant's name."""
    kind, variant = training(document).get("kind"), str(document["variant"])
    if kind == FULL:
        return FULL if variant == "dense" else FOCUS_FULL
    return LORA if kind == LORA or (variant == "dense" and document.get("adapter_name")) else variant


def in_order(document: dict[str, Any]) -> tuple[int, float, str]:
    """Sorts arms: Focus, LoRA, all weights, then other variants; a sweep by its rates."""
    kinds = [*NAMES]
    kind = family(document)
    place = kinds.index(kind) if kind in kinds else len(kinds)
    return place, float(training(document).get("learning_rate") or 0), arm_key(document)


def arm_label(document: dict[str, Any]) -> str:
    """An arm as people read it."""
    name, variant, config = arm_key(document), document["variant"], document.get("config") or {}
    own, kind = training(document), family(document)
    if kind in SWEPT and "learning_rate" in own:
        rank = f" r={own['rank']}" if kind == LORA and "rank" in own else ""
        what = {LORA: "LoRA", FULL: "all weights", FOCUS_FULL: "all weights through Focus"}[kind]
        return f"{what}{rank}, rate {own['learning_rate']:g}"
    if variant == "dense":
        return "dense" if not document.get("adapter_name") else f"LoRA ({name})"
    if "query_topk" in config:
        return f"{variant.capitalize()} K={config['groups']} q{config['query_topk']}k{config['key_topk']} ({name})"
    return f"{variant} ({name})" if name != variant else variant


def mark(document: dict[str, Any]) -> str:
    """What tells an arm from the others of its family, in a few letters."""
    own = training(document)
    if family(document) not in SWEPT or "learning_rate" not in own:
        groups = (document.get("config") or {}).get("groups")
        return f"K={groups}" if groups else ""
    rank = own.get("rank")
    return f"r={rank}" if rank not in (None, 8) else f"{own['learning_rate']:g}"


def domain_gain(document: dict[str, Any]) -> float:
    """By how much the perplexity of what was trained on fell, in nats; minus infinity where it was not asked."""
    found = [row["nll_diff"] for row in document["rows"] if row["task"] == "texts" and row["where"] == "domain"]
    return -sum(found) if found and all(map(math.isfinite, found)) else -math.inf


def telling(others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arms that stand for the rest: every one without a sweep, and of each sweep the best on its training domain."""
    best: dict[str, dict[str, Any]] = {}
    for document in others:
        kind = family(document)
        if kind in SWEPT and (kind not in best or domain_gain(document) > domain_gain(best[kind])):
            best[kind] = document
    return [d for d in others if family(d) not in SWEPT or d is best[family(d)]]


def swept(others: Sequence[dict[str, Any]]) -> bool:
    """Whether any family has more than one arm of another learning rate or rank."""
    kinds = [family(document) for document in others]
    return any(kinds.count(kind) > 1 for kind in SWEPT)


def trained_tokens(record: dict[str, Any]) -> int | None:
    """Tokens that an adapter had seen at the step that ships, by its training record; None where it does not say."""
    settings = record.get("settings") or {}
    sizes = [record.get("step"), settings.get("batch"), settings.get("context"), settings.get("accumulate", 1)]
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None
