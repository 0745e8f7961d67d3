"""Trains and measures all arms of the vision experiment, and packs what ships.

    python -m data.build.vision all --data DIR --gpus 0,1 --workers 14 --seconds 280 --out build/vision --json FILE
    python -m data.build.vision digits --out build/vision-digits --json FILE      on a CPU, scikit-learn's digits
    python -m data.build.vision try --data DIR --out build/vision-try             one epoch on 2,000 images, on a CPU
    python -m data.build.vision unpack --out DIR                                  runs and weights into data/

Every run is one JSON beside its weights; a run that is there is skipped, one that was cut goes on from its checkpoint.
Run from the root of the project. DIR holds Fashion-MNIST's four idx.gz files (Debian: dataset-fashion-mnist).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import shlex
import shutil
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focus_core.assets import DATA
from focus_core.errors import Cancelled
from focus_core.jobs.files import write_json
from focus_core.vision.config import PRESETS

KARAT: dict[str, Any] = {"kind": "karat"}
ARMS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "G3B": KARAT,
    "G3U": KARAT | {"scope": "universal"},
    "G1B": KARAT | {"grid": 1},
    "G5B": KARAT | {"grid": 5},
    "G3B-r2": KARAT | {"rank": 2},
    "G3B-r4": KARAT | {"rank": 4},
    "G3B-row": KARAT | {"projection": "row"},
    "G3B-rank": KARAT | {"projection": "rank"},
    "bspline": KARAT | {"basis": "bspline"},
    "wavelet": KARAT | {"basis": "wavelet"},
    "fractal": KARAT | {"basis": "fractal"},
    "full": KARAT | {"rank": None},
}
TINY = tuple(arm for arm in ARMS if arm != "full")
SMALL = ("softmax", "G3B", "G3U", "G1B", "G3B-row")
SHIP = (
    ("tiny", "softmax"),
    ("tiny", "G3B"),
    ("tiny", "G3U"),
    ("tiny", "G3B-row"),
    ("small", "softmax"),
    ("small", "G3B"),
)
RATES, DIGITS_RATES = (1e-3, 4e-3), (2e-3, 8e-3)
"""Learning rates that the softmax control is trained with too, so that it is not weak by the recipe's."""
TITLES = {"softmax": "softmax", "G3B": "Fourier-KArAt G3B", "G3U": "Fourier-KArAt G3U", "G3B-row": "G3B on the simplex"}


@dataclass(frozen=True)
class Run:
    """One training."""

    size: str
    arm: str
    seed: int
    rate: float | None = None

    @property
    def name(self) -> str:
        """Of its files."""
        tail = "" if self.rate is None else f"-lr{self.rate:g}"
        return f"{self.size}-{self.arm}-s{self.seed}{tail}"


def plan() -> list[Run]:
    """All runs on Fashion-MNIST, those that decide most first."""
    first = [
        Run(size, arm, seed) for seed in range(3) for size in ("small", "tiny") for arm in ("softmax", "G3B", "G3U")
    ]
    long = [Run("long", "softmax", 0)]
    rates = [Run(size, "softmax", 0, rate) for size in ("small", "tiny") for rate in RATES]
    rest = [
        Run(size, arm, seed) for seed in range(3) for size, arms in (("small", SMALL), ("tiny", TINY)) for arm in arms
    ]
    return list(dict.fromkeys([*long, *first, *rates, *rest]))


def digits_plan() -> list[Run]:
    """The runs on digits: the full operator beside rank 12 and softmax."""
    runs = [Run("digits", arm, seed) for seed in range(3) for arm in ("softmax", "G3B", "full")]
    return [*runs, *(Run("digits", "softmax", 0, rate) for rate in DIGITS_RATES)]


def work(queue: Any, folder: str, data: str | None, gpu: str | None, until: float, changes: dict[str, Any]) -> None:
    """One process: takes runs from the queue, one after another, until None or until the time is over."""
    device = "cpu" if gpu is None else "cuda"
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    import torch

    from focus_core.vision.data import digits, fashion_mnist
    from focus_core.vision.models import save_vision_model
    from focus_core.vision.records import maps_record, xattention_sweep
    from focus_core.vision.training import DIGITS_RECIPE, Images, Recipe, train

    torch.set_num_threads(1)
    small = data is None
    held = digits() if small else (*fashion_mnist("train", data), *fashion_mnist("test", data))
    images = Images(*held)
    limit = changes.get("limit")
    if limit:
        images = Images(images.train[:limit], images.train_labels[:limit], images.test[:500], images.test_labels[:500])
    while (run := queue.get()) is not None:
        target = Path(folder) / f"{run.name}.json"
        if target.is_file() or time.time() > until:
            continue
        config = PRESETS[run.size].with_attention(**ARMS[run.arm])
        recipe = dataclasses.replace(DIGITS_RECIPE if small else Recipe(), seed=run.seed, **changes.get("recipe", {}))
        if run.size == "long":
            recipe = dataclasses.replace(recipe, epochs=max(recipe.epochs // 2, 1))
        if run.rate is not None:
            recipe = dataclasses.replace(recipe, learning_rate=run.rate)
        try:
            model, document = train(
                config, images, recipe, target.with_suffix(".ckpt"), device, cancel=lambda: time.time() > until
            )
        except Cancelled:
            continue
        document |= {"name": run.name, "size": run.size, "arm": run.arm, "seed": run.seed, "rate": recipe.learning_rate}
        shown = torch.tensor(images.test[:1000], device=device)
        document["maps"] = maps_record(model, shown[: 500 if run.size == "long" else 1000])
        if run.size == "long":
            seen = torch.tensor(images.test[:2000], device=device)
            document["xattention"] = xattention_sweep(
                model, seen, torch.tensor(images.test_labels[:2000], device=device)
            )
        title = f"{run.size.capitalize()} ViT, {TITLES.get(run.arm, run.arm)}"
        save_vision_model(
            model,
            target.with_suffix(""),
            title=title,
            data="digits" if small else "fashion",
            seed=run.seed,
            accuracy=document["accuracy"],
            arm=run.arm,
            epochs=recipe.epochs,
        )
        write_json(target, document)
        target.with_suffix(".ckpt").unlink(missing_ok=True)
        print(json.dumps({"run": run.name, "accuracy": round(document["accuracy"], 4)}), flush=True)


def train_all(runs: list[Run], args: argparse.Namespace, until: float, changes: dict[str, Any]) -> None:
    """Spread the runs over processes and devices."""
    folder = Path(args.out) / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    open_runs = [run for run in runs if not (folder / f"{run.name}.json").is_file()]
    gpus = args.gpus.split(",") if args.gpus else [None]
    count = max(1, min(args.workers, len(open_runs)))
    context = multiprocessing.get_context("spawn")
    queue, workers = context.Queue(), []
    for run in [*open_runs, *[None] * count]:
        queue.put(run)
    data = None if args.stage == "digits" else args.data
    for i in range(count):
        one = context.Process(target=work, args=(queue, str(folder), data, gpus[i % len(gpus)], until, changes))
        one.start()
        workers.append(one)
    for one in workers:
        one.join()
    if any(one.exitcode for one in workers):
        print("A worker failed; its runs are left open.", file=sys.stderr)


def measure(args: argparse.Namespace, batch: int = 512) -> dict[str, Any]:
    """Time and memory alone on the device, after the runs."""
    from focus_core.vision.records import memory_by_rank, step_cost

    device = f"cuda:{args.gpus.split(',')[0]}" if args.gpus else "cpu"
    quick: dict[str, Any] = {} if args.gpus else {"steps": 2, "warm": 1}
    rows = [
        {"size": size, "arm": arm} | step_cost(PRESETS[size].with_attention(**ARMS[arm]), device, batch, **quick)
        for size, arms in (("tiny", TINY), ("small", SMALL))
        for arm in arms
    ]
    ranks = memory_by_rank(device) if args.gpus else memory_by_rank(device, 1, (2,), **quick)
    return {"steps": rows, "memory_by_rank": ranks}


def collect(args: argparse.Namespace, runs: list[Run], cost: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
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
    if "digits" in words:
        own |= {"--out": "build/vision-digits", "--json": "build/vision-digits/summary.json"}
    return shlex.join(own.get(before, word) for before, word in zip(["", *words], words, strict=False))


def unpack(args: argparse.Namespace) -> None:
    """Put the weights that ship in data/vision/models, and all runs in one record in data/results."""
    packed = Path(args.out) / "vision.tar.gz"
    with tarfile.open(packed) as tar:
        tar.extractall(Path(args.out) / "unpacked", filter="data")
    found = Path(args.out) / "unpacked"
    for folder in sorted((found / "models").glob("*")):
        if not folder.name.startswith("long"):
            shutil.copytree(folder, DATA / "vision" / "models" / folder.name, dirs_exist_ok=True)
    document = json.loads((found / "summary.json").read_text())
    checked = {Path(path).stem for path in (found / "runs").glob("*-lr*.json")}
    runs = [json.loads(p.read_text()) for p in sorted((found / "runs").glob("*.json")) if p.stem not in checked]
    places = [run.pop("environment") for run in runs]
    digits = all(run["size"] == "digits" for run in runs)
    made = {path.stem for path in (found / "runs").glob("*.json")}
    document |= {
        "command": portable(document["command"]),
        "not_made": [run.name for run in (digits_plan() if digits else plan()) if run.name not in made],
        "environment": places[0] if places else None,
        "runs": runs,
    }
    write_json(DATA / "results" / ("vision-digits.json" if digits else "vision-fashion.json"), document)


def main(arguments: list[str] | None = None) -> int:
    """Run one stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("all", "digits", "try", "unpack"))
    parser.add_argument("--data", help="folder with Fashion-MNIST's idx.gz files")
    parser.add_argument("--gpus", default="", help="numbers, like 0,1; none: the CPU")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="end cleanly by then")
    parser.add_argument("--out", default="build/vision")
    parser.add_argument("--json", help="write the summary there too")
    args = parser.parse_args(arguments)
    if args.stage in ("all", "try") and args.data is None:
        parser.error(f"{args.stage} needs --data, the folder with Fashion-MNIST's four idx.gz files")
    if args.stage == "unpack":
        unpack(args)
        return 0
    begun = time.time()
    runs = digits_plan() if args.stage == "digits" else plan()
    changes: dict[str, Any] = {}
    if args.stage == "try":
        runs = [Run("long", "softmax", 0), Run("tiny", "softmax", 0), Run("tiny", "G3B", 0), Run("tiny", "G3B-row", 0)]
        changes = {"limit": 2000, "recipe": {"epochs": 1, "batch": 100, "validation": 200}}
    # Measuring and packing after the runs take about 25 s.
    train_all(runs, args, begun + args.seconds - (25 if args.gpus else 0), changes)
    cost = measure(args, 512 if args.gpus else 16) if args.stage != "digits" else None
    document = collect(args, runs, cost, time.time() - begun)
    if args.json:
        write_json(Path(args.json), document)
    print(json.dumps({"done": document["done"], "planned": document["planned"], "seconds": round(document["seconds"])}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
