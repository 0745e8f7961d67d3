"""The one form that measurements on a GPU are written in, and parts of a measurement put together.

A document is ``{about, command, environment, sources, source_hash, checks, rows}``: the card, the driver and the
versions stand in ``environment``; ``sources`` are the kernel's files, and their hash tells whether the code has changed
since. It is written anew after each row, so a run that is cut short keeps what it has.

``python -m benchmarks.gpu_record PART.json ... --into FILE`` puts parts into one document: rows and checks keep the
command and the time that they came from. Parts of different sources, cards or versions, parts that are the same run
and parts whose checks failed are refused.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError, InvalidInput
from focus_core.evaluation.environment import environment
from focus_core.evaluation.sources import source_hash
from focus_core.jobs.files import read_json, write_json

SAME = ("device", "torch", "triton", "flash_attn_4")
"""What parts of one record have in common."""
NEEDED = ("about", "command", "environment", "sources", "source_hash", "checks", "rows")
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
        InvalidInput: the parts measured different code, on different cards or with different versions; a row stands in
            two of them; a check failed; or an error is no number.
    """
    parts = list(parts)
    hashes = {(part["source_hash"], *part["sources"]) for part in parts}
    if len(hashes) != 1:
        raise InvalidInput(f"The parts measured {len(hashes)} versions of the code.", "Measure all with one.")
    for name in SAME:
        found = sorted({str(part["environment"].get(name)) for part in parts})
        if len(found) > 1:
            raise InvalidInput(f"The parts were measured on different {name}: {', '.join(found)}.", "Measure on one.")
    failed = sum(not check["good"] for part in parts for check in part["checks"])
    if failed:
        raise InvalidInput(f"{failed} check(s) failed: what was timed may be wrong.", "Measure again what is mended.")
    wrong = sum(not math.isfinite(row.get("error", 0.0)) for part in parts for row in part["rows"])
    if wrong:
        raise InvalidInput(f"The error of {wrong} row(s) is no number.", "Measure again what is mended.")
    runs: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for part in parts:
        own = part.get("runs") or [{"command": part["command"], "environment": part["environment"]}]
        runs += [run for run in own if run not in runs]
        came = {"command": part["command"], "time": part["environment"]["time"]}
        checks += part["checks"]
        new = [came | row for row in part["rows"]]
        if twice := sum(row in rows for row in new):
            raise InvalidInput(f"{twice} row(s) of {part['command']} stand in two parts.", "Name each part once.")
        rows += new
    reasons = {target: reason for part in parts for target, reason in part.get("why", {}).items()}
    return parts[0] | {"runs": runs, "checks": checks, "rows": rows} | ({"why": reasons} if reasons else {})


def part_of(path: Path) -> dict[str, Any]:
    """What a run wrote.

    Raises:
        InvalidInput: there is no file, it is cut short, or it is no record.
    """
    found = read_json(path)
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} is not there or holds no whole JSON.", "Name what a benchmark wrote.")
    lacking = [name for name in NEEDED if name not in found]
    if lacking:
        raise InvalidInput(f"{path} has no {', '.join(lacking)}.", "Name what a benchmark wrote.")
    return found


def main() -> None:
    """Put parts together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, required=True)
    chosen = parser.parse_args()
    try:
        if chosen.into.exists() and not {*NEEDED} <= {*(read_json(chosen.into) or ())}:
            raise InvalidInput(f"{chosen.into} is there and is no record.", "Name another file.")
        write_json(chosen.into, joined(map(part_of, chosen.parts)), indent=1)
        chosen.into.chmod(0o644)
    except FocusError as problem:
        parser.exit(2, f"{problem}\n")
    except OSError as problem:
        parser.exit(1, f"{chosen.into} cannot be written ({problem.strerror}).\n")


if __name__ == "__main__":
    main()
