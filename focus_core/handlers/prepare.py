"""Gets a model ready in the worker, so that the first run does not wait for it."""

from __future__ import annotations

import dataclasses
from typing import Any

from focus_core.handlers._requests import loading, model_name
from focus_core.jobs.costs import Estimate, Host, say_bytes, say_seconds

STORED = False


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Seconds to load the model; see ``focus_core.handlers``."""
    name = model_name(request)
    seconds, need = loading(name, host)
    if seconds == 0:
        return Estimate(0.0, 0, "The model is loaded already." if host.loaded == name else "How long is not known.")
    return Estimate(seconds, need, f"About {say_seconds(seconds)} and {say_bytes(need)} of memory.")


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Load the model; gives its facts."""
    loaded = context.model(model_name(request), share=1.0)
    return {"model": loaded.name, "facts": dataclasses.asdict(loaded.facts)}
