"""What a recorded interpretation of a router says, in sentences and tables; a document is what ``interpret`` writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.grammar import ranges
from analysis.numbers import percent
from analysis.palette import group_label
from focus_core.interpret.summary import BASELINES, LEAST_SHARE, group_rows

SIDES = {"keys": "What tokens are", "queries": "What they look for"}
MEASURES = {"v_measure": "V-measure (= NMI)", "purity": "Purity"}
MODELS = {"smollm2": "SmolLM2", "gpt2-novels": "the small GPT-2"}


def title(document: dict[str, Any]) -> str:
    """What was interpreted, as its menu names it: ``SmolLM2, directed, 16 groups``."""
    form = "directed" if document["directed"] else "shared"
    steps = int(document["training"].get("steps", 0))
    short = f", {steps} steps" if 0 < steps < 300 else ""
    model = MODELS.get(document["model"], document["model"])
    return f"{model[:1].upper()}{model[1:]}, {form}, {document['config']['groups']} groups{short}"


def sides(document: dict[str, Any]) -> list[str]:
    """The sides that differ: a shared router has only keys."""
    return [side for side in SIDES if side in document["summary"]]


def answer(document: dict[str, Any], side: str = "keys") -> str:
    """Whether groups are grammar, by layer, beside what they must beat."""
    found, layers = document["summary"][side], document["summary"]["layers"]
    mean = {line: values["v_measure"] for line, values in found["mean"].items()}
    above = [e["layer"] for e in document["layers"] if e[side]["gain"]["frequency"]["v_measure"][1] > 0]
    named = f" ({'layer' if len(above) == 1 else 'layers'} {ranges(np.array(above))})"
    where = (
        f"all {layers} layers" if len(above) == layers else f"{len(above)} of {layers} layers{named if above else ''}"
    )
    kmeans = f", k-means of hidden states {mean['kmeans']:.2f}" if "kmeans" in mean else ""
    return (
        f"V-measure with parts of speech {mean['groups']:.2f}, mean over layers: shuffled groups "
        f"{mean['shuffled']:.2f}, one random group a word {mean['frequency']:.2f}{kmeans}. Groups are above one random "
        f"group a word in {where}."
    )


def about(document: dict[str, Any], side: str = "keys") -> str:
    """What groups are about, counted: ``Of 1,440 groups 943 (65.5 %) are about part of speech, ...``."""
    found = document["summary"][side]
    counted = [f"{n:,} ({percent(n / found['groups'])}) {_about(name)}" for name, n in found["about"].items()]
    least = f"{100 * LEAST_SHARE:g} % of the tokens"
    pure = f"{found['pure_90']:,} of those with {least} or more hold one part of speech to 90 %"
    return f"Of {found['groups']:,} groups, {'; '.join(counted)}. {pure}."


def _about(name: str) -> str:
    return "about nothing that was looked at" if name == "nothing found" else f"about {name}"


def layers_frame(document: dict[str, Any], side: str) -> pd.DataFrame:
    """Every line of both measures as a table, for the figure's CSV."""
    rows = []
    for entry in document["layers"]:
        for line, name in {"groups": "Learned groups", **BASELINES}.items():
            for measure in MEASURES:
                if line in entry[side]:
                    value, low, high = entry[side][line][measure]
                    row = {"layer": entry["layer"], "line": name, "measure": measure}
                    rows.append(row | {"value": value, "low": low, "high": high})
    return pd.DataFrame(rows)


def groups_frame(document: dict[str, Any], layer: int, router: int) -> pd.DataFrame:
    """A router's groups: what they are about, and what looks for them; one row a group."""
    rows = [r for r in group_rows(document) if (r["layer"], r["router"]) == (layer, router)]
    by_side = {side: {r["group"]: r for r in rows if r["side"] == side} for side in SIDES}
    table = []
    for group, mine in sorted(by_side["keys"].items()):
        row = {
            "group": group_label(group),
            "tokens": 100 * mine["share"],
            "is about": mine["about"] or "nothing found",
            "namely": mine["says"] if mine["about"] else "",
            "explained": 100 * mine["explained"],
            **_seekers(by_side["queries"].get(group)),
            "typical": mine["words"],
            "of the group": 100 * mine["covers"] if mine["about"] else None,
            "purity": None if mine["purity"] is None else 100 * mine["purity"],
            "purity is of": mine["tag"],
        }
        table.append(row)
    return pd.DataFrame(table)


def _seekers(theirs: dict[str, Any] | None) -> dict[str, Any]:
    if theirs is None:
        return {}
    return {"looked for by": theirs["says"] if theirs["about"] else "nothing found", "seekers": theirs["words"]}


def routers(document: dict[str, Any]) -> int:
    """Routers a layer."""
    return 1 + max(row["router"] for row in document["routers"])


def looks(document: dict[str, Any], layer: int | None) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Tags, kept far pairs over those there are (queries by keys), and that over the same of all tags.

    Args:
        document: the interpretation.
        layer: one layer; None for the mean over layers.
    """
    chosen = [e["looks"] for e in document["layers"] if layer is None or e["layer"] == layer]
    kept = np.array([one["kept"] for one in chosen])
    lift = kept / np.maximum(np.array([one["all"] for one in chosen])[:, None, None], 1e-9)
    return document["tags"], kept.mean(0), lift.mean(0)


def looks_answer(document: dict[str, Any], layer: int | None) -> str:
    """What is looked for most and least, and whether tokens look for their own kind."""
    tags, _, lift = looks(document, layer)
    most, least = (np.unravel_index(f(lift), lift.shape) for f in (np.argmax, np.argmin))
    chosen = [e["looks"]["own_tag_lift"] for e in document["layers"] if layer is None or e["layer"] == layer]
    own = float(np.mean(chosen))
    way = "more" if own > 1 else "less"
    verb = "look for" if document["directed"] else "share groups with"
    said = (
        f"{tags[most[0]].capitalize()} {verb} {tags[most[1]]} most, {lift[most]:.2f} times as often as tokens see each "
        f"other in all; {tags[least[0]]} {verb} {tags[least[1]]} least, {lift[least]:.2f} times. A token sees its own "
        f"part of speech {abs(own - 1):.0%} {way} often than the others."
    )
    return said.replace("%", " %")


def stability_frame(document: dict[str, Any]) -> pd.DataFrame:
    """How alike the groups are with what else could have come out: adjusted Rand index, mean over layers."""
    found, k = document["summary"]["stability"], document["config"]["groups"]
    own = {other: value for other, value in found["against"].items() if "seed" in other}
    rows = [("The same router trained with another seed", float(np.mean(list(own.values()))))] if own else []
    rows += [(f"Another adapter: {n}", v) for n, v in found["against"].items() if n not in own]
    for name, said in (
        ("routers", "The other heads' routers of the same layer"),
        ("untrained", "The router before training"),
        ("kmeans", f"k-means of the same hidden states, {k} clusters"),
        ("texts", "A word's group in one text and in another"),
        ("texts_shuffled", "The same, groups shuffled"),
    ):
        if name in found:
            rows.append((said, found[name]))
    return pd.DataFrame(rows, columns=["compared with", "adjusted Rand index"])


def stability_answer(document: dict[str, Any]) -> str:
    """Whether the groups are the same ones again."""
    found = document["summary"]["stability"]
    seeds = [value for name, value in found["against"].items() if "seed" in name]
    said = (
        f"With another seed, other groups: adjusted Rand index {np.mean(seeds):.2f}, where 0 is chance. "
        if seeds
        else ""
    )
    if not seeds:
        said = "One seed ships, so what another would give is not known here. "
    if "texts" in found:
        said += (
            f"In another text a word keeps its group in {percent(found['texts_same'])} of cases (index "
            f"{found['texts']:.2f}; shuffled {found['texts_shuffled']:.2f})."
        )
    return said
