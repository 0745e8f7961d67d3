"""Settings under which variants keep the same pairs, predict as well, or cache the same bytes.

Request: ``{model, text_name | None, text, entries: [{variant, config, adapter, label}], quantity, target: {value} or
{entry}, length, windows}``. Result: what ``focus_core.benchmark.matching.match`` gives, and the text's name. Every row
is handed over when its search has ended.
"""

from __future__ import annotations

from typing import Any

from focus_core.benchmark.knobs import QUANTITIES, tries_of
from focus_core.errors import InvalidInput
from focus_core.handlers import _requests as requests
from focus_core.handlers.compare import LONGER, MAX_ENTRIES
from focus_core.jobs.costs import Estimate, Host, say_count
from focus_core.variants import make


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Cost of the longest search; see ``focus_core.handlers``."""
    model = requests.model_name(request)
    entries, quantity, target, length, windows = _checked(request)
    shape, tokens = requests.check_length(
        request, length, shorter=lambda most: f"Take lengths up to {most:,}", longer=LONGER
    )
    if shape is None:
        return requests.unknown_cost(model)
    runs = sum(tries_of(make(e["variant"], e.get("config")), quantity) for e in entries)
    if "entry" in target:
        runs += min(1, tries_of(make(target["entry"]["variant"], target["entry"].get("config")), quantity))
    runs += quantity == "perplexity"
    scored = min(windows, max(1, tokens // length))
    body = 1.0 if quantity == "perplexity" else shape.inner / (shape.inner + shape.vocab * shape.hidden)

    def cost(limit: int) -> tuple[float, int]:
        one = requests.forward_seconds(shape, min(length, limit), host, body)
        return runs * scored * one, requests.forward_bytes(shape, min(length, limit)) if runs else 0

    detail = f"{say_count(len(entries), 'variants')}, up to {say_count(runs * scored, 'runs of the model')}"
    return host.fit("match", cost, length, detail=detail, fixed=requests.loading(model, host))


def identity(request: dict[str, Any]) -> Any:
    """See ``focus_core.handlers``."""
    target = request.get("target")
    named = target.get("entry") if isinstance(target, dict) else None
    entries = [*(request.get("entries") or []), *([named] if named else [])]
    return [requests.files_identity({**request, "adapter": e.get("adapter")}) for e in entries]


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Search; rows that were found before a cancel stay."""
    from focus_core.adapter import load_adapter
    from focus_core.benchmark.matching import match

    text, name = requests.text_of(request)
    entries, quantity, target, length, windows = _checked(request)
    loaded = context.model(requests.model_name(request))
    result = match(
        loaded,
        entries,
        text,
        quantity,
        target,
        length,
        windows=windows,
        load_adapter=lambda adapter: load_adapter(requests.adapter_folder(adapter), loaded.model),
        progress=context.progress,
        partial=context.partial,
        cancel=context.cancelled,
    )
    result["about"]["text"] = name
    return result


def _checked(request: dict[str, Any]) -> tuple[list[dict[str, Any]], str, dict[str, Any], int, int]:
    entries, target = request.get("entries"), request.get("target")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_ENTRIES:
        raise InvalidInput(
            f"A search takes 1 to {MAX_ENTRIES} variants, not {len(entries or [])}.", "Choose at least one variant."
        )
    if request.get("quantity") not in QUANTITIES:
        raise InvalidInput(f"There is no quantity {request.get('quantity')!r}.", f"It can be {', '.join(QUANTITIES)}.")
    if not isinstance(target, dict) or not {"value", "entry"} & target.keys():
        raise InvalidInput("Nothing is named that the variants are to match.", "Give a value or a line.")
    named = [target["entry"]] if "entry" in target else []
    for entry in [*entries, *named]:
        make(entry.get("variant", ""), entry.get("config"))
        requests.adapter_folder(entry.get("adapter"))
    length, windows = request.get("length"), request.get("windows", 1)
    for field, value, least, most in (("length", length, 2, 1 << 24), ("windows", windows, 1, 100)):
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidInput(f"{field} is {value!r}.", f"It can be {least} to {most:,}.")
    return entries, request["quantity"], target, int(request["length"]), windows
