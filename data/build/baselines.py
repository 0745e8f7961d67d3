"""Baselines and feature codes beside dense: each as it is, and after the same small budget of training on the novels.

    python -m data.build.baselines list                 every line, with the commands that it stands for
    python -m data.build.baselines all                  trains and measures what is not there yet
    python -m data.build.baselines all --gpus 0,1 --workers 6 --only sfa-k16 lora-dense-r8
    python -m data.build.baselines table                every training run, in data/results/training-baselines.json

Adapters that ship go to data/adapters, the others to build/baselines; evaluations to data/results. Where several
learning rates are named, the adapter with the best perplexity on the validation slice is the one that is measured.
What is recorded was made on two H200 in two goes of six and seven minutes, with up to nine runs beside each other on
each: a run's seconds say no more than that. Any part of it runs on a CPU, given time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from data.build.baseline_lines import BUDGET, LINES, RESULTS, WORK, eval_command, folder, path_of, said, train_command
from focus_core.experiments.worker import perform, start
from focus_core.jobs.files import read_json, write_json

ROOT = Path(__file__).resolve().parents[2]


def choose(name: str, budget: dict[str, Any]) -> dict[str, Any]:
    """Put the best run of a trained line into its place, and say how it was trained."""
    line = LINES[name]
    if not line.rates:
        record = read_json(folder(name) / "focus_config.json")["record"]
        return {"command": said(train_command(name, None, budget)), "tokens": record.get("tokens")}
    tried = {}
    for rate in line.rates:
        if record := read_json(folder(name, rate) / "training_record.json"):
            tried[f"{rate:g}"] = record["best_ppl"]
    best = min(tried, key=tried.__getitem__)
    place = folder(name)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder(name, float(best)), place, ignore=shutil.ignore_patterns("checkpoint*"))
    if line.ships or (line.train and line.train["kind"] == "sfa"):
        _halve(place)
    config = read_json(place / "focus_config.json")
    return {
        "command": said(train_command(name, float(best), budget)),
        "steps": budget["steps"],
        "best_step": config["record"]["step"],
        "tokens": budget["steps"] * budget["batch"] * budget["context"],
        "parameters": config["record"]["trained_parameters"],
        "seconds": config["record"]["seconds"],
        "validation_ppl_by_learning_rate": tried,
        "dense_validation_ppl": config["record"]["dense_validation_ppl"],
    }


def _halve(place: Path) -> None:
    """Round an adapter's tensors to bfloat16, which is what is measured and ships; loading widens them exactly."""
    import torch
    from safetensors.torch import load_file, save_file

    file = place / "focus_adapter.safetensors"
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in load_file(file).items()}, file)


def slim(path: Path, command: list[str], training: dict[str, Any] | None) -> None:
    """Keep of a result what is read: its windows' sums, without each window's layers and buckets; add its commands."""
    document = read_json(path)
    short = document["context"] < 4096
    few = ("tokens", "nll", "dense_nll", "kept_pairs")
    windows = [{key: window[key] for key in few} for window in document.pop("per_window")]
    document["command"] = said(command)
    if training is not None:
        document["training"] = training
    if not short:
        document["per_window"] = windows
    write_json(path, document, indent=1)


def table() -> dict[str, Any]:
    """Every training run that lies in build/baselines: its best perplexity on the validation slice."""
    runs: list[dict[str, Any]] = []
    environments: dict[str, dict[str, Any]] = {}
    for place in sorted((WORK / "runs").iterdir()):
        name, _, rate = place.name.rpartition("-")
        config = read_json(place / "focus_config.json")
        if config is None or name not in LINES:
            continue
        record = config["record"]
        made, steps = record["settings"], record["settings"]["steps"]
        ended = (read_json(place / "training_record.json") or record)["step"]
        where = {key: value for key, value in record["environment"].items() if key != "time"}
        environments.setdefault(where["device"], where)
        runs.append(
            {
                "line": name,
                "model": LINES[name].model,
                "variant": LINES[name].variant,
                "kind": config["kind"],
                "rank": made["rank"] if config["kind"] in ("lora", "latent") else None,
                "learning_rate": float(rate),
                "trained_parameters": record["trained_parameters"],
                "steps": ended,
                "steps_asked": steps,
                "best_step": record["step"],
                "tokens": ended * made["batch"] * made["context"],
                "validation_ppl": record["served_validation_ppl"],
                "dense_validation_ppl": record["dense_validation_ppl"],
                "device": where["device"],
                "time": record["environment"]["time"],
            }
        )
    about = {
        "what": "perplexity on the validation slice of the novels, 16 windows of 1,024 tokens, at the best validation",
        "runs_by": "python -m data.build.baselines all",
        "cut_off": "where steps is less than steps_asked the run was stopped, and its adapter was not kept",
        "command": "python -m data.build.baselines table",
        "environments": environments,
    }
    return {"about": about, "runs": runs}


class Run:
    """All lines on one pool of processes a device; what is there already is not made again."""

    def __init__(self, names: list[str], pools: list[ProcessPoolExecutor], workers: int, budget: dict[str, Any]):
        self.names, self.budget = names, budget
        self.free = [pool for pool in pools for _ in range(workers)]
        self.queue: list[tuple] = []
        self.running: dict[Future, tuple] = {}
        self.left = {name: len(LINES[name].rates) or 1 for name in names if LINES[name].train}
        self.training: dict[str, dict[str, Any]] = {}
        self.count = self.failed = 0
        self.limit: list[str] = []
        (WORK / "logs").mkdir(parents=True, exist_ok=True)

    def go(self) -> int:
        """Everything; gives the number of commands that failed."""
        plain = [name for name in self.names if not LINES[name].train and not LINES[name].uses]
        for name in plain:
            self._measure(name, LINES[name].evaluations, 1)
        for name in list(self.left):
            self._train(name)
        while self.queue or self.running:
            self.queue.sort(key=lambda job: job[:2])
            while self.queue and self.free:
                pool, job = self.free.pop(0), self.queue.pop(0)
                self.running[pool.submit(perform, *job[4:6])] = (pool, *job[2:])
            for done in wait(self.running, return_when=FIRST_COMPLETED).done:
                pool, *told = self.running.pop(done)
                self.free.append(pool)
                self._finish(done, *told)
        return self.failed

    def _put(self, rank: int, kind: str, name: str, command: list[str], place: Any) -> None:
        """Of what waits, the lowest rank goes first: what tells early, then what ends a line, then what is long."""
        log = WORK / "logs" / f"{kind}-{name}-{place if isinstance(place, float) else Path(str(place)).stem}.log"
        self.count += 1
        self.queue.append((rank, self.count, kind, name, command, str(log), place))

    def _train(self, name: str) -> None:
        for rate in LINES[name].rates or (None,):
            record = read_json(folder(name, rate) / "focus_config.json")
            whole = read_json(folder(name, rate) / "training_record.json") or {}
            if record and (rate is None or whole.get("step") == self.budget["steps"]):
                self._trained(name)
            else:
                long = "performer" in name
                self._put(0 if long else 3, "train", name, train_command(name, rate, self.budget), rate)

    def _trained(self, name: str) -> None:
        self.left[name] -= 1
        if self.left[name]:
            return
        if not any((folder(name, rate) / "focus_config.json").exists() for rate in LINES[name].rates or (None,)):
            return
        self.training[name] = choose(name, self.budget)
        print(name, json.dumps(self.training[name].get("validation_ppl_by_learning_rate")), flush=True)
        for other in self.names:
            if other == name or LINES[other].uses == name:
                self._measure(other, LINES[other].evaluations, 2)

    def _measure(self, name: str, evaluations: tuple, rank: int) -> None:
        for text, context, options in evaluations:
            path = path_of(name, text, context)
            if not path.exists():
                wait_for = 4 if rank == 1 and context > 1024 else rank
                self._put(wait_for, "eval", name, eval_command(name, text, context, [*options, *self.limit]), path)

    def _finish(self, future: Future, kind: str, name: str, command: list[str], log: str, place: Any) -> None:
        try:
            seconds = future.result()
            if kind == "eval":
                slim(place, command, self.training.get(LINES[name].uses or name))
                ppl, dense, kept = (read_json(place)[key] for key in ("ppl", "dense_ppl", "kept_pairs"))
                print(f"{place.stem} {ppl:.3f} dense {dense:.3f} kept {kept:.3f} {seconds} s", flush=True)
            else:
                print(f"trained {name} {place} {seconds} s", flush=True)
        except Exception as error:
            self.failed += 1
            print(f"FAILED {kind} {name} {place}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        if kind == "train":
            self._trained(name)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["list", "all", "table"])
    parser.add_argument("--only", nargs="+", choices=list(LINES), metavar="LINE", default=list(LINES))
    parser.add_argument("--gpus", default="", help="numbers with commas between them; none: as torch finds")
    parser.add_argument("--workers", type=int, default=1, help="processes a device")
    parser.add_argument("--windows", type=int, help="measure only so many windows")
    for key, value in BUDGET.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    args = parser.parse_args()
    os.chdir(ROOT)
    budget = {key: getattr(args, key.replace("-", "_")) for key in BUDGET}
    if args.what == "list":
        for name in args.only:
            rates = LINES[name].rates or ((None,) if LINES[name].train else ())
            for command in [train_command(name, rate, budget) for rate in rates]:
                print(f"{name}: {said(command)}")
            for text, context, options in LINES[name].evaluations:
                print(f"{name}: {said(eval_command(name, text, context, options))}")
        return
    if args.what == "table":
        write_json(RESULTS / "training-baselines.json", table(), indent=1)
        return
    spawn = get_context("spawn")
    with contextlib.ExitStack() as stack:
        pools = [
            stack.enter_context(ProcessPoolExecutor(args.workers, spawn, initializer=start, initargs=(gpu, 2)))
            for gpu in args.gpus.split(",")
        ]
        run = Run(args.only, pools, args.workers, budget)
        run.limit = [] if args.windows is None else ["--windows", str(args.windows)]
        sys.exit(1 if run.go() else 0)


if __name__ == "__main__":
    main()
