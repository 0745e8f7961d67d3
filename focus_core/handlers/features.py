"""How far attention with few features is from dense, layer by layer, on one text, and what its cache holds.

Request: ``{model, text_name | None, text, limit, adapter (of kind sfa, or None)}``. Result: what
``focus_core.evaluation.feature_error`` gives, with ``cache``, ``adapter``, ``environment`` and ``seconds``.
"""

from __future__ import annotations

import time
from typing import Any

from focus_core.errors import InvalidInput
from focus_core.handlers import _requests as requests
from focus_core.jobs.costs import Estimate, Host, say_count
from focus_core.models.shapes import shape_of

KIND = "sfa"
LIMIT = 512
"""First tokens that are measured when the request names no limit."""
_CACHED_TOKENS = 32
_TRIALS, _TRIAL_FLOPS_PER_CORE = 50, 6e9
"""Attentions a layer (methods times numbers of features), and what a core does of one in a second (measured)."""
_FIT_TOKENS = 2048


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Cost of the fit, the pass and every trial; see ``focus_core.handlers``."""
    model = requests.model_name(request)
    text, name = requests.text_of(request)
    _check_adapter(request)
    limit = _limit(request)
    shape = shape_of(model)
    if shape is None:
        return requests.unknown_cost(model)
    tokens = min(requests.count_tokens(text, name, model)[0], limit, shape.context)

    def cost(n: int) -> tuple[float, int]:
        fit = requests.forward_seconds(shape, _FIT_TOKENS, host)
        one = 4 * n * n * shape.heads * shape.head_dim / (_TRIAL_FLOPS_PER_CORE * host.cores)
        seconds = fit + requests.forward_seconds(shape, n, host) + _TRIALS * shape.layers * (one + 0.002)
        return seconds, requests.forward_bytes(shape, max(n, _FIT_TOKENS // 2))

    detail = f"{say_count(shape.layers, 'layers')}, {say_count(host.cores, 'cores')}"
    return host.fit("features", cost, tokens, detail=detail, fixed=requests.loading(model, host))


def identity(request: dict[str, Any]) -> Any:
    """See ``focus_core.handlers``."""
    return requests.files_identity(request)


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Measure; see ``focus_core.handlers``."""
    text, name = requests.text_of(request)
    loaded = context.model(requests.model_name(request))
    adapter = None
    if folder := requests.adapter_folder(request.get("adapter")):
        from focus_core.adapter import load_adapter

        adapter = load_adapter(folder, loaded.model)
    found = measure(loaded, text, _limit(request), adapter, progress=context.progress, cancel=context.cancelled)
    return {**found, "text": name, "adapter": request.get("adapter") or None}


def measure(
    loaded: Any, text: str, limit: int, adapter: Any = None, *, progress: Any = None, cancel: Any = None
) -> dict[str, Any]:
    """Measure a text's first tokens, the short embeddings fitted on the training novels."""
    import torch

    from focus_core.assets import training_text
    from focus_core.capture import first_tokens
    from focus_core.evaluation.environment import environment
    from focus_core.evaluation.feature_error import FIT_TOKENS, FIT_WINDOWS, cached_bytes, feature_errors

    began = time.perf_counter()
    limit = min(limit, loaded.facts.context)
    ids = torch.from_numpy(first_tokens(loaded.tokenizer, text, limit)[1].ids).long()
    wide = min(FIT_TOKENS, loaded.facts.context)
    fit = first_tokens(loaded.tokenizer, training_text(), FIT_WINDOWS * wide)[1].ids
    windows = torch.from_numpy(fit[: len(fit) // wide * wide]).long().view(-1, wide)
    found = feature_errors(loaded, ids, windows, adapter=adapter, progress=progress, cancel=cancel)
    device = next(loaded.model.parameters()).device
    return {
        "format": 1,
        "model": loaded.name,
        "revision": loaded.facts.revision,
        "dtype": str(next(loaded.model.parameters()).dtype).removeprefix("torch."),
        "device": str(device),
        **found,
        "cache": cached_bytes(loaded, ids[:_CACHED_TOKENS], found["grid"][1:6:2]),
        "environment": environment(device),
        "seconds": round(time.perf_counter() - began, 1),
    }


def _check_adapter(request: dict[str, Any]) -> None:
    folder = requests.adapter_folder(request.get("adapter"))
    kind = requests.adapter_kind(folder)
    if folder is not None and kind != KIND:
        raise InvalidInput(
            f"The adapter is of kind {kind}, and maps of queries and keys are of kind {KIND}.",
            "Choose one of kind sfa, or none.",
        )


def _limit(request: dict[str, Any]) -> int:
    limit = request.get("limit", LIMIT)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 2:
        raise InvalidInput(f"limit is {limit!r}.", "It can be 2 tokens or more.")
    return limit
