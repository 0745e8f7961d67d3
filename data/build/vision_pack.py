"""Packs the runs of one session of training, and puts them into the record beside those that are there."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

from data.build.vision_plan import ARMS, SHIP, Run, digits_plan, open_runs, plan
from focus_core.assets import DATA
from focus_core.jobs.files import write_json

RESULTS = DATA / "results"
_SIZES = ("long", "small", "tiny", "digits")
_EAGER = {"captured": False, "why_not": "It was not there yet."}


def collect(
    args: argparse.Namespace,
    runs: list[Run],
    cost: dict[str, Any] | None,
    seconds: float,
    check: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The document of all runs, and the tar of the runs and of the weights that ship."""
    from focus_core.vision.records import summarise

    folder = Path(args.out) / "runs"
    documents = [json.loads(path.read_text()) for r in runs if (path := folder / f"{r.name}.json").is_file()]
    main = [d for d, r in ((d, next(r for r in runs if r.name == d["name"])) for d in documents) if r.rate is None]
    document = {
        "command": shlex.join(["python", "-m", "data.build.vision", *sys.argv[1:]]),
        "planned": len(runs),
        "done": len(documents),
        "seconds": seconds,
        "summary": summarise(main),
        "rates": [{k: d[k] for k in ("name", "rate", "accuracy")} for d in documents if d["arm"] == "softmax"],
        "cost": cost,
        "check": check,
    }
    write_json(folder.parent / "summary.json", document)
    with tarfile.open(folder.parent / "vision.tar.gz", "w:gz") as tar:
        for path in sorted(folder.glob("*.json")):
            tar.add(path, f"runs/{path.name}")
        tar.add(folder.parent / "summary.json", "summary.json")
        for size, arm in (*SHIP, ("long", "softmax"), ("digits", "softmax"), ("digits", "full")):
            if (folder / f"{size}-{arm}-s0").is_dir():
                tar.add(folder / f"{size}-{arm}-s0", f"models/{size}-{arm.lower()}")
    return document


def portable(command: str) -> str:
    """A command whose folders are the project's own, so that it can be given anywhere."""
    words = shlex.split(command)
    own = {"--data": "data/fashion", "--out": "build/vision", "--json": "build/vision/summary.json"}
    own |= {"--check": "build/vision/check.json"}
    if "digits" in words:
        own |= {"--out": "build/vision-digits", "--json": "build/vision-digits/summary.json"}
    return shlex.join(own.get(before, word) for before, word in zip(["", *words], words, strict=False))


def unpack(args: argparse.Namespace) -> None:
    """Put the weights that ship in data/vision/models, and all runs in one record in data/results."""
    found = Path(args.out) / "unpacked"
    with tarfile.open(Path(args.out) / "vision.tar.gz") as tar:
        tar.extractall(found, filter="data")
    for folder in sorted((found / "models").glob("*")):
        if not folder.name.startswith("long"):
            shutil.copytree(folder, DATA / "vision" / "models" / folder.name, dirs_exist_ok=True)
    document = json.loads((found / "summary.json").read_text())
    runs = [json.loads(path.read_text()) for path in sorted((found / "runs").glob("*.json"))]
    digits = all(run["size"] == "digits" for run in runs)
    target = RESULTS / ("vision-digits.json" if digits else "vision-fashion.json")
    before = json.loads(target.read_text()) if target.is_file() and not args.anew else None
    write_json(target, merge(before, document, runs, digits_plan() if digits else plan()))


def merge(
    before: dict[str, Any] | None, document: dict[str, Any], runs: list[dict[str, Any]], planned: list[Run]
) -> dict[str, Any]:
    """The record with a session's runs put to those it has; a run made again replaces the one before.

    Args:
        before: the record, if there is one. Its runs that are not of today's plan are left out.
        document: what ``collect`` wrote.
        runs: the session's documents of runs, those at other rates too.
        planned: all runs.

    Returns:
        ``parts`` says of each session which runs it made, by what command, where, and with what kind of step.
    """
    from focus_core.vision.records import summarise

    checked = [run for run in runs if run["name"].rpartition("-")[2].startswith("lr")]
    made = {run["name"]: dict(run) for run in runs if run not in checked}
    environment = next((one["environment"] for one in made.values()), None)
    part = {
        "command": portable(document["command"]),
        "seconds": document["seconds"],
        "environment": environment,
        "runs": sorted(one["name"] for one in runs),
        "check": document.get("check"),
    }
    for run in made.values():
        run.pop("environment", None)
    rates = {row["name"]: row for row in document["rates"]}
    parts: list[dict[str, Any]] = []
    cost = document["cost"]
    if before is not None:
        stale = {run.name for run in open_runs(planned, before)}
        known = {run.name for run in planned} - stale
        made = {r["name"]: {"step": _EAGER, **r} for r in before["runs"] if r["name"] in known} | made
        rates = {row["name"]: row for row in before["rates"] if row["name"] in known} | rates
        cost = _costs(before["cost"], cost)
        parts = before.get("parts") or [
            {
                **{k: before[k] for k in ("command", "seconds", "environment")},
                "runs": sorted({*(r["name"] for r in before["runs"]), *(r["name"] for r in before["rates"])}),
                "check": None,
            }
        ]
    arms = list(ARMS)
    ordered = sorted(made.values(), key=lambda r: (_SIZES.index(r["size"]), arms.index(r["arm"]), r["seed"]))
    names = {*made, *rates}
    return {
        "command": "python -m data.build.vision " + ("digits" if "digits" in part["command"] else "all --data DIR"),
        "planned": len(planned),
        "done": sum(run.name in names for run in planned),
        "seconds": sum(one["seconds"] for one in (*parts, part)),
        "summary": summarise(ordered),
        "rates": [rates[run.name] for run in planned if run.name in rates],
        "cost": cost,
        "not_made": [run.name for run in planned if run.name not in names],
        "environment": environment or (before or {}).get("environment"),
        "parts": [*parts, part],
        "runs": sorted(made.values(), key=lambda r: r["name"]),
    }


def _costs(before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any] | None:
    """Costs row by row: what a session measured in place of what was there, and the rest as it was."""
    if not before or not after:
        return after or before
    both = {}
    for table, names in (("steps", ("size", "arm")), ("memory_by_rank", ("attention", "rank"))):
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in (*before.get(table, []), *after.get(table, [])):
            key = tuple(row[name] for name in names)
            rows[key] = rows.get(key, {}) | row
        both[table] = list(rows.values())
    return both
