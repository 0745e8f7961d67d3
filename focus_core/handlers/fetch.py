"""Gets the default model's package, where an installation lacks it. Request: ``{}``."""

from __future__ import annotations

from typing import Any

from focus_core.jobs.costs import Estimate, Host
from focus_core.models.fetch import SIZE, USUAL_SECONDS, fetch_default

STORED = False


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """What is downloaded; see ``focus_core.handlers``."""
    return Estimate(USUAL_SECONDS, 0, f"A download of {SIZE}.")


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Install the package and check its file."""
    return {"file": fetch_default(context.progress, context.cancelled).name}
