"""What decoding remembers: the cache of each variant on one text, its bytes, its exactness and its speed.

Request: ``{model, text_name | None, text, entries: [{variant, config, adapter, label}] | None, prompt, decoded,
repeats}``; without entries those that save bytes, found from the registry. Result: what
``focus_core.benchmark.caches.measure_caches`` gives, and the text's name. A row is handed over when it is measured and
again when it is timed. ``again`` (any number) asks for a new measurement.
"""

from __future__ import annotations

from typing import Any

from focus_core.benchmark.cache_lines import cache_lines, counted_bytes, usual
from focus_core.benchmark.cache_probe import DTYPES
from focus_core.benchmark.caches import DECODED, PROMPT, REPEATS, REPLAYED, TIMED
from focus_core.errors import InvalidInput
from focus_core.handlers import _requests as requests
from focus_core.jobs.costs import Estimate, Host, say_count
from focus_core.variants import make

MAX_ENTRIES, MAX_PROMPT, MAX_DECODED, MAX_REPEATS = 16, 16_384, 512, 50
_BYTES_PER_SECOND = 1e10
"""At which a decoded token reads the weights."""
_LAYER_SECONDS = 1.5e-3
"""Of a decoded token in one layer beyond that."""
_SLOW_DTYPE = 4.0
"""A CPU takes so much longer in 16 bits than in 32, on average over the dtypes (measured)."""


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Cost of all entries; see ``focus_core.handlers``."""
    model = requests.model_name(request)
    prompt, decoded, repeats = _sizes(request)
    entries = _checked(request)
    need = prompt + decoded
    shape, _ = requests.check_length(
        request,
        need,
        shorter=lambda most: f"Take a prompt of up to {most - decoded:,} tokens" if most > decoded + 1 else "",
        longer="a longer text",
    )
    if shape is None:
        return requests.unknown_cost(model)
    count = len(entries if entries is not None else usual_entries(model, shape)) + 1
    token = 4 * shape.values / _BYTES_PER_SECOND + shape.layers * _LAYER_SECONDS
    layers = len(DTYPES) * _SLOW_DTYPE * requests.forward_seconds(shape, min(need, REPLAYED), host, 0.3)
    steps = 2 * decoded + repeats * min(TIMED, decoded)

    def cost(size: int) -> tuple[float, int]:
        each = requests.forward_seconds(shape, size, host) + steps * token + layers
        caches = 2 * 4 * shape.layers * shape.kv_heads * shape.head_dim * (size + decoded) * (count + 2)
        recorded = shape.layers * min(size, REPLAYED) * (shape.hidden + 4 * shape.head_dim) * 4
        return count * each, requests.forward_bytes(shape, size) + caches + recorded

    detail = f"{say_count(count, 'caches')}, {decoded} decoded, {say_count(host.cores, 'cores')}"
    return host.fit("cache", cost, prompt, detail=detail, fixed=requests.loading(model, host))


def identity(request: dict[str, Any]) -> Any:
    """See ``focus_core.handlers``."""
    entries = request.get("entries") or []
    return [requests.files_identity({**request, "adapter": e.get("adapter")}) for e in entries]


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Measure; what was measured before a cancel stays."""
    from focus_core.adapter import load_adapter
    from focus_core.benchmark.caches import measure_caches

    text, name = requests.text_of(request)
    prompt, decoded, repeats = _sizes(request)
    entries = _checked(request)
    loaded = context.model(requests.model_name(request))
    if entries is None:
        entries = usual_entries(loaded.name, loaded.facts)
    result = measure_caches(
        loaded,
        entries,
        text,
        prompt=prompt,
        decoded=decoded,
        repeats=repeats,
        load_adapter=lambda adapter: load_adapter(requests.adapter_folder(adapter), loaded.model),
        progress=context.progress,
        partial=context.partial,
        cancel=context.cancelled,
    )
    result["about"]["text"] = name
    return result


def usual_entries(model: str, shape: Any) -> list[dict[str, Any]]:
    """The entries of a request that names none."""
    return usual(cache_lines(model, shape), counted_bytes(make("dense"), shape, 4))


def _sizes(request: dict[str, Any]) -> tuple[int, int, int]:
    found = []
    limits = {
        "prompt": (PROMPT, 2, MAX_PROMPT),
        "decoded": (DECODED, 2, MAX_DECODED),
        "repeats": (REPEATS, 1, MAX_REPEATS),
    }
    for field, (default, least, most) in limits.items():
        value = request.get(field, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidInput(f"{field} is {value!r}.", f"It can be {least} to {most:,}.")
        found.append(value)
    return found[0], found[1], found[2]


def _checked(request: dict[str, Any]) -> list[dict[str, Any]] | None:
    entries = request.get("entries")
    if entries is None:
        return None
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_ENTRIES:
        raise InvalidInput(
            f"1 to {MAX_ENTRIES} caches are measured at once, not {len(entries or [])}.", "Choose at least one variant."
        )
    for entry in entries:
        make(entry.get("variant", ""), entry.get("config"))
        requests.adapter_folder(entry.get("adapter"))
    return entries
