"""What adapting a model gains on its training domain and loses elsewhere: recorded probes, each paired with dense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.forgetting_arms import FOCUS_FULL, FULL, LORA, SWEPT, arm_key, arm_label, family, in_order, telling
from analysis.numbers import percent, sig3

BARE, BEHIND = "bare", "behind a passage"
DOMAIN, GENERAL = "domain", "general"
_ORDER = ("texts", "pairs", "needle", "instructions", "refusal")
REFUSED = "The rule that tells a refusal: the reply's first 200 characters hold one of a list of phrases."


@dataclass(frozen=True)
class Measure:
    """One ability, as it is measured.

    Attributes:
        key: (task, part, where) of its rows.
        label: as people read it.
        group: ``domain`` or ``general``.
        about: how it is measured, in a sentence.
        lower: whether less is better.
    """

    key: tuple[str, str, str]
    label: str
    group: str
    about: str
    lower: bool = False


@dataclass(frozen=True)
class Change:
    """An arm's value beside dense's.

    Attributes:
        measure: of what.
        arm: whose.
        value: the arm's: a perplexity, or a share.
        dense: dense's own.
        change: better is positive: by how much the perplexity fell as a share, or the difference of the shares.
        low: lower end of its 95 % interval; None where there is none.
        high: upper end.
        of: items, or scored tokens.
        by_definition: whether it is dense by definition, so that it could not change.
    """

    measure: Measure
    arm: str
    value: float
    dense: float
    change: float
    low: float | None
    high: float | None
    of: int
    by_definition: bool

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out no change."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def arms(documents: Sequence[dict[str, Any]]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Dense, and what was asked the same of the same model on the same device: of several such sets the largest.

    Args:
        documents: what ``probe`` wrote.

    Returns:
        The dense document, None where there is none; the others, Focus first.
    """
    sets: dict[tuple, list[dict[str, Any]]] = {}
    for document in documents:
        if {"rows", "outcomes", "weights", "items"} <= document.keys():
            asked = (document[k] for k in ("model", "revision", "items", "dtype"))
            sets.setdefault((*asked, document["environment"]["device"]), []).append(document)
    best: tuple[dict[str, Any] | None, list[dict[str, Any]]] = None, []
    size = (0, 0)
    for found in sets.values():
        dense = next((d for d in found if d["variant"] == "dense" and not d.get("adapter_name")), None)
        if dense is not None and (own := (len(found), sum(map(len, dense["outcomes"].values())))) > size:
            others = [d for d in found if d is not dense]
            best, size = (dense, sorted(others, key=in_order)), own
    return best


def measures(document: dict[str, Any]) -> list[Measure]:
    """Every ability that a document has, what it was adapted to first."""
    sizes = document["sizes"]
    found = []
    for row in document["rows"]:
        key = (row["task"], row["part"], row["where"])
        if row["task"] == "texts":
            about = f"Perplexity, {row['windows']} windows of {sizes['context']:,} tokens."
            name = "Persuasion" if row["part"] == "persuasion" else row["part"].capitalize()
            found.append(Measure(key, name, row["where"], about))
        elif row["task"] == "pairs" and row["part"] == "all":
            about = "Share of minimal pairs whose grammatical sentence is the likelier one."
            found.append(Measure(key, f"Grammar, {_where(row)}", GENERAL, about))
        elif row["task"] == "needle" and row["part"] == "all":
            about = f"Share of needles whose answer is the likeliest of {row['candidates']}."
            found.append(Measure(key, f"Needles in {int(row['where']):,} tokens", GENERAL, about))
        elif row["task"] == "instructions":
            about = "Share of checkable instructions that the reply keeps."
            found.append(Measure(key, f"Instructions, {_where(row)}", GENERAL, about))
        elif row["task"] == "refusal":
            harmful = row["part"] == "harmful"
            name = "Refuses harmful" if harmful else "Refuses harmless"
            found.append(Measure(key, f"{name}, {_where(row)}", GENERAL, REFUSED, lower=not harmful))
    return sorted(found, key=lambda one: (one.group != DOMAIN, _ORDER.index(one.key[0])))


def _where(row: dict[str, Any]) -> str:
    return "long" if row["where"] == BEHIND else "short"


def changes(dense: dict[str, Any], document: dict[str, Any]) -> list[Change]:
    """Every ability of an arm beside dense's, paired item by item."""
    own, base = _rows(document), _rows(dense)
    # Where all attention is dense, trained weights still are others.
    weights = family(document) in SWEPT
    found = []
    for measure in measures(dense):
        row, other = own.get(measure.key), base[measure.key]
        if row is None:
            continue
        by_definition = row["dense_by_definition"] and not weights
        if measure.key[0] == "texts":
            error = row["nll_se"]
            ends: tuple[float | None, float | None] = None, None
            if error is not None:
                reach = students(row["windows"] - 1) * error
                ends = -math.expm1(row["nll_diff"] + reach), -math.expm1(row["nll_diff"] - reach)
            values = (row["ppl"], row["dense_ppl"], -math.expm1(row["nll_diff"]))
            found.append(Change(measure, arm_key(document), *values, *ends, row["tokens"], by_definition))
            continue
        ours, theirs = outcomes(document, measure.key), outcomes(dense, measure.key)
        sign = -1 if measure.lower else 1
        change, low, high = paired(ours, theirs)
        low, high = sorted((sign * low, sign * high))
        values = (row["share"], other["share"], sign * change)
        found.append(Change(measure, arm_key(document), *values, low, high, row["of"], by_definition))
    return found


def _rows(document: dict[str, Any]) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(row["task"], row["part"], row["where"]): row for row in document["rows"]}


def outcomes(document: dict[str, Any], key: tuple[str, str, str]) -> str:
    """One character an item, 1 where it counts; all parts of a row that joins them, in their order."""
    task, part, where = key
    names = [f"{task} | {part} | {where}"]
    if part == "all":
        names = [
            name for name in document["outcomes"] if name.startswith(f"{task} | ") and name.endswith(f" | {where}")
        ]
    return "".join(document["outcomes"][name] for name in names)


def students(degrees: int) -> float:
    """Student's 97.5 % quantile: a few windows tell less than a normal error says. Within 0.3 % from 1 degree on."""
    first = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
    return first[degrees - 1] if degrees <= len(first) else 1.96 + 2.4 / degrees + 2.9 / degrees**2


def paired(ours: str, theirs: str) -> tuple[float, float, float]:
    """Difference of two shares of the same items, and its 95 % interval.

    The interval is Agresti and Min's (Statistics in Medicine 24, 2005): half an item is added to each of the four
    cells, so that few items without a difference do not look certain.
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} and {len(theirs)} items cannot be paired.")
    gained = sum(a > b for a, b in zip(ours, theirs, strict=True))
    lost = sum(a < b for a, b in zip(ours, theirs, strict=True))
    n = len(ours) + 2
    middle = (gained - lost) / n
    half = 1.96 * math.sqrt(max(0.0, (gained + lost + 1) / n - middle**2) / n)
    return (gained - lost) / len(ours), max(-1.0, middle - half), min(1.0, middle + half)


def answer(dense: dict[str, Any] | None, others: Sequence[dict[str, Any]]) -> str:
    """The page's sentence: what each gains on the novel, and the ability that it loses most."""
    if dense is None or not others:
        return "Nothing has been recorded yet: python -m focus_core probe measures what a model can still do."
    said = []
    for document in _first(telling(others)):
        found = changes(dense, document)
        gain = next((c for c in found if c.measure.group == DOMAIN), None)
        lost = [c for c in found if c.measure.group == GENERAL and c.clear and c.change < 0]
        words = arm_label(document).partition(" (")[0]
        if gain is not None:
            how = "lowers" if gain.change > 0 else "raises"
            words += f" {how} perplexity on the novel by {percent(abs(gain.change))}"
            words += "" if gain.clear else ", within its error,"
        if not lost:
            words += " and loses nothing that these tests could tell"
        else:
            # Of equal losses the last: the longest text.
            worst = min(reversed(lost), key=lambda c: c.change)
            name = worst.measure.label[:1].lower() + worst.measure.label[1:]
            words += f" and loses most on {name}: {shown(worst.value, worst)}, dense {shown(worst.dense, worst)}"
        said.append(words)
    words = "; ".join(said) + "."
    return words[:1].upper() + words[1:]


def _first(others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first arm of each family."""
    found: dict[str, dict[str, Any]] = {}
    for document in others:
        found.setdefault(family(document), document)
    # That it is full fine-tuning is said by dense's own.
    return [document for kind, document in found.items() if kind != FOCUS_FULL or FULL not in found]


def shown(value: float, change: Change) -> str:
    """A value as people read it: a perplexity, or a share."""
    return sig3(value) if change.measure.key[0] == "texts" else percent(value)


def table(dense: dict[str, Any], others: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """One row a measure: dense, then each arm with its change and what is to be known of it."""
    by_arm = {arm_label(document): {c.measure.key: c for c in changes(dense, document)} for document in others}
    rows = []
    for measure in measures(dense):
        found = [one[measure.key] for one in by_arm.values() if measure.key in one]
        if not found:
            continue
        row = {"What": measure.label, "Dense": shown(found[0].dense, found[0])}
        for label, one in by_arm.items():
            row[label] = _cell(one.get(measure.key))
        rows.append(row | {"Items": f"{found[0].of:,}", "How": measure.about})
    return rows


def _cell(change: Change | None) -> str:
    if change is None:
        return "–"
    value = shown(change.value, change)
    if change.by_definition:
        return f"{value} (dense by definition)"
    if change.measure.key[0] == "texts":
        return f"{value} ({percent(change.value / change.dense - 1, signed=True)})"
    points = (change.value - change.dense) * 100
    return value if points == 0 else f"{value} ({'+' if points > 0 else '−'}{sig3(abs(points))} points)"


def parts(dense: dict[str, Any], others: Sequence[dict[str, Any]], task: str, where: str) -> list[dict[str, str]]:
    """The parts of a task side by side: phenomena of the pairs, or depths of the needles."""
    columns = [("Dense", dense), *((arm_label(document), document) for document in others)]
    names = [r["part"] for r in dense["rows"] if (r["task"], r["where"]) == (task, where) and r["part"] != "all"]
    found = []
    for name in names:
        row = {"Part": name}
        for label, document in columns:
            own = _rows(document).get((task, name, where))
            row[label] = "–" if own is None else _share(own)
        found.append(row)
    return found


def _share(row: dict[str, Any]) -> str:
    said = f"{row['right']} of {row['of']} ({percent(row['low'])} to {percent(row['high'])})"
    return said if "rank" not in row else f"{said}, {row['exact']} said outright, mean rank {sig3(row['rank'])}"


def hashes(dense: dict[str, Any], others: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Of every arm the hash of the model's own weights before, inside and after, and of those that computed."""
    found = []
    for document in (dense, *others):
        weights = document["weights"]
        found.append(
            {
                "Arm": arm_label(document),
                "Before": weights["before"][:12],
                "With it inside": weights["inside"][:12],
                "Taken out": weights["after"][:12],
                "Computed with": _used(document),
                "Logits changed by": sig3(weights["logits_change"]),
                "Trained numbers": f"{document['adapter_parameters']:,}",
            }
        )
    return found


def _used(document: dict[str, Any]) -> str:
    used = document["weights"].get("used")
    if used is not None:
        return f"{used[:12]}, trained"
    return "its own and LoRA's" if family(document) == LORA else "its own"


def departs(reply: str, dense: str) -> str:
    """Where a reply leaves dense's, in words."""
    own, base = reply.split(), dense.split()
    if own == base:
        return "Word for word dense's reply."
    same = next((i for i, (a, b) in enumerate(zip(own, base, strict=False)) if a != b), min(len(own), len(base)))
    return "Differs from dense from its first word on." if not same else f"As dense for {same} words, then another way."
