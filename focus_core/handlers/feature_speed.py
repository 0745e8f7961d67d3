"""Time of sparse features beside dense attention on this machine, interleaved in one run.

Request: ``{heads, kv_heads, head_dim, features: [k], lengths: [N], decode_lengths: [N], repeats}``. Result: ``{rows,
environment, seconds}``, the rows as ``focus_core.benchmark.attention.bench`` gives them, random activations.
"""

from __future__ import annotations

import time
from typing import Any

from focus_core.errors import InvalidInput
from focus_core.jobs.costs import Estimate, Host, say_count
from focus_core.variants import make

LARGEST = 8192
_FLOPS_PER_CORE = 8e9
_SIZES = ("heads", "kv_heads", "head_dim", "repeats")
_LISTS = ("features", "lengths", "decode_lengths")


def estimate(request: dict[str, Any], host: Host) -> Estimate:
    """Cost of every timed run; see ``focus_core.handlers``."""
    _check(request)
    lines = 1 + len(request["features"])
    work = sum(4.0 * n * n for n in request["lengths"]) + sum(4.0 * n for n in request["decode_lengths"])
    work *= request["heads"] * request["head_dim"] * lines
    largest = max([*request["lengths"], *request["decode_lengths"]])

    def cost(repeats: int) -> tuple[float, int]:
        # Warm-up and the check of the error take about as long as two repeats.
        seconds = (repeats + 2) * work / (_FLOPS_PER_CORE * host.cores)
        return seconds + 1.0, 24 * request["heads"] * largest * request["head_dim"] * 4

    return host.fit("feature_speed", cost, request["repeats"], "repeats", say_count(host.cores, "cores"))


def run(request: dict[str, Any], context: Any) -> dict[str, Any]:
    """Time all lengths; see ``focus_core.handlers``."""
    _check(request)
    return measure(request, progress=context.progress, cancel=context.cancelled, partial=context.partial)


def measure(request: dict[str, Any], *, progress: Any = None, cancel: Any = None, partial: Any = None) -> dict:
    """Time codes of every number of features beside dense attention."""
    from focus_core.benchmark.attention import bench
    from focus_core.evaluation.environment import environment

    began, rows = time.perf_counter(), []
    variants = [make("sfa", {"features": k}) for k in request["features"]]
    sizes = {name: request[name] for name in _SIZES}
    phases = {"prefill": request["lengths"], "decode": request["decode_lengths"]}
    phases = {phase: lengths for phase, lengths in phases.items() if lengths}

    def tell(start: float) -> Any:
        if progress is None:
            return None
        return lambda share, sentence: progress(start + share / len(phases), sentence)

    for at, (phase, lengths) in enumerate(phases.items()):
        rows += bench(
            variants,
            lengths,
            phase=phase,
            progress=tell(at / len(phases)),
            cancel=cancel,
            on_row=None if partial is None else lambda row: partial({"row": row}),
            **sizes,
        )
    return {
        "format": 1,
        "rows": rows,
        "environment": environment("cpu"),
        "seconds": round(time.perf_counter() - began, 1),
    }


def _check(request: dict[str, Any]) -> None:
    for name in _SIZES:
        value = request.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 256:
            raise InvalidInput(f"{name} is {value!r:.40}.", "It can be 1 to 256.")
    for name in _LISTS:
        values = request.get(name)
        most = request["head_dim"] if name == "features" else LARGEST
        good = isinstance(values, list) and all(
            isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= most for v in values
        )
        if not good:
            raise InvalidInput(f"{name} is {values!r:.40}.", f"It can be a list of numbers from 1 to {most:,}.")
    if not request["features"] or not (request["lengths"] or request["decode_lengths"]):
        raise InvalidInput("There is nothing to time.", "Name features and lengths.")
