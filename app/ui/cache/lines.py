"""What the KV cache page can measure, the request, and what was recorded."""

from __future__ import annotations

from typing import Any

from analysis import cache as words
from analysis.captions import settings as in_words
from app.ui.compare import support
from app.ui.measurement import Measurement
from app.ui.recorded import documents
from app.ui.settings import variant_label
from app.ui.view import Page
from focus_core.benchmark.cache_lines import CACHE_FIELD, MOST, cache_lines, counted_bytes, settings_of, usual
from focus_core.models.catalog import DEFAULT, SHIPPED
from focus_core.models.shapes import shape_of
from focus_core.variants import VARIANTS, make

RUN = Measurement("cache", "cache", "the measurement")
PROMPTS = (64, 128, 256, 512, 1024, 2048)
USUAL_PROMPT = 256
DECODED, REPEATS = 32, 3
PREFIX = "cache-"
SIZE = "rank"
"""A setting that is its cache's size, though an adapter alone decides it."""


def label(line: dict[str, Any]) -> str:
    """A line as people read it: the variant, what decides its bytes, and its adapter."""
    variant, config = line["variant"], line["config"]
    parts = variant.split("_")
    name = " + ".join(map(variant_label, parts)) if set(parts) <= set(VARIANTS) else variant_label(variant)
    sizes = {k.field for k in VARIANTS[variant].knobs if k.moves == "cache"}
    full = settings_of(line).to_dict()
    sizes |= {SIZE} & set(full)
    said = in_words({k: v for k, v in full.items() if (k in sizes or k in config) and k != CACHE_FIELD})
    kept, adapter = full.get(CACHE_FIELD), line.get("adapter")
    parts = [name, f"{kept.upper()}-cache" if kept and not adapter else "", said if said != "no settings" else ""]
    named = ", ".join(filter(None, parts))
    return f"{named} ({adapter})" if adapter else named


def short_name(line: dict[str, Any]) -> str:
    """A stable name for links, such as ``sfa.features-8``."""
    parts = [line["variant"], line.get("adapter"), *(f"{k}-{v}" for k, v in sorted(line["config"].items()))]
    return ".".join(filter(None, parts))


def choices(page: Page) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Every cache that the registry offers for this model, by its short name, and those taken when none is chosen.

    What the model refuses is not among the latter.
    """
    shape = shape_of(page.model) or shape_of(DEFAULT)
    assert shape is not None, "the default model's shape is known without its files"
    lines, facts = cache_lines(page.model, shape), support.facts_of(page)
    dense = counted_bytes(make("dense"), shape, 4)
    able = [line for line in lines if not support.refusal(line["variant"], line["config"], facts)]
    return {short_name(line): line for line in lines}, [short_name(line) for line in usual(able, dense, MOST)]


def refused(page: Page, options: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """Variants about what is kept that this model cannot have: ``{variant, label, reason}``, each in its first form."""
    facts, found = support.facts_of(page), {}
    for line in options.values():
        variant = line["variant"]
        if variant in found or line["rank"] or not hasattr(VARIANTS[variant], CACHE_FIELD):
            continue
        if reason := support.refusal(variant, line["config"], facts):
            found[variant] = {"variant": variant, "label": label(line), "reason": reason}
    return list(found.values())


def elsewhere(label: str, model: str) -> dict[str, Any] | None:
    """A shipped measurement of another model in which a cache of this label is the model's own function, and smaller.

    Returns:
        ``{model, bytes, word}``, or None where no shipped measurement has it.
    """
    for document in shipped():
        other = document["about"].get("model")
        row = next((r for r in document["rows"] if r["label"] == label and "bytes_per_token" in r), None)
        own, found = words.dense_of(document), row and words.grade(document, row)
        if other == model or other not in SHIPPED or not own or not row or not found:
            continue
        if found.word in (words.EXACT, words.ROUNDING) and row["bytes_per_token"] < own["bytes_per_token"]:
            return {"model": other, "bytes": row["bytes_per_token"], "word": found.word}
    return None


def request(page: Page, lines: list[dict[str, Any]], prompt: int) -> dict[str, Any] | None:
    """The ``cache`` job for these choices; None while there is nothing to read or to measure."""
    if page.text is None or not lines:
        return None
    entries = [{k: line[k] for k in ("variant", "config", "adapter")} | {"label": label(line)} for line in lines]
    asked = {
        "model": page.model,
        **page.text.fields,
        "entries": entries,
        "prompt": prompt,
        "decoded": DECODED,
        "repeats": REPEATS,
    }
    return RUN.counted(asked)


def shipped() -> list[dict[str, Any]]:
    """Shipped measurements of caches, those of a model with a key a query head first."""
    found = [d for d in documents(PREFIX) if d.get("rows") and "kv_heads" in d.get("about", {})]
    return sorted(found, key=lambda d: d["about"]["kv_heads"] < d["about"]["heads"])
