"""Records one text through one model, dense and with a variant: what the pages under See show.

Request: ``{model, text_name | None, text, variant, config, adapter (name, folder or None), layers ("all" | [int])}``
and optionally ``limit`` (first tokens only) and ``edits`` (see ``focus_core.edits``).
Result: ``{trace: path, summary: {...}, provenance: {...}}``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from focus_core import edits
from focus_core.budget import BYTE_BUDGET, plan_layers, trace_bytes
from focus_core.capture import capture_trace, check_length
from focus_core.errors import InvalidInput
from focus_core.handlers import _requests as requests
from focus_core.jobs.costs import Estimate, Host, say_count
from focus_core.models.shapes import shape_of
from focus_core.variants import make

_JUDGED_SLACK = 1.6
_CONTENTS = 2
"""Raised when a Trace holds more than before: a stored one that lacks it is no answer."""


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Cost of both passes; see ``focus_core.handlers``."""
    model = requests.model_name(request)
    text, name = requests.text_of(request)
    requests.check_variant(request)
    shape = shape_of(model)
    if shape is None:
        edits.parse(request.get("edits"))
        return requests.unknown_cost(model)
    tokens, exact = requests.count_tokens(text, name, model)
    if (limit := _limit(request)) is not None:
        tokens = min(tokens, limit)
    if exact or tokens > shape.context * _JUDGED_SLACK:
        check_length(tokens, shape.context)
    tokens = min(tokens, shape.context)
    width = _check_adapter(request, shape.layers, tokens if exact else None)
    layers = request.get("layers", "all")
    if exact or layers != "all":
        plan_layers(shape, tokens, layers, width=width)

    def cost(n: int) -> tuple[float, int]:
        seconds = requests.forward_seconds(shape, n, host, 1.0 if request.get("variant") == "dense" else 2.0)
        arrays = min(BYTE_BUDGET, trace_bytes(shape, n, shape.layers, width, shape.layers))
        return seconds + arrays / 4e7, requests.forward_bytes(shape, n) + 2 * arrays

    detail = f"{say_count(shape.layers, 'layers')}, {say_count(host.cores, 'cores')}"
    return host.fit("trace", cost, tokens, detail=detail, fixed=requests.loading(model, host))


def identity(request: dict[str, Any]) -> Any:
    """See ``focus_core.handlers``."""
    return [_CONTENTS, *requests.files_identity(request)]


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Capture the Trace and leave it in the store."""
    text, name = requests.text_of(request)
    loaded = context.model(requests.model_name(request))
    variant, adapter, adapter_name = requests.build_variant(request, loaded.model)
    trace = capture_trace(
        loaded,
        variant,
        adapter,
        text,
        text_name=name,
        adapter_name=adapter_name,
        layers=request.get("layers", "all"),
        limit=_limit(request),
        edits=edits.parse(request.get("edits")),
        progress=context.progress,
        cancel=context.cancelled,
    )
    context.progress(0.92, "Saving.")
    trace.save(context.folder / "trace.npz")
    return {
        "files": {"trace": "trace.npz"},
        "summary": {**trace.provenance["summary"], "seconds": trace.provenance["seconds"]},
        "provenance": trace.provenance,
    }


def _check_adapter(request: dict[str, Any], layers: int, tokens: int | None) -> int:
    """Width of the routing space; refuses edits of what the variant and its adapter do not have."""
    document = requests.adapter_document(request) or {}
    serve, config = document.get("serve", {}), SimpleNamespace(**document.get("config", {}))
    variant = make(request.get("variant", "dense"), {**serve, **(request.get("config") or {})})
    routers = getattr(config, "routers", 1)
    edits.check(edits.parse(request.get("edits")), variant, layers=layers, routers=routers, tokens=tokens)
    try:
        return variant.routing_width(config)
    except AttributeError:  # an adapter whose settings lack these is refused when it is loaded
        return 0


def _limit(request: dict[str, Any]) -> int | None:
    limit = request.get("limit")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 2):
        raise InvalidInput(f"limit is {limit!r}.", "It can be 2 tokens or more.")
    return limit
