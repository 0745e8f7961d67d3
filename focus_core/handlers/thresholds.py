"""XAttention's threshold of every head, fitted on a text: by dense attention kept, or by the paper's programme.

Request: ``{model, name, text_name | None, text | None, config, context, windows, recall}`` fits and keeps an adapter;
no text means the five training novels. With ``{programme: M}`` the thresholds of M layers are lowered by the dynamic
programme instead, and nothing is kept unless there is a name. Result: ``{name, record, thresholds}``.
"""

from __future__ import annotations

from typing import Any

from focus_core import assets
from focus_core.errors import InvalidInput
from focus_core.handlers import _requests as requests
from focus_core.jobs.costs import Estimate, Host, say_count
from focus_core.models.shapes import Shape, shape_of
from focus_core.variants import make

STORED = False
MOST_WINDOWS, MOST_REDUCTIONS = 16, 8
_SPAN = 400
"""Characters of the novels that are read for each wanted token: far apart, yet tokenized in a moment."""
_TRUE_SCORES = 4.3
"""The true scores of all pairs, and their cut at every threshold, take so many times dense attention (measured)."""


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Cost of reading the windows; see ``focus_core.handlers``."""
    model = requests.model_name(request)
    asked = _asked(request)
    if request.get("name") is not None or asked["programme"] is None:
        assets.check_adapter_name(request.get("name"))
    text = None
    if request.get("text") or request.get("text_name"):
        text, name = requests.text_of(request)
        tokens, exact = requests.count_tokens(text, name, model)
        if exact and tokens < asked["context"]:
            raise InvalidInput(
                f"The text has {tokens:,} tokens and a window takes {asked['context']:,}.", "Take the novels."
            )
    shape = shape_of(model)
    if shape is None:
        return requests.unknown_cost(model)
    _check_context(asked["context"], shape.context)
    one, need = requests.forward_seconds(shape, asked["context"], host), requests.forward_bytes(shape, asked["context"])
    one *= asked["windows"]
    loading = requests.loading(model, host)
    if asked["programme"] is not None:
        detail = f"{say_count(shape.layers, 'layers')}, {say_count(asked['context'], 'tokens')} each"
        runs = 1 + shape.layers * asked["programme"]
        return host.fit("thresholds", lambda n: (n * one, need), runs, "runs of the model", detail, fixed=loading)
    scoring = _scoring_seconds(shape, asked["context"], host)

    def cost(windows: int) -> tuple[float, int]:
        return windows * (one / asked["windows"] + scoring), need

    detail = f"{say_count(asked['context'], 'tokens')} each, {say_count(host.cores, 'cores')}"
    return host.fit("thresholds", cost, asked["windows"], "windows", detail, fixed=loading)


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Fit, and keep the adapter where it has a name."""
    from focus_core.routing.threshold_programme import fit_programme
    from focus_core.routing.thresholds import fit_thresholds
    from focus_core.routing.windows import spread_windows

    asked, name = _asked(request), request.get("name")
    if name is not None:
        assets.check_adapter_name(name)
    loaded = context.model(requests.model_name(request))
    _check_context(asked["context"], loaded.facts.context)
    if request.get("text") or request.get("text_name"):
        text, said = requests.text_of(request)
    else:
        text, said = assets.training_text()[: _SPAN * asked["context"] * asked["windows"]], "novels"
    ids = loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    windows = spread_windows(ids, asked["context"], asked["windows"])
    variant = make("xattention", asked["config"])
    watched = {"progress": context.progress, "cancel": context.cancelled}
    if asked["programme"] is None:
        adapter = fit_thresholds(loaded.model, windows, variant, recall=asked["recall"], **watched)
    else:
        adapter = fit_programme(loaded.model, windows, variant, reductions=asked["programme"], **watched)
    adapter.record = {"texts": said or "own text", **adapter.record}
    if name is not None:
        adapter.save_pretrained(context.folder, loaded.model)
        assets.keep_adapter(name, context.folder)
    rounded = [[round(t, 6) for t in layer] for layer in adapter.thresholds.tolist()]
    return {"name": name, "record": adapter.record, "thresholds": rounded}


def _scoring_seconds(shape: Shape, tokens: int, host: Host) -> float:
    """Raw seconds of the true scores of every block, beyond the forward."""
    quadratic = requests.forward_seconds(shape, tokens, host) - 2 * requests.forward_seconds(shape, tokens // 2, host)
    return _TRUE_SCORES * 2 * max(0.0, quadratic)


def _check_context(tokens: int, most: int) -> None:
    if tokens > most:
        raise InvalidInput(f"The model reads at most {most:,} tokens, not {tokens:,}.", f"Take {most:,} or fewer.")


def _asked(request: dict[str, Any]) -> dict[str, Any]:
    """The request's own fields, defaults filled in and checked."""
    found: dict[str, Any] = {"config": request.get("config") or {}, "programme": request.get("programme")}
    variant: Any = make("xattention", found["config"])
    for name, default, least, most in (
        ("context", 2048, 3 * variant.block, 1 << 17),
        ("windows", 1, 1, MOST_WINDOWS),
        ("programme", None, 1, MOST_REDUCTIONS),
    ):
        value = request.get(name, default)
        if value is None and default is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidInput(f"{name} is {value!r}.", f"It can be {least:,} to {most:,}.")
        found[name] = value
    recall = request.get("recall", 0.95)
    if not isinstance(recall, (int, float)) or isinstance(recall, bool) or not 0 < recall <= 1:
        raise InvalidInput(f"recall is {recall!r}.", "It can be more than 0 and at most 1.")
    return {**found, "recall": float(recall)}
