"""A report's figures over all layers, and the names of what it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from focus_core.interpret.attributes import PART_OF_SPEECH
from focus_core.interpret.scores import MEASURES

SIDES = ("keys", "queries")
BASELINES = {
    "kmeans": "k-means of the same hidden states",
    "untrained": "The router before training",
    "lookup": "Lookup by word alone",
    "frequency": "One random group a word type",
    "matched": "Shuffled among words of like frequency",
    "shuffled": "Shuffled, same sizes",
    "random": "Random groups",
}
"""What groups are held against, by key. The last four are draws."""
GROUP_FIELDS = (
    "layer",
    "router",
    "side",
    "group",
    "share",
    "about",
    "says",
    "explained",
    "covers",
    "purity",
    "tag",
    "words",
)
LEAST_SHARE = 0.005
"""Share of the tokens below which a group's purity is chance: three tokens are easily of one kind."""
_DIGITS = 4


def summary(layers: list[dict[str, Any]], rows: list[list[Any]], sides: tuple[str, ...]) -> dict[str, Any]:
    """Means over layers, counts of layers that pass, and groups by what they are about: what is quoted."""
    field = {name: i for i, name in enumerate(GROUP_FIELDS)}
    found: dict[str, Any] = {"layers": len(layers)}

    def mean(side: str, line: str) -> dict[str, float]:
        there = layers[0][side][line]
        return {m: rounded(np.mean([entry[side][line][m][0] for entry in layers])) for m in MEASURES if m in there}

    for side in sides:
        mine = [row for row in rows if row[field["side"]] == side]
        lines = [key for key in ("groups", *BASELINES) if key in layers[0][side]]
        about = Counter(row[field["about"]] or "nothing found" for row in mine)
        purity = np.array([row[field["purity"]] or 0 for row in mine])
        share = np.array([row[field["share"]] for row in mine])
        best = max(layers, key=lambda entry: entry[side]["groups"]["v_measure"][0])
        found[side] = {
            "mean": {line: mean(side, line) for line in lines},
            "layers_above": {
                k: sum(e[side]["gain"][k]["v_measure"][1] > 0 for e in layers) for k in layers[0][side]["gain"]
            },
            "layers_below": {
                k: sum(e[side]["gain"][k]["v_measure"][2] < 0 for e in layers) for k in layers[0][side]["gain"]
            },
            "best_layer": best["layer"],
            "groups": len(mine),
            "about": dict(about.most_common()),
            "about_share": {k: rounded(v / len(mine)) for k, v in about.most_common()},
            "purest": _purest(mine, field),
            "pure_90": int(((purity >= 0.9) & (share >= LEAST_SHARE)).sum()),
        }
        grammar = found[side]["about"].get(PART_OF_SPEECH, 0)
        found[side]["part_of_speech_share"] = rounded(grammar / max(1, len(mine)))
    stable = [entry["stability"] for entry in layers]
    keys = sorted({k for one in stable for k in one} - {"v_by_text", "against"})
    found["stability"] = {k: rounded(np.mean([one[k] for one in stable if k in one])) for k in keys}
    others = stable[0].get("against", {})
    found["stability"]["against"] = {k: rounded(np.mean([one["against"][k] for one in stable])) for k in others}
    found["own_tag_lift"] = rounded(np.mean([entry["looks"]["own_tag_lift"] for entry in layers]))
    found["same_tag_both_sides"] = _same_tag(rows, field) if len(sides) > 1 else None
    return found


def _purest(rows: list[list[Any]], field: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """The purest group of every part of speech, of those with ``LEAST_SHARE`` of the tokens."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        tag, purity = row[field["tag"]], row[field["purity"]]
        if tag is not None and row[field["share"]] >= LEAST_SHARE and purity > found.get(tag, {"purity": 0})["purity"]:
            names = ("layer", "router", "group", "share", "purity", "words")
            found[tag] = {name: row[field[name]] for name in names}
    return found


def _same_tag(rows: list[list[Any]], field: Mapping[str, int]) -> dict[str, float]:
    """How often the most frequent tag of a group's tokens is that of the tokens that look into it, and by chance."""
    tag = {
        (row[field["layer"]], row[field["router"]], row[field["group"]], row[field["side"]]): row[field["tag"]]
        for row in rows
    }
    pairs = [(v, tag.get((*k[:3], "queries"))) for k, v in tag.items() if k[3] == "keys" and v is not None]
    pairs = [(a, b) for a, b in pairs if b is not None]
    a, b = Counter(x for x, _ in pairs), Counter(x for _, x in pairs)
    n = max(1, len(pairs))
    return {
        "share": rounded(sum(x == y for x, y in pairs) / n),
        "chance": rounded(sum(a[t] * b[t] for t in a) / n**2),
        "groups": len(pairs),
    }


def group_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each group of a report is about: one entry of ``GROUP_FIELDS`` a group."""
    columns = document["groups"]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def rounded(value: Any, digits: int = _DIGITS) -> float:
    """A number as it is recorded."""
    return round(float(value), digits)
