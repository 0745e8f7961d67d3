"""Trains a router (or another adapter) for a model; a run that was stopped or killed goes on at its last step.

Request: ``{model, text_name | None, text, source: novels | text, settings: fields of TrainSettings, probe}``. The
text's first ``probe`` tokens are looked at while it trains; with ``source`` ``text`` it is also what is trained on, its
end held back for validation. First ``{about: {folder, settings, ...}}`` is handed over, then every step: ``{step, loss,
temperature, gate, largest_group, load (L, R, K) over the fair share, served_ppl?, kept_pairs?, dense_ppl?, look? (file
in the run's folder)}``. Result: ``{files, history, about}``; the adapter lies in the run's folder.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from focus_core import assets
from focus_core.errors import InvalidInput, TooLarge
from focus_core.handlers import _requests as requests
from focus_core.jobs.costs import Estimate, Host, say_count
from focus_core.models.shapes import Shape, shape_of
from focus_core.training.settings import TrainSettings

RESUMES = True
NOVELS, TEXT = "novels", "text"
TOY: dict[str, Any] = {
    "form": "shared",
    "router_per_kv_head": False,
    "groups": 8,
    "query_topk": 1,
    "key_topk": 1,
    "window": 32,
    "sinks": 4,
    "steps": 20,
    "context": 256,
    "batch": 1,
    "learning_rate": 3e-3,
    "warmup": 3,
    "balance_step_start": 0.1,
    "balance_step_end": 0.01,
    "validate_every": 10,
    "validation_windows": 2,
    "checkpoint_every": 1,
}
"""Defaults of a request: about a minute on two cores with the shipped model."""
PROBE = 256
LOOKS = 20
_VALIDATION_SHARE = 0.2
_STEP_PASSES = 3.0
"""A step takes as long as so many forwards: one through the model, and back through all but its weights."""
_PASS_BYTES = 44
"""Values that a layer keeps of each token and hidden dimension for the way back (measured)."""


def settings_of(request: dict[str, Any]) -> TrainSettings:
    """The run's settings: the toy's, then the request's.

    Raises:
        InvalidInput: a setting that does not exist or could not train.
    """
    given = request.get("settings") or {}
    known = {field.name for field in dataclasses.fields(TrainSettings)}
    if unknown := sorted(set(given) - known):
        raise InvalidInput(f"There is no training setting {unknown[0]!r}.", f"There are {', '.join(sorted(known))}.")
    return TrainSettings(**{**TOY, **given})


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Cost of all steps, validations and looks; see ``focus_core.handlers``."""
    model = requests.model_name(request)
    settings, probe = settings_of(request), _probe(request)
    text, name = requests.text_of(request)
    source = _source(request)
    tokens, exact = requests.count_tokens(text, name, model)
    if source == TEXT:
        check_text(tokens, settings, exact)
    shape = shape_of(model)
    if shape is None:
        return requests.unknown_cost(model)
    if settings.context > shape.context:
        raise TooLarge(
            f"{model} reads at most {shape.context:,} tokens and a window of {settings.context:,} was asked for.",
            f"Take a context of up to {shape.context:,}.",
        )
    each = requests.forward_seconds(shape, settings.context, host)
    look = requests.forward_seconds(shape, min(tokens, probe), host)

    def cost(steps: int) -> tuple[float, int]:
        validations = (1 + steps // settings.validate_every) * settings.validation_windows
        passes = steps * settings.batch * settings.accumulate * _STEP_PASSES + validations + settings.validation_windows
        looks = min(steps, LOOKS) + 1
        return passes * each + looks * look, _bytes(shape, settings)

    detail = f"{settings.batch} x {say_count(settings.context, 'tokens')} each, {say_count(host.cores, 'cores')}"
    return host.fit("train", cost, settings.steps, "steps", detail, fixed=requests.loading(model, host))


def identity(request: dict[str, Any]) -> Any:
    """See ``focus_core.handlers``."""
    return requests.files_identity(request)


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Train in the run's folder, from its last checkpoint where there is one."""
    from focus_core.routing.router import Router
    from focus_core.training.probe import Probe
    from focus_core.training.trainer import train

    settings = settings_of(request)
    text, name = requests.text_of(request)
    loaded = context.model(requests.model_name(request))
    training, validation, texts = _ids(loaded.tokenizer, text, name, _source(request), settings)
    folder: Path = context.folder
    about = {"folder": str(folder), "model": loaded.name, "texts": texts, "settings": settings.to_dict()}
    if not any("about" in part for part in context.earlier()):
        context.partial({"about": about})
    probe = None
    if settings.kind == "router":
        probe = Probe(loaded, text, _probe(request), settings.variant_at(None), folder)
    every = max(1, settings.steps // LOOKS)
    latest: dict[str, Any] = {}

    def seen(metrics: dict[str, Any]) -> None:
        latest.clear()
        latest.update(metrics)

    def watch(step: int, adapter: Any, share: Any) -> None:
        part = {"step": step, **latest} if latest.get("step") == step else {"step": step}
        if share is not None:
            part["load"] = [[[round(x, 3) for x in row] for row in layer] for layer in share.tolist()]
        if probe is not None and isinstance(adapter, Router) and (step % every == 0 or step == settings.steps):
            part["look"] = probe.look(step, adapter)
        context.partial(part)

    adapter = train(
        loaded,
        training,
        validation,
        settings,
        folder,
        texts=texts,
        on_step=seen,
        watch=watch,
        validate_start=True,
        progress=context.progress,
        cancel=context.cancelled,
    )
    history = list(_by_step(context.earlier()).values())
    looks = {f"look_{part['step']}": part["look"] for part in history if "look" in part}
    files = {"adapter": "focus_config.json", "weights": "focus_adapter.safetensors", **looks}
    if probe is not None:
        files["probe"] = "probe.npz"
    about |= {"record": adapter.record, "serve": adapter.serve}
    return {"files": files, "history": history, "about": about}


def check_text(tokens: int, settings: TrainSettings, exact: bool = True) -> None:
    """Refuse a text that is too short for one window to train on and one to validate on."""
    need = 2 * settings.context
    if tokens < need:
        raise InvalidInput(
            f"The text has {'' if exact else 'about '}{tokens:,} tokens; training on it takes {need:,}: one window of "
            f"{settings.context:,} to train on and one held back.",
            "Take a longer text, a smaller context, or train on the shipped novels.",
        )


def _by_step(parts: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The last word on each step; a run that went on from a checkpoint may have told a step twice."""
    found: dict[int, dict[str, Any]] = {}
    for part in parts:
        if "step" in part:
            found[part["step"]] = {**found.get(part["step"], {}), **part}
    return dict(sorted(found.items()))


def _ids(tokenizer: Any, text: str, name: str | None, source: str, settings: TrainSettings) -> tuple[Any, Any, str]:
    import torch

    def ids(words: str) -> Any:
        return torch.tensor(tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"])

    if source == NOVELS:
        enough = 16 * settings.context * settings.validation_windows
        return ids(assets.training_text()), ids(assets.validation_text()[:enough]), "five Austen novels"
    found = ids(text)
    check_text(len(found), settings)
    held = max(settings.context, int(len(found) * _VALIDATION_SHARE) // settings.context * settings.context)
    return found[:-held], found[-held:], name or "a text of the user's"


def _source(request: dict[str, Any]) -> str:
    source = request.get("source", NOVELS)
    if source not in (NOVELS, TEXT):
        raise InvalidInput(f"source is {source!r}.", f"It can be {NOVELS} or {TEXT}.")
    return source


def _probe(request: dict[str, Any]) -> int:
    count = request.get("probe", PROBE)
    if not isinstance(count, int) or isinstance(count, bool) or not 2 <= count <= 2048:
        raise InvalidInput(f"probe is {count!r}.", "It can be 2 to 2,048 tokens.")
    return count


def _bytes(shape: Shape, settings: TrainSettings) -> int:
    """What is kept for the way back, the logits in fp32 with their gradient, and the pairs of the soft gate."""
    tokens = settings.batch * settings.context
    kept = tokens * shape.hidden * _PASS_BYTES * shape.layers
    pairs = settings.batch * settings.context**2 * shape.layers * (shape.heads + 3 * shape.kv_heads) * 4
    return kept + pairs + 5 * 4 * tokens * shape.vocab + requests.LOGIT_BYTES
