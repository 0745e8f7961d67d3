"""What the page about groups says first: how pure the groups are, and whether that is more than words."""

from __future__ import annotations

import math

import numpy as np

from analysis.agreement import MEASURES, Agreement
from analysis.groups import Group
from analysis.numbers import percent
from analysis.palette import group_label

FEWEST = 8
"""Tokens below which a group's purity is chance."""

HELP = (
    "V-measure: 1 when every group is one part of speech and every part of speech one group, 0 when they have nothing "
    "to do with each other. The comparison gives every word one random group, in groups of the same sizes: what is "
    "above it is more than recognising words."
)


def purest(table: list[Group]) -> Group | None:
    """The group with the largest share of one part of speech; None when no group has enough tagged tokens."""
    judged = [g for g in table if g.size >= FEWEST and not math.isnan(g.purity)]
    return max(judged, key=lambda g: (g.purity, g.size), default=None)


def answer(table: list[Group], found: Agreement | None, where: str) -> str:
    """The page's question answered in one sentence for one layer and router.

    Args:
        table: the groups of the keys.
        found: their agreement with parts of speech, of this layer alone; None without tags.
        where: which layer and router.
    """
    best = purest(table)
    if found is None or best is None:
        fullest = max(table, key=lambda g: g.size)
        largest = f"the largest, {group_label(fullest.number)}, holds {percent(fullest.share)}"
        return f"In {where}, {len(table)} groups; {largest}."
    value = float(found.curves["v_measure"]["groups"].value[0])
    base = float(found.curves["v_measure"]["frequency"].value[0])
    _, low, high = (float(x[0]) for x in found.gain["v_measure"]["frequency"])
    against = f"V-measure {value:.2f} against {base:.2f} for one random group a word"
    group = f"group {group_label(best.number)} is {percent(best.purity)} {best.name.split(':')[0]}"
    if low > 0:
        return f"In {where}, something like parts of speech: {against}; {group}."
    if high < 0:
        return f"In {where}, something other than parts of speech: {against}; the purest, {group}."
    return f"In {where}, no more grammar than words alone give: {against}; the purest, {group}."


def verdict(found: Agreement, measure: str = "v_measure") -> str:
    """Where it looks like grammar and where it does not, in one or two sentences.

    A layer passes when the whole 95 % interval of its gain over one random group a word type lies above zero.

    Args:
        found: the agreement of some or all layers.
        measure: one of ``MEASURES``.
    """
    value, (gain, low, _) = found.curves[measure]["groups"].value, found.gain[measure]["frequency"]
    passed = low > 0
    name = MEASURES[measure].split(" (")[0]
    what = "“What tokens are”" if found.side == "keys" else "“What they look for”"
    best = int(np.argmax(gain))
    base = found.curves[measure]["frequency"].value[best]
    numbers = f"{name} {value[best]:.2f} against {base:.2f} for one random group a word type"
    at = found.layers[best]
    beside = _beside_kmeans(found, measure, best)
    if not passed.any():
        return f"{what} looks like grammar in none of {len(passed)} layers: at best {numbers}, in layer {at}.{beside}"
    said = f"{what} looks like grammar in {_of(int(passed.sum()), len(passed))}"
    if passed.all():
        return f"{said}, most in layer {at}: {numbers}.{beside}"
    return (
        f"{said} ({ranges(found.layers[passed])}), most in layer {at}: {numbers}. "
        f"In the others ({ranges(found.layers[~passed])}) it does not.{beside}"
    )


def _beside_kmeans(found: Agreement, measure: str, at: int) -> str:
    """Whether learning made the groups more like grammar than clusters of the hidden states are without it."""
    if "kmeans" not in found.gain[measure]:
        return ""
    _, low, high = found.gain[measure]["kmeans"]
    more, less, total = int((low > 0).sum()), int((high < 0).sum()), len(low)
    value = f"{found.curves[measure]['kmeans'].value[at]:.2f} in layer {found.layers[at]}"
    if less > more:
        return f" Untrained k-means agrees more in {_of(less, total)} ({value})."
    if more:
        return f" It is above untrained k-means in {_of(more, total)} ({value})."
    return f" Untrained k-means agrees as much ({value})."


def _of(count: int, total: int) -> str:
    return f"all {total} layers" if count == total else f"{count} of {total} layers"


def ranges(numbers: np.ndarray) -> str:
    """``0–3, 7`` for 0 1 2 3 7."""
    parts, numbers = [], [int(x) for x in numbers]
    while numbers:
        run = 1
        while run < len(numbers) and numbers[run] == numbers[0] + run:
            run += 1
        parts.append(str(numbers[0]) if run == 1 else f"{numbers[0]}–{numbers[run - 1]}")
        numbers = numbers[run:]
    return ", ".join(parts)
