"""Does one group take everything? The small shipped model with several ways of keeping its groups even.

Request: ``{settings: fields of CollapseSettings}``, all optional. Result: ``{records, about, complete}``, see
``focus_core.training.collapse.compare_balances``; every step's records are handed over as they are known.
"""

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace
from typing import Any

from focus_core import assets
from focus_core.errors import InvalidInput
from focus_core.jobs.costs import Estimate, Host, say_count

MODEL = assets.DATA / "models" / "tiny-novels"
"""A million weights, trained on the training novels by ``data/build/collapse.py``."""
LAYERS, BALANCINGS = 4, 5
DEFAULTS: dict[str, Any] = {"steps": 40, "batch": 2, "look_every": 10, "groups": 8, "weights": "moving"}
"""A toy that takes well under a minute on two cores; the recorded experiments are larger."""
FIELDS = ("steps", "batch", "groups", "look_every", "balance_weight", "seed")
_STEP_SECONDS = 0.3
"""Of one balancing and one step of four windows of 256 tokens on one core (measured beside other work)."""
_SPAN = 1_000_000
"""Characters of the training text that a live run draws its windows from."""


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Seconds of all steps; see ``focus_core.handlers``."""
    fields = _fields(request)
    each = 0.05 + _STEP_SECONDS * fields["batch"] / 4 / max(1.0, host.cores**0.5)
    need = 120_000_000 + 60_000_000 * fields["batch"]
    return host.fit(
        "collapse",
        lambda steps: (BALANCINGS * each * steps, need),
        fields["steps"],
        "steps",
        f"{say_count(BALANCINGS, 'balancings')}, {say_count(host.cores, 'cores')}",
        fixed=(2.0, 0),
    )


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Train the routers in turn, a step at a time."""
    import torch

    from focus_core.evaluation.environment import environment
    from focus_core.training.collapse import CollapseSettings, compare_balances

    began = time.monotonic()
    fields = _fields(request)
    moves = moves_from(fields)
    del fields["weights"]
    settings = CollapseSettings(**fields, moves_from=moves)
    device = context.device or ("cuda" if torch.cuda.is_available() else "cpu")
    loaded, training, validation = load_tiny(device, _SPAN)
    records = compare_balances(
        loaded,
        training,
        validation,
        settings,
        on_record=context.partial,
        progress=context.progress,
        cancel=context.cancelled,
    )
    about = {
        "settings": dataclasses.asdict(settings),
        "environment": environment(device),
        "seconds": round(time.monotonic() - began, 1),
        "layers": LAYERS,
    }
    return {"records": records, "about": about, "complete": True}


def load_tiny(device: Any = "cpu", characters: int | None = None) -> tuple[Any, Any, Any]:
    """The small model, ids that it was trained on (of so many characters), and ids of the validation slice."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    from focus_core.models.facts import facts_of

    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).to(device).eval().requires_grad_(False)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL)

    def ids(text: str) -> Any:
        return torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    loaded = SimpleNamespace(model=model, tokenizer=tokenizer, facts=facts_of(model), name="tiny-novels")
    return loaded, ids(assets.training_text()[:characters]), ids(assets.validation_text()[:40_000])


def moves_from(fields: dict[str, Any]) -> int | None:
    """The step from which the model's weights are trained: never, from the start, or from half-way."""
    return {"moving": 0, "late": fields["steps"] // 2}.get(fields["weights"])


def _fields(request: dict[str, Any]) -> dict[str, Any]:
    """The settings, defaults filled in; refuses what is no setting or no whole number."""
    given = request.get("settings") or {}
    unknown = set(given) - set(FIELDS) - {"weights"}
    if unknown:
        raise InvalidInput(f"There is no setting {sorted(unknown)[0]!r}.", f"There are {', '.join(FIELDS)}, weights.")
    fields = {**DEFAULTS, **given}
    for name, most in (("steps", 2000), ("batch", 64), ("groups", 64), ("look_every", 1000)):
        value = fields[name]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise InvalidInput(f"{name} is {value!r}.", f"It can be 1 to {most:,}.")
    if fields["groups"] < 2:
        raise InvalidInput("One group is always even.", "Take 2 groups or more.")
    if fields["weights"] not in ("frozen", "moving", "late"):
        raise InvalidInput(f"weights is {fields['weights']!r}.", "It can be frozen, moving or late.")
    return fields
