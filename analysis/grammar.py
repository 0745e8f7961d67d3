"""What the page about groups says first: do they put parts of speech together, more than chance does?"""

from __future__ import annotations

import numpy as np

from analysis.agreement import MEASURES, Agreement
from analysis.groups import Group
from analysis.numbers import percent, signed
from analysis.palette import group_label
from analysis.parts import KINDS

FEWEST = 8
"""Tagged tokens below which a group's purity is chance."""

HELP = (
    "V-measure: 1 when every group is one part of speech and every part of speech one group, 0 when they have nothing "
    "to do with each other. The comparison gives every word one random group, in groups of about the same sizes. Above "
    "it, words of one part of speech are put together more often than words grouped at random; context need play no "
    "part."
)
RANDOM = "words grouped at random"


def purest(table: list[Group]) -> Group | None:
    """The group with the largest share of one part of speech; None when no group has enough tagged tokens."""
    judged = [g for g in table if g.tagged >= FEWEST]
    return max(judged, key=lambda g: (g.purity, g.tagged), default=None)


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
    against = f"V-measure {value:.2f} against {base:.2f}"
    tail = f"{_kmeans_here(found)}. The purest group is {group_label(best.number)}: {purity_of(best)}."
    if low > 0:
        return f"In {where}, words of one part of speech are together more often than {RANDOM}: {against}{tail}"
    if high < 0:
        return f"In {where}, words of one part of speech are together less often than {RANDOM}: {against}{tail}"
    span = f"the difference is {signed(low)} to {signed(high)} (95 %)"
    return f"In {where}, the groups cannot be told from {RANDOM}: {against}, {span}{tail}"


def purity_of(group: Group) -> str:
    """``91 % of its tagged tokens are verbs``: the share beside the tag that it is the share of."""
    assert group.tag is not None
    return f"{percent(group.purity)} of its tagged tokens are {KINDS[group.tag]}"


def _kmeans_here(found: Agreement) -> str:
    if "kmeans" not in found.gain["v_measure"]:
        return ""
    _, low, high = (float(x[0]) for x in found.gain["v_measure"]["kmeans"])
    how = "more" if high < 0 else "less" if low > 0 else "as much"
    return f"; untrained k-means agrees {how}, {found.curves['v_measure']['kmeans'].value[0]:.2f}"


def verdict(found: Agreement, measure: str = "v_measure") -> str:
    """Whether parts of speech are put together, where, and whether that takes more than knowing the word.

    A layer passes when the whole 95 % interval of its gain over one random group a word type lies above zero. The
    groups of a layer that reads word embeddings can pass: context need play no part.

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
    numbers = f"{name} {value[best]:.2f} against {base:.2f}"
    at = found.layers[best]
    beside = _beside_lookup(found, measure, best) + _beside_kmeans(found, measure, best)
    said = f"{what} puts words of one part of speech together more often than {RANDOM} in"
    if not passed.any():
        return f"{said} none of {len(passed)} layers: at best {numbers}, in layer {at}.{beside}"
    if passed.all():
        return f"{said} {_of(len(passed), len(passed))}, most in layer {at}: {numbers}.{beside}"
    return (
        f"{said} {_of(int(passed.sum()), len(passed))} ({ranges(found.layers[passed])}), most in layer {at}: "
        f"{numbers}. In the others ({ranges(found.layers[~passed])}) it does not.{beside}"
    )


def _beside_lookup(found: Agreement, measure: str, at: int) -> str:
    """Whether it takes more than the word itself: each word's most frequent group, in-sample, reaches how much."""
    _, low, _ = found.gain[measure]["lookup"]
    above, total = int((low > 0).sum()), len(low)
    value = f"{found.curves[measure]['lookup'].value[at]:.2f} in layer {found.layers[at]}"
    if not above:
        return f" A lookup by word alone does no worse ({value}), so context need play no part."
    return f" It is above a lookup by word alone in {_of(above, total)} ({value})."


def _beside_kmeans(found: Agreement, measure: str, at: int) -> str:
    """Whether learning made the groups more like parts of speech than clusters of the hidden states are without it."""
    if "kmeans" not in found.gain[measure]:
        return ""
    _, low, high = found.gain[measure]["kmeans"]
    more, less, total = int((low > 0).sum()), int((high < 0).sum()), len(low)
    value = f"{found.curves[measure]['kmeans'].value[at]:.2f} in layer {found.layers[at]}"
    if less > more:
        return f" Untrained k-means agrees more with parts of speech in {_of(less, total)} ({value})."
    if more:
        return f" It agrees more than untrained k-means in {_of(more, total)} ({value})."
    return f" Untrained k-means agrees as much ({value})."


def _of(count: int, total: int) -> str:
    if count == total == 1:
        return "the one layer"
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
