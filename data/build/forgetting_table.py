"""The section of docs/results.md on what adapting a model gains and forgets, from the recorded probes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.forgetting import BEHIND, arms
from analysis.forgetting_arms import FOCUS, FOCUS_FULL, FULL, arm_label, domain_gain, family, training
from analysis.forgetting_losses import Loss, other_texts, shares
from focus_core.jobs.files import read_json

PAGE, RESULTS = Path("docs/results.md"), Path("data/results")
BEGIN, END = "<!-- made by python -m data.build.forgetting table -->", "<!-- end of what is forgotten -->"
TITLE, NEXT = "## Adaptation: what is gained and what is forgotten", "## Images"
_SHORT = 2048
"""Tokens of the longest text with needles that counts as short."""


def documents(results: Path = RESULTS) -> list[dict[str, Any]]:
    """Every recorded probe."""
    return [read_json(path) for path in sorted(results.glob("probe-*.json"))]


def _points(loss: Loss | None) -> str:
    if loss is None:
        return "not asked"
    return f"{100 * loss.change:+.1f} ({100 * loss.low:+.1f} to {100 * loss.high:+.1f})"


def _needles(dense: dict[str, Any], document: dict[str, Any], long: bool) -> str:
    wheres = {row["where"] for row in dense["rows"] if row["task"] == "needle"}
    own = sorted((where for where in wheres if (int(where) > _SHORT) == long), key=int)
    return _points(shares("needle", "all", own)(dense, document))


def _row(dense: dict[str, Any], document: dict[str, Any]) -> str:
    texts = other_texts(dense, document)
    grammar = shares("pairs", "all", (BEHIND,))(dense, document)
    told = shares("instructions", "instructions", None)(dense, document)
    gain = domain_gain(document)
    cells = [
        arm_label(document),
        f"{document['adapter_parameters']:,}",
        f"{100 * math.expm1(-gain):+.1f} %" if math.isfinite(gain) else "not a number",
        "not a number"
        if texts is None
        else f"{-100 * texts.change:+.2f} % ({-100 * texts.high:+.2f} to {-100 * texts.low:+.2f})",
        _points(grammar),
        _needles(dense, document, False),
        _needles(dense, document, True),
        _points(told),
    ]
    return f"| {' | '.join(cells)} |"


def table(dense: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """One row an arm: its change against dense."""
    names = (
        "trained",
        "numbers",
        "perplexity of *Persuasion*",
        "of four other texts",
        "grammar behind a passage",
        f"needles to {_SHORT:,} tokens",
        "needles beyond",
        "instructions",
    )
    head = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    return "\n".join([*head, *(_row(dense, document) for document in others)])


def _millions(documents: Sequence[dict[str, Any]]) -> str:
    """Tokens that these were trained on, in millions; empty where none says."""
    found = set()
    for own in map(training, documents):
        sizes = [own.get(name) or 0 for name in ("step", "batch", "context")]
        found.add(own.get("tokens") or math.prod(sizes))
    return " or ".join(f"{n / 1e6:.2f}" for n in sorted(found - {0}))


def section(dense: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """The table with what a reader must know of it."""
    sizes, where = dense["sizes"], dense["environment"]
    same = all(d["weights"]["same"] for d in (dense, *others))
    kept = {d["weights"][when] for d in (dense, *others) for when in ("before", "after")}
    used = [d for d in others if family(d) in (FULL, FOCUS_FULL)]
    weights = (
        f"The model's own weights had the same hash before and after every one ({kept.pop()[:16]})."
        if same and len(kept) == 1
        else "The model's own weights did NOT keep their hash."
    )
    if used:
        hashes = ", ".join(f"{d['weights']['used'][:8]} ({arm_label(d)})" for d in used)
        weights += f" Full fine-tuning computes with a trained copy, which does not ship: {hashes}."
    device = " --device cuda" if dense["device"].startswith("cuda") else ""
    told = _millions([d for d in others if family(d) != FOCUS])
    routers = _millions([d for d in others if family(d) == FOCUS])
    budget = f" Trained on {told} million tokens of novels" if told else ""
    budget += f"{f'; routers on {routers}' if routers else ''}." if told else ""
    return "\n".join(
        [
            BEGIN,
            "",
            "Change against dense on the same items, with 95 % intervals (perplexities in %, less is better; all else "
            f"in points, more is better). {dense['model']}, {dense['dtype']}, {where['device']}, {where['time'][:10]}: "
            f"{sizes['windows']} windows of {sizes['context']:,} tokens a text; {sizes['pairs']} minimal pairs of each "
            f"of 12 phenomena behind {sizes['passage']} tokens; {5 * sizes['haystacks']} needles of each length of "
            f"{', '.join(f'{n:,}' for n in sizes['lengths'])} tokens; 16 instructions, alone and behind the passage."
            f"{budget}",
            "",
            table(dense, others),
            "",
            weights,
            "",
            f"`python -m data.build.forgetting all{device}`, then `python -m data.build.forgetting table` "
            f"(`data/results/probe-{'gpu-' if device else ''}*.json`).",
            "",
            END,
        ]
    )


def write_section(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Put the section in place of the one that is there, or before the images."""
    dense, others = arms(documents(results))
    if dense is None:
        return
    text = page.read_text(encoding="utf-8")
    if BEGIN in text:
        before, rest = text.split(BEGIN, 1)
        after = rest.split(END, 1)[1]
    else:
        before, after = text.split(NEXT, 1)
        before, after = f"{before}{TITLE}\n\n", f"\n\n{NEXT}{after}"
    page.write_text(before + section(dense, others) + after, encoding="utf-8")
