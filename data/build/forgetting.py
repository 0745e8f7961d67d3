"""What is forgotten: the probes of what ships, of LoRA over ranks and rates, and of full fine-tuning.

    python -m data.build.forgetting list              every arm, with the commands that it stands for
    python -m data.build.forgetting all               trains and probes what is not there yet
    python -m data.build.forgetting all --device cuda --workers 7 --seconds 290
    python -m data.build.forgetting table             the section of docs/results.md, from what is recorded

All that is trained sees the same tokens of the same novels as the LoRA that ships. Arms stand in the order of what they
decide; what is done is skipped, and at the end of the seconds a training leaves its checkpoint and a probe its parts.
Trained arms lie in build/forgetting; all weights of a model are thrown away once they are probed, and their hash stays.

The probes that ship were made on H200s by the third command, in several goes (probe-gpu-*.json); those of the arms that
ship also on two CPU cores, 10 minutes each. Results are compared only where they were asked the same on the same
device, so all arms take the same options; on a GPU they are asked more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.build.baseline_lines import BUDGET, MODEL
from data.build.forgetting_table import write_section
from focus_core.experiments.plan import Task
from focus_core.experiments.runner import run_plan

ROOT = Path(__file__).resolve().parents[2]
WORK, RESULTS = Path("build/forgetting"), Path("data/results")
ROUTER = "smollm2-directed-k16"
LARGE = {"pairs": 50, "haystacks": 10, "lengths": "512,2048,8192", "windows": 16}
"""Sizes of the probes on a GPU."""
PROBE = (*LARGE, "passage", "reply", "context", "tasks")


@dataclass(frozen=True)
class Arm:
    """One way to adapt the model.

    Attributes:
        adapter: name of a shipped adapter; empty for dense, and for what is trained.
        train: options of ``train`` beside the budget; empty for what ships.
    """

    adapter: str = ""
    train: dict[str, Any] = field(default_factory=dict)


def _lora(rank: int, rate: float) -> Arm:
    return Arm(train={"kind": "lora", "through": "dense", "rank": rank, "learning-rate": f"{rate:g}"})


def _full(rate: float, **more: Any) -> Arm:
    return Arm(train={"kind": "full", **more, "learning-rate": f"{rate:g}", "dtype": "float32"})


FULL, LORA = (3e-5, 1e-4, 1e-5), ((8, 1e-2), (8, 1e-3), (8, 3e-4), (2, 3e-3), (32, 3e-3))
"""Learning rates; (rank, learning rate). What ships is rank 8 at 3e-3."""
FOCUS = {"through": "focus", "through-adapter": f"data/adapters/{ROUTER}"}
ARMS: dict[str, Arm] = {
    "dense": Arm(),
    "directed-k16": Arm(ROUTER),
    "lora-r8": Arm("smollm2-lora-r8"),
    "shared-k8": Arm("smollm2-shared-k8"),
    **{f"full-{rate:g}": _full(rate) for rate in FULL},
    **{f"lora-r{rank}-{rate:g}": _lora(rank, rate) for rank, rate in LORA},
    **{f"focus-full-{rate:g}": _full(rate, **FOCUS) for rate in FULL[:2]},
}


def _options(given: dict[str, Any]) -> list[str]:
    return [part for key, value in given.items() for part in (f"--{key}", str(value))]


def train_command(name: str, device: str | None, budget: dict[str, Any], model: str, work: Path) -> list[str]:
    """Arguments of ``python -m focus_core`` that train an arm."""
    where = {"device": device} if device else {}
    return ["train", "--model", model, *_options({**where, **budget, **ARMS[name].train}), "--out", str(work / name)]


def probe_command(name: str, device: str | None, sizes: dict[str, Any], model: str, work: Path) -> list[str]:
    """Arguments of ``python -m focus_core`` that probe an arm."""
    adapter = str(work / name) if ARMS[name].train else ARMS[name].adapter
    given = {"model": model, **({"adapter": adapter} if adapter else {})}
    where = {"device": device, "dtype": "float32"} if device else {}
    return ["probe", *_options({**given, **where, **sizes})]


def result_of(name: str, device: str | None, results: Path) -> Path:
    """Where an arm's probe lies: those of a GPU beside those of a CPU, since they were asked more."""
    return results / f"probe-{'gpu-' if _on_gpu(device) else ''}{name}.json"


def _on_gpu(device: str | None) -> bool:
    return (device or "").startswith("cuda")


def tasks(args: argparse.Namespace) -> list[Task]:
    """What is to be done for the arms whose probe is not there yet, the training of each before its probe."""
    budget = {key: getattr(args, key.replace("-", "_")) for key in BUDGET}
    usual = LARGE if _on_gpu(args.device) else {}
    sizes = {name: value for name in PROBE if (value := getattr(args, f"probe_{name}") or usual.get(name))}
    found: list[Task] = []
    for rank, name in enumerate(args.only, 1):
        place, needs = result_of(name, args.device, args.results), None
        if place.exists():
            continue
        if ARMS[name].train:
            arguments = train_command(name, args.device, budget, args.model, args.work)
            rest = ("kind", "dtype", "learning-rate")
            told = {**budget, **{key: value for key, value in ARMS[name].train.items() if key not in rest}}
            asked = {key.replace("-", "_"): value for key, value in told.items()}
            asked["learning_rate"] = float(ARMS[name].train["learning-rate"])
            needs = Task(f"train-{name}", tuple(arguments), args.work / name, rank, asked=asked)
            found.append(needs)
        arguments = probe_command(name, args.device, sizes, args.model, args.work)
        found.append(Task(place.stem, tuple(arguments), place, rank, needs=needs))
    return found


def discard(args: argparse.Namespace) -> None:
    """Throw away all weights of a model that are probed."""
    for name in args.only:
        if ARMS[name].train.get("kind") == "full" and result_of(name, args.device, args.results).exists():
            shutil.rmtree(args.work / name, ignore_errors=True)


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["list", "all", "table"])
    parser.add_argument("--only", nargs="+", choices=[*ARMS], metavar="ARM", default=[*ARMS])
    parser.add_argument("--device", help="cpu, cuda or cuda:N")
    parser.add_argument("--workers", type=int, default=1, help="processes beside each other")
    parser.add_argument("--seconds", type=float, help="nothing starts after so many, and what runs is stopped")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--work", type=Path, default=WORK, metavar="DIR")
    parser.add_argument("--model", default=MODEL)
    for key, value in BUDGET.items():
        parser.add_argument(f"--{key}", type=int, default=value, help="of training")
    for key in PROBE:
        parser.add_argument(f"--probe-{key}", metavar="X", help=f"--{key} of probe")
    args = parser.parse_args()
    os.chdir(ROOT)
    if args.what == "table":
        write_section(results=args.results)
        return 0
    todo = tasks(args)
    for task in todo:
        print(f"{task.name}: {task.command}", flush=True)
    if args.what == "list":
        return 0
    told = run_plan(
        todo, args.work, workers=args.workers, seconds=args.seconds, told=lambda line: print(line, flush=True)
    )
    discard(args)
    print(f"{len(told['made'])} made, {len(told['failed'])} failed, {len(told['left'])} left, {told['seconds']} s")
    return 1 if told["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
