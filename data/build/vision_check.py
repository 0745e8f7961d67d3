"""Before any run: captured steps held against uncaptured ones, and how many runs should share the card.

Every arm is trained for 30 steps three times from one seed: uncaptured; uncaptured with a rate that differs by fp32's
rounding, which is what the captured step's rate differs by; and captured. An arm passes if the third is no further from
the first than four times the second is, or than a floor. Then processes with one or more runs each train for some
seconds, epochs and their validation included.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import os
import queue
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.build.vision_plan import TINY, Run, config_of, recipe_of
from focus_core.jobs.files import write_json

PHASES = ((1, 1), (1, 4), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1))
"""Processes, and runs that each takes in turns."""
ROUNDING = 6e-8
FLOORS = {"loss": 2e-3, "update": 0.02}
_EPOCHS, _VALIDATION, _WAIT, _LIMIT = 3, 500, 60, 150


def check(args: argparse.Namespace, phases: Sequence[tuple[int, int]] = PHASES, seconds: float = 3.0) -> int:
    """Write what was found to ``args.json``, and print it a line each; gives the exit status."""
    begun = time.time()
    count = max(processes for processes, _ in phases)
    context = multiprocessing.get_context("spawn")
    results, barrier = context.Queue(), context.Barrier(count)
    given = (count, args.data, args.gpus.split(",")[0] or None, phases, seconds, barrier, results)
    workers = [context.Process(target=_process, args=(rank, *given)) for rank in range(count)]
    for one in workers:
        one.start()
    found: list[dict[str, Any]] = []
    while any(one.is_alive() for one in workers) or not results.empty():
        if time.time() - begun > _LIMIT:
            print(f"The check was ended after {_LIMIT} s; what it had found is kept.", file=sys.stderr)
            for one in workers:
                one.kill()
            break
        with contextlib.suppress(queue.Empty):
            found.append(results.get(timeout=0.5))
    arms = {one["arm"]: one for one in found if "arm" in one}
    speed = []
    for processes, together in phases:
        told = [one for one in found if one.get("phase") == [processes, together]]
        row = {"processes": processes, "together": together, "steps_per_second": sum(o["rate"] for o in told)}
        if len(told) == processes:
            speed.append(row)
    best = max(speed, key=lambda row: row["steps_per_second"], default=None)
    document = {
        "captured": [arm for arm, one in arms.items() if one["passed"]],
        "arms": arms,
        "speed": speed,
        "best": {k: best[k] for k in ("processes", "together")} if best else {},
        "seconds": time.time() - begun,
    }
    for line in (*arms.values(), *speed, {k: document[k] for k in ("captured", "best", "seconds")}):
        print(json.dumps(line), flush=True)
    if args.json:
        write_json(Path(args.json), document)
    for one in workers:
        one.join()
    return int(any(one.exitcode for one in workers))


def compare(config: Any, images: Any, recipe: Any, device: str) -> dict[str, Any]:
    """One arm's largest differences of loss and weights, and of the whole update (relative, Euclidean)."""
    rounded = dataclasses.replace(recipe, learning_rate=recipe.learning_rate * (1 + ROUNDING))
    first, _ = _trained(config, images, recipe, device, False)
    again, _ = _trained(config, images, rounded, device, False)
    third, why = _trained(config, images, recipe, device, True)
    noise, graph = _apart(first, again), _apart(first, third)
    return {
        "steps": len(first[0]),
        "passed": not why and passes(noise, graph),
        "why_not": why,
        "noise": noise,
        "graph": graph,
    }


def passes(noise: dict[str, float], graph: dict[str, float]) -> bool:
    """Whether captured steps are as near to uncaptured ones as those are to themselves; what is no number never is."""
    return all(graph[name] <= max(4 * noise[name], floor) for name, floor in FLOORS.items())


def _trained(config: Any, images: Any, recipe: Any, device: str, graph: bool) -> tuple[tuple[Any, Any, Any], str]:
    import torch

    from focus_core.vision.training import Training

    with tempfile.TemporaryDirectory() as folder:
        run = Training(config, images, recipe, Path(folder) / "checkpoint", device, graph)
        start = _flat(run.model)
        while not run.done:
            run.begin()
            run.end()
    losses = torch.tensor(run.history["losses"], dtype=torch.float64)
    return (losses, _flat(run.model), start), run.graphed.why_not() if run.graphed is not None else ""


def _flat(model: Any) -> Any:
    import torch

    return torch.cat([one.detach().double().flatten().cpu() for one in model.parameters()])


def _apart(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> dict[str, float]:
    return {
        "loss": float((one[0] - other[0]).abs().max()),
        "weights": float((one[1] - other[1]).abs().max()),
        "update": float((one[1] - other[1]).norm() / (one[1] - one[2]).norm()),
    }


def _process(
    rank: int,
    count: int,
    data: str,
    gpu: str | None,
    phases: Sequence[tuple[int, int]],
    seconds: float,
    barrier: Any,
    results: Any,
) -> None:
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    import torch

    from data.build.vision import load
    from focus_core.vision.training import Training

    torch.set_num_threads(1)
    device = "cpu" if gpu is None else "cuda"
    short = {"epochs": _EPOCHS, "validation": _VALIDATION}
    batch = recipe_of(Run("tiny", "softmax", 0)).batch
    images = load(data, _VALIDATION + 10 * batch)
    for arm in TINY[rank::count]:
        run = Run("tiny", arm, 0)
        results.put({"arm": arm} | compare(config_of(run), images, recipe_of(run, short), device))
    barrier.wait(_WAIT)
    images = load(data, _VALIDATION + 20 * batch)
    run = Run("tiny", "G3B-row", 0)
    recipe = recipe_of(run, {"epochs": 100_000, "validation": _VALIDATION})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        most = max(together for processes, together in phases if rank < processes)
        live = [
            Training(config_of(run), images, recipe, path, device, checkpoint_every=1_000_000, own_stream=True)
            for _ in range(most)
        ]
        _turn(live)
        for processes, together in phases:
            barrier.wait(_WAIT)
            if rank >= processes:
                continue
            begun, steps = time.perf_counter(), 0
            while time.perf_counter() - begun < seconds:
                steps += _turn(live[:together])
            rate = steps / (time.perf_counter() - begun)
            results.put({"phase": [processes, together], "rate": rate})


def _turn(live: Sequence[Any]) -> int:
    for one in live:
        one.begin()
    for one in live:
        one.end()
    return sum(one.steps for one in live)
