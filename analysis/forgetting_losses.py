"""What an arm loses beside what it was trained on: one number and its interval for each thing it could forget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.forgetting import BARE, BEHIND, outcomes, paired, students


@dataclass(frozen=True)
class Loss:
    """How an arm does elsewhere, beside dense; better is positive.

    Attributes:
        change: a share: of the perplexity, or of the items.
        low: lower end of its 95 % interval.
        high: upper end.
    """

    change: float
    low: float
    high: float


def other_texts(dense: dict[str, Any], document: dict[str, Any]) -> Loss | None:
    """Fall of the perplexity of the texts that were not trained on, the geometric mean over them."""
    rows = [row for row in document["rows"] if row["task"] == "texts" and row["where"] == "general"]
    if not rows or not all(math.isfinite(row["nll_diff"]) for row in rows):
        return None
    mean = sum(row["nll_diff"] for row in rows) / len(rows)
    # One window tells no error.
    errors = [row["nll_se"] or 0.0 for row in rows]
    windows = min(row["windows"] for row in rows)
    half = students(windows - 1) * math.hypot(*errors) / len(rows) if windows > 1 else 0.0
    return Loss(1 - math.exp(mean), 1 - math.exp(mean + half), 1 - math.exp(mean - half))


def shares(task: str, part: str, wheres: Sequence[str] | None) -> Callable[[dict, dict], Loss | None]:
    """Reads a change of shares.

    Args:
        task: the probe's task.
        part: its part.
        wheres: places whose items are joined; all by default.
    """

    def found(dense: dict[str, Any], document: dict[str, Any]) -> Loss | None:
        rows = [row for row in dense["rows"] if (row["task"], row["part"]) == (task, part)]
        keys = [(task, part, row["where"]) for row in rows if wheres is None or row["where"] in wheres]
        if not keys:
            return None
        ours, theirs = ("".join(outcomes(one, key) for key in keys) for one in (document, dense))
        return Loss(*paired(ours, theirs))

    return found


PANELS: dict[str, tuple[str, Callable[[dict, dict], Loss | None]]] = {
    "Other texts": ("lower perplexity, %", other_texts),
    "Grammar behind a passage": ("points", shares("pairs", "all", (BEHIND,))),
    "Needles, all lengths": ("points", shares("needle", "all", None)),
    "Instructions": ("points", shares("instructions", "instructions", (BARE, BEHIND))),
}
"""What could be forgotten: its unit, and how it is read."""
