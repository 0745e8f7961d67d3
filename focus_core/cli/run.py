"""``run``: experiment files; what is done is skipped, and what was stopped goes on where it was."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from focus_core.cli.output import rows
from focus_core.errors import FocusError, InvalidInput

SUMMARY = "run experiment files: train and measure what is missing, on one or more devices"
_LONGEST = 1e8
"""Seconds, three years: clocks take no more."""
_SHOWN = ("model", "variant", "text", "context", "ppl", "ppl_se", "dense_ppl", "kept_pairs")
_RECALLED = ("model", "variant", "context", "random", "text", "pairs")
"""Of what a model finds again: there ``text`` is a question with its answers."""


def configure(parser: argparse.ArgumentParser) -> None:
    """See ``focus_core/experiments/plan.py`` for the files."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="experiment files (TOML); see experiments/")
    parser.add_argument("--list", action="store_true", help="show what is done and missing and its cost; run nothing")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="only tasks whose name holds a word")
    parser.add_argument("--gpus", default="", metavar="N,N", help="numbers of GPUs (default: all of them)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes a device (default 1)")
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run on this Ray cluster (requirements-ray.txt): host:6379, auto or local; its machines share this folder",
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="end cleanly after so long; a later run goes on")
    parser.add_argument("--work", default="build/experiments", metavar="DIR", help="adapters, logs and locks")
    parser.add_argument("--results", default="data/results", metavar="DIR", help="results (default data/results)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run what is missing, or list it.

    Raises:
        InvalidInput: an option or a file that cannot be.
        FocusError: something failed; the rest was done.
    """
    from focus_core.experiments.plan import left, read_plan
    from focus_core.jobs.files import read_json

    if args.workers < 1:
        raise InvalidInput(f"--workers is {args.workers}.", "A device needs one or more.")
    if args.seconds is not None and not 0 < args.seconds <= _LONGEST:
        raise InvalidInput(f"--seconds is {args.seconds:g}.", "It is how long may be spent, more than 0.")
    if args.ray is not None and args.gpus:
        raise InvalidInput("--ray and --gpus both say where tasks run.", "Ray knows its own GPUs: leave out --gpus.")
    work = Path(args.work)
    tasks = read_plan(args.files, work, Path(args.results))
    if args.only:
        chosen = [task for task in tasks if any(word in task.name for word in args.only)]
        if not chosen:
            raise InvalidInput(f"No task has {' or '.join(args.only):.60} in its name.", "--list shows their names.")
        needed = {task.needs.name for task in chosen if task.needs}
        tasks = [task for task in tasks if task in chosen or task.name in needed]
    if args.list:
        return {"tasks": left(tasks)}
    options: dict[str, Any] = {"workers": args.workers, "seconds": args.seconds, "told": _say}
    if args.ray is not None:
        from focus_core.experiments.cluster import run_on_ray

        document = run_on_ray(tasks, work, args.ray, **options)
    else:
        from focus_core.experiments.runner import run_plan

        document = run_plan(tasks, work, gpus=_named_gpus(args.gpus) if args.gpus else _all_gpus(), **options)
    if document["failed"]:
        first = next(iter(document["failed"].items()))
        raise FocusError(
            f"{len(document['failed'])} of {len(tasks)} tasks failed; the first, {first[0]}: {first[1]}",
            f"Their logs are in {work / 'logs'}.",
        )
    found = [(task.name, read_json(task.place)) for task in tasks if task.asked is None]
    document["results"] = [
        {"name": name} | {key: r[key] for key in (_SHOWN if "ppl" in r else _RECALLED)} for name, r in found if r
    ]
    return document


def _all_gpus() -> list[str]:
    """Numbers of all GPUs that this process may use; '' stands for the one, or the CPU."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2:
        return [""]
    allowed = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return allowed[:count] or [str(number) for number in range(count)]


def _named_gpus(given: str) -> list[str]:
    """Those that ``--gpus`` names; a name that torch does not know would leave a task on the CPU without a word."""
    import torch

    names = [name.strip() for name in given.split(",")]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = {str(number) for number in range(count)}
    known |= {name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if count and name.strip()}
    if unknown := [name for name in names if name not in known]:
        raise InvalidInput(
            f"--gpus names {unknown[0][:40] or 'nothing'}, and this machine has {count} CUDA devices.",
            f"It can be {', '.join(sorted(known))}." if known else "Leave it out, and tasks run on the CPU.",
        )
    return names


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def table(document: dict[str, Any]) -> str:
    """The tasks, or the results that are there."""
    if "tasks" in document:
        listed = document["tasks"]
        body = [[t["task"], "done" if t["done"] else "missing", t["seconds"]] for t in listed]
        missing = [t for t in listed if not t["done"]]
        cost = sum(t["seconds"] or 0 for t in missing)
        return rows(["task", "is", "seconds"], body) + f"\n{len(missing)} of {len(listed)} missing, about {cost:,.0f} s"
    parts = []
    if measured := [r for r in document["results"] if "ppl" in r]:
        body = [[r["name"], r["ppl"], r["ppl_se"], r["dense_ppl"], r["kept_pairs"]] for r in measured]
        parts.append(rows(["result", "perplexity", "se", "dense", "pairs kept"], body))
    if recalled := [r for r in document["results"] if "ppl" not in r]:
        parts.append(
            rows(["found again", "at", "right", "control", "text: nats saved"], [_recalled(r) for r in recalled])
        )
    parts.append(f"{len(document['made'])} made, {len(document['left'])} left, {document['seconds']} s")
    return "\n".join(parts)


def _recalled(result: dict[str, Any]) -> list[Any]:
    """Copies from the longest distance: of random tokens what is right, of text what reading it before saved."""
    far = max(result["random"], key=int)
    random, text = result["random"][far], result["text"][far]
    return [result["name"], far, random["right"], random["right_control"], text["control"] - text["nll"]]
