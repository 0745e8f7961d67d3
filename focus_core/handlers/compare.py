"""Variants side by side on one text: perplexity, kept pairs, time, memory.

Request: ``{model, text_name | None, text, entries: [{variant, config, adapter, label}], lengths, repeats, windows}``.
Result: what ``focus_core.benchmark.comparison.compare`` gives, and the text's name. Every row is handed over when it
has been scored and again when it has been timed. ``again`` (any number) asks for a new measurement.
"""

from __future__ import annotations

from typing import Any

from focus_core.errors import InvalidInput
from focus_core.handlers import _requests as requests
from focus_core.jobs.costs import Estimate, Host, say_count
from focus_core.models.shapes import Shape
from focus_core.variants import make

MAX_ENTRIES = 16
MAX_LENGTHS = 8
MAX_REPEATS = 50
LONGER = "a longer text such as the novel Persuasion"


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Cost of all passes; see ``focus_core.handlers``."""
    model = requests.model_name(request)
    entries, lengths, repeats, windows = _checked(request)
    longest = max(lengths)
    shape, tokens = requests.check_length(
        request, longest, shorter=lambda most: f"Take lengths up to {most:,}", longer=LONGER
    )
    if shape is None:
        return requests.unknown_cost(model)
    if all(entry["variant"] != "dense" or entry.get("adapter") for entry in entries):
        entries = [{"variant": "dense"}, *entries]
    served = [entry for entry in entries if _served(entry)]

    # A timed prefill asks for the last token's logits alone.
    body = shape.inner / (shape.inner + shape.vocab * shape.hidden)

    def cost(limit: int) -> tuple[float, int]:
        seconds = 0.0
        for length in (min(n, limit) for n in lengths):
            scored = min(windows, max(1, tokens // length)) * len(entries)
            passes = scored + (repeats + 1) * len(served) * body
            seconds += requests.forward_seconds(shape, length, host, passes)
        length = min(longest, limit)
        soft = 0 if len(served) == len(entries) else _score_bytes(shape, length)
        return seconds, requests.forward_bytes(shape, length) + _cache_bytes(shape, length) + soft

    counted = {"variants": len(entries), "lengths": len(lengths), "repeats": repeats, "cores": host.cores}
    detail = ", ".join(say_count(count, unit) for unit, count in counted.items())
    return host.fit("compare", cost, longest, detail=detail, fixed=requests.loading(model, host))


def identity(request: dict[str, Any]) -> Any:
    """See ``focus_core.handlers``."""
    entries = request.get("entries") or []
    return [requests.files_identity({**request, "adapter": e.get("adapter")}) for e in entries]


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Compare; what was measured before a cancel stays."""
    from focus_core.adapter import load_adapter
    from focus_core.benchmark.comparison import compare

    text, name = requests.text_of(request)
    entries, lengths, repeats, windows = _checked(request)
    loaded = context.model(requests.model_name(request))
    result = compare(
        loaded,
        entries,
        text,
        lengths,
        repeats=repeats,
        windows=windows,
        load_adapter=lambda adapter: load_adapter(requests.adapter_folder(adapter), loaded.model),
        progress=context.progress,
        partial=context.partial,
        cancel=context.cancelled,
    )
    result["about"]["text"] = name
    return result


def _checked(request: dict[str, Any]) -> tuple[list[dict[str, Any]], list[int], int, int]:
    entries, lengths = request.get("entries"), request.get("lengths")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_ENTRIES:
        raise InvalidInput(
            f"A comparison takes 1 to {MAX_ENTRIES} variants, not {len(entries or [])}.", "Choose at least one variant."
        )
    for entry in entries:
        make(entry.get("variant", ""), entry.get("config"))
        requests.adapter_folder(entry.get("adapter"))
    if not isinstance(lengths, list) or not 1 <= len(lengths) <= MAX_LENGTHS or not all(map(_is_length, lengths)):
        raise InvalidInput(
            f"The lengths are {lengths!r}.", f"Give 1 to {MAX_LENGTHS} lengths of at least 2 tokens, as whole numbers."
        )
    repeats, windows = request.get("repeats", 5), request.get("windows", 4)
    for field, value, most in (("repeats", repeats, MAX_REPEATS), ("windows", windows, 1000)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise InvalidInput(f"{field} is {value!r}.", f"It can be 1 to {most}.")
    return entries, sorted(set(lengths)), repeats, windows


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 2


def _served(entry: dict[str, Any]) -> bool:
    return make(entry["variant"], entry.get("config")).served


def _cache_bytes(shape: Shape, tokens: int) -> int:
    return 2 * 4 * shape.layers * shape.kv_heads * shape.head_dim * tokens


def _score_bytes(shape: Shape, tokens: int) -> int:
    """A soft gate holds the scores of all pairs of one layer, a few times over."""
    return 4 * 4 * shape.heads * tokens * tokens
