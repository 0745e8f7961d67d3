"""What the page about groups says first: how pure the groups are, and whether that is more than words."""

from __future__ import annotations

import math

from analysis.agreement import Agreement
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
