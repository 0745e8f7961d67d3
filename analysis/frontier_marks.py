"""The recorded frontier: what each pattern kept of the pairs and lost of perplexity, whichever command measured it.

Read from ``frontier-*.json``, what ``eval`` writes of a frozen model. A result shows by being there; one whose line has
no words of its own is called as its file is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.captions import settings
from analysis.numbers import percent, spread
from analysis.records import asked_adapter

PREFIX = "frontier-"
TEXTS = {
    "persuasion": "Held-out novel",
    "brown-fiction": "Brown fiction",
    "python_code": "Code",
    "python_reference": "Technical prose",
}
"""Texts by the end of their files' names."""
METHODS = {
    "focus": "Focus, shipped router",
    "tables": "Focus, groups by head, or trained on",
    "shared": "Focus, one shared router a layer",
    "window": "Window",
    "longformer": "Longformer",
    "bigbird": "BigBird",
    "routing": "Routing Transformer",
    "kmeans": "k-means groups",
    "random": "Random groups",
    "xattention": "XAttention",
}
FOCUS = ("focus", "tables", "shared")
GOALS = {4096: 0.2, 8192: 0.125}
"""The share of the pairs that a router should need at a length to predict as dense does."""
QUARTER = 0.25
_SHIPPED = "smollm2-directed-k16"
_TABLES = {
    "directed-k16-looks": "Focus, table of groups by head",
    "directed-k16-looks-trained": "Focus, table of groups by head, trained on",
    "directed-k16-fifth": "Focus, the shipped table (a fifth of the pairs)",
    "directed-k16-gently-looks": "Focus, trained on at rate 0.002, then table",
    "directed-k16-q2-trained": "Focus, 2 groups a query, trained on",
    "directed-k16-4096-q1": "Focus, router trained with 2 groups a query, 1 a query",
}


@dataclass(frozen=True)
class Mark:
    """One line on one text at one length.

    Attributes:
        method: a key of ``METHODS``, or the variant of a method that is not there.
        line: its name in the file's.
        name: as people read it.
        text: a key of ``TEXTS``, or another text's name.
        context: tokens of a window.
        kept: share of the causal pairs.
        change: of perplexity against dense on the same tokens, as a share.
        error: standard error of the paired difference, as a share; None where there are fewer than three windows.
        windows: how many were read.
        adapter: its name; empty for none.
        document: the result.
    """

    method: str
    line: str
    name: str
    text: str
    context: int
    kept: float
    change: float
    error: float | None
    windows: int
    adapter: str
    document: dict[str, Any]

    @property
    def where(self) -> dict[str, Any]:
        """What it ran on and when."""
        return self.document.get("environment") or {}

    def changed(self) -> str:
        """The change with its standard error."""
        return percent(self.change, signed=True) + ("" if self.error is None else f" {spread(self.error)}")

    def settings(self) -> str:
        """The settings in words; how many groups each head looks into is the adapter's own where it has a table."""
        config = dict(self.document.get("config") or {})
        if self.line in _TABLES and ("looks" in self.line or "fifth" in self.line):
            config.pop("query_topk", None)
        return settings(config)


def marks(documents: Iterable[dict[str, Any]]) -> list[Mark]:
    """Every line in these documents, by text, length and pairs kept; of one in two number formats, bfloat16's."""
    found: dict[tuple[str, str, int], Mark] = {}
    for document in documents:
        try:
            mark = _mark(document)
        except (KeyError, TypeError, ValueError):
            continue
        key = (mark.line, mark.text, mark.context)
        if key not in found or document.get("dtype") == "bfloat16":
            found[key] = mark
    order = list(TEXTS)
    return sorted(
        found.values(),
        key=lambda m: (order.index(m.text) if m.text in order else len(order), m.context, m.kept, m.line),
    )


def of(found: Iterable[Mark], text: str, context: int) -> list[Mark]:
    """The marks of one text and length."""
    return [mark for mark in found if (mark.text, mark.context) == (text, context)]


def answer(found: Sequence[Mark], text: str, context: int) -> str:
    """Who stands best with at most a quarter of the pairs, Focus or another, and the other side, as a sentence."""
    here = of(found, text, context)
    place = f"{TEXTS.get(text, text)}, {context:,} tokens"
    few = [mark for mark in here if mark.kept <= QUARTER]
    sides = [[mark for mark in few if (mark.method in FOCUS) == ours] for ours in (True, False)]
    if not here:
        return f"{place}: nothing is recorded."
    if not all(sides):
        one = min(here, key=lambda mark: mark.change)
        return f"{place}: {_told(one)}. With at most a quarter of the pairs nothing is recorded to compare."
    first, second = sorted((min(side, key=lambda mark: mark.change) for side in sides), key=lambda mark: mark.change)
    rest = "the best of the others" if first.method in FOCUS else "the best of Focus"
    other = _told(second).removeprefix("Focus, ")
    return f"{place}, at most a quarter of the pairs: best is {_told(first)}; {rest} is {other}."


def _told(mark: Mark) -> str:
    return f"{mark.name}, {percent(mark.change, signed=True)} perplexity with {percent(mark.kept)} of the pairs"


def _mark(document: dict[str, Any]) -> Mark:
    text, context = Path(document["text"]).stem.replace(" ", "-"), int(document["context"])
    line = document["file"].removeprefix(PREFIX).removesuffix(".json").removesuffix("-float32")
    line = line.removesuffix(f"-{text}-{context}")
    config, variant = document["config"], document["variant"]
    adapter = Path(document.get("adapter_name") or asked_adapter(document)).name
    method = variant
    if variant == "focus" and adapter != _SHIPPED:
        method = "shared" if "-shared-" in adapter else "tables"
    few = document["windows"] < 3 or document.get("nll_se") is None
    return Mark(
        method=method,
        line=line,
        name=_TABLES.get(line) or _name(method, config) or line,
        text=text,
        context=context,
        kept=float(document["kept_pairs"]),
        change=math.expm1(document["nll_diff"]),
        error=None if few else float(document["nll_se"]),
        windows=int(document["windows"]),
        adapter=adapter,
        document=document,
    )


def _name(method: str, config: dict[str, Any]) -> str:
    if method == "focus":
        looks = config["query_topk"]
        return f"Focus, {looks} group{'s' if looks > 1 else ''} a query"
    made = _NAMES.get(method)
    return made.format(**config) if made else ""


_NAMES = {
    "shared": "Focus, one router a layer, K={groups}",
    "window": "Window of {window:,}",
    "longformer": "Longformer, window of {window:,}",
    "bigbird": "BigBird, {window_blocks} blocks near and {random_blocks} random",
    "routing": "Routing Transformer, {groups} clusters",
    "kmeans": "k-means, K={groups}, {query_topk} a query",
    "random": "Random groups, K={groups}, {query_topk} a query",
    "xattention": "XAttention, threshold {threshold}, stride {stride}",
}
