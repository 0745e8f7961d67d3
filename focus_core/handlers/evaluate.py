"""Perplexity of a variant beside dense on the windows of a text.

Request: ``{model, text_name | None, text, variant, config, adapter, context, windows | None, probes}``. Result: what
``focus_core.evaluation.perplexity.evaluate`` gives. A run that was stopped goes on at its window.
"""

from __future__ import annotations

from typing import Any

from focus_core.errors import InvalidInput
from focus_core.handlers import _requests as requests
from focus_core.jobs.costs import Estimate, Host, say_count
from focus_core.models.shapes import shape_of

RESUMES = True
_PROBE_FORWARDS = 15
"""Both probes take as long as so many forwards of 512 tokens (measured)."""


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Cost of all windows, both passes; see ``focus_core.handlers``."""
    model = requests.model_name(request)
    text, name = requests.text_of(request)
    requests.check_variant(request)
    length, windows = _window(request)
    shape = shape_of(model)
    if shape is None:
        return requests.unknown_cost(model)
    tokens, _ = requests.count_tokens(text, name, model)
    length = min(length, tokens)
    whole = max(1, tokens // length)
    count = min(whole, windows or whole)
    passes = 1.0 if request.get("variant") == "dense" else 2.0
    one, need = requests.forward_seconds(shape, length, host, passes), requests.forward_bytes(shape, length)
    probes = (
        _PROBE_FORWARDS * requests.forward_seconds(shape, min(length, 512), host)
        if request.get("probes", True)
        else 0.0
    )
    return host.fit(
        "evaluate",
        lambda n: (n * one + probes, need),
        count,
        "windows",
        f"{say_count(length, 'tokens')} each, {say_count(host.cores, 'cores')}",
        fixed=requests.loading(model, host),
    )


def identity(request: dict[str, Any]) -> Any:
    """See ``focus_core.handlers``."""
    return requests.files_identity(request)


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Evaluate window by window; every window's document is handed over."""
    from focus_core.evaluation.perplexity import evaluate

    text, name = requests.text_of(request)
    length, windows = _window(request)
    loaded = context.model(requests.model_name(request))
    variant, adapter, adapter_name = requests.build_variant(request, loaded.model)
    earlier = context.earlier()
    result = evaluate(
        loaded,
        variant,
        adapter,
        text,
        context=length,
        windows=windows,
        probes=bool(request.get("probes", True)),
        partial=context.partial,
        resume=earlier[-1] if earlier else None,
        progress=context.progress,
        cancel=context.cancelled,
    )
    return {**result, "text": name, "adapter_name": adapter_name}


def _window(request: dict[str, Any]) -> tuple[int, int | None]:
    length, windows = request.get("context", 1024), request.get("windows")
    for field, value, least in (("context", length, 2), ("windows", windows, 1)):
        if value is None and field == "windows":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidInput(f"{field} is {value!r}.", f"It can be {least} or more.")
    return length, windows
