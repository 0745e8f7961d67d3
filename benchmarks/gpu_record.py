"""The one form that measurements on a GPU are written in, and parts of a measurement put together.

A document is ``{about, command, environment, sources, source_hash, checks, rows}``: the card, the driver and the
versions stand in ``environment``; ``sources`` are the kernel's files, and their hash tells whether the code has changed
since. It is written anew after each row, so a run that is cut short keeps what it has.

``python -m benchmarks.gpu_record PART.json ... --into FILE`` puts parts into one document: rows and checks keep the
command and the time that they came from. Parts of different sources are refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from focus_core.evaluation.environment import environment
from focus_core.evaluation.sources import source_hash
from focus_core.jobs.files import read_json, write_json

PACKAGES = {"triton": "triton", "flash_attn_4": "flash-attn-4"}


class Recording:
    """One document of one run of a benchmark.

    Args:
        path: where it is written.
        about: what is measured against what, in a sentence or two.
        sources: the kernel's files or folders, relative to the repository.
        device: where it is measured.
        command: the program; by default the module that runs, with its arguments.
    """

    def __init__(
        self, path: Path, about: str, sources: Sequence[str], device: str = "cuda", command: str | None = None
    ) -> None:
        self.path = path
        self.found: dict[str, Any] = {
            "about": about,
            "command": command or running(),
            "environment": gpu_environment(device),
            "sources": list(sources),
            "source_hash": source_hash(sources),
            "checks": [],
            "rows": [],
        }

    def check(self, *checks: dict[str, Any]) -> None:
        """Keep checks, each with ``good``; those that fail are printed."""
        self.found["checks"] += checks
        for check in checks:
            if not check["good"]:
                print("FAILED", json.dumps(check), flush=True)
        write_json(self.path, self.found, indent=1)

    def add(self, *rows: dict[str, Any], shown: Collection[str] | None = None) -> None:
        """Keep rows and print each as one line: all of its fields, or those in ``shown``."""
        self.found["rows"] += rows
        for row in rows:
            say({name: row[name] for name in row if shown is None or name in shown})
        write_json(self.path, self.found, indent=1)

    def replace(self, first: int, *rows: dict[str, Any]) -> None:
        """Put rows in the place of all from ``first`` on: a measurement that goes on says again what it has."""
        self.found["rows"][first:] = rows
        write_json(self.path, self.found, indent=1)

    def failed(self, most: float | None = None) -> bool:
        """Whether a check failed, or a row's ``error`` is above ``most`` or no number."""
        errors = [row["error"] for row in self.found["rows"] if "error" in row] if most is not None else []
        return any(not check["good"] for check in self.found["checks"]) or any(not error <= most for error in errors)


def running() -> str:
    """The command that runs."""
    main = sys.modules["__main__"].__spec__
    program = f"-m {main.name}" if main is not None else Path(sys.argv[0]).name
    return " ".join(["python", program, *sys.argv[1:]])


def gpu_environment(device: str = "cuda") -> dict[str, Any]:
    """Where a figure was measured, with the kernels' packages."""
    found = environment(device)
    for name, package in PACKAGES.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def say(row: dict[str, Any]) -> None:
    """One line a row, without the spreads."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return short(value["median"]) if "median" in value else {name: short(x) for name, x in value.items()}
        return float(f"{value:.4g}") if isinstance(value, float) else value

    print(json.dumps({name: short(value) for name, value in row.items()}), flush=True)


def joined(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One document of several runs of the same code.

    Args:
        parts: documents, the one whose sentence, command and place shall stand on top first.

    Returns:
        The first one with the rows and checks of all, each row with ``command`` and ``time``, and ``runs``: each
        command with its environment.

    Raises:
        ValueError: the parts measured different code.
    """
    parts = list(parts)
    hashes = {part["source_hash"] for part in parts}
    if len(hashes) != 1:
        raise ValueError(f"The parts measured {len(hashes)} versions of the code: measure all with one.")
    runs: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for part in parts:
        own = part.get("runs") or [{"command": part["command"], "environment": part["environment"]}]
        runs += [run for run in own if run not in runs]
        came = {"command": part["command"], "time": part["environment"]["time"]}
        checks += part["checks"]
        rows += [came | row for row in part["rows"]]
    reasons = {target: reason for part in parts for target, reason in part.get("why", {}).items()}
    return parts[0] | {"runs": runs, "checks": checks, "rows": rows} | ({"why": reasons} if reasons else {})


def main() -> None:
    """Put parts together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, required=True)
    chosen = parser.parse_args()
    write_json(chosen.into, joined(read_json(path) for path in chosen.parts), indent=1)


if __name__ == "__main__":
    main()
