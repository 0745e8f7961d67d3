"""Trains and measures all arms of the vision experiment, and packs what ships.

    python -m data.build.vision check --data DIR --gpus 0 --json CHECK        captured steps against uncaptured, steps/s
    python -m data.build.vision all --data DIR --gpus 0 --check CHECK --seconds 280 --out build/vision --json FILE
    python -m data.build.vision digits --out build/vision-digits --json FILE      on a CPU, scikit-learn's digits
    python -m data.build.vision try --data DIR --out build/vision-try             one epoch on 2,000 images, on a CPU
    python -m data.build.vision unpack --out DIR                                  runs and weights into data/

Every run is one JSON beside its weights; a run that is there is skipped, one that was cut goes on from its checkpoint.
``all`` also skips the runs that data/results/vision-fashion.json has, of the same model by the same recipe; ``unpack``
puts new ones beside them; --anew forgets it. ``--only tiny-G5B-s0 wavelet`` makes of the open runs these alone. Without
CHECK, and for an arm that did not pass, no step is captured.
Run from the root of the project. DIR holds Fashion-MNIST's four idx.gz files (Debian: dataset-fashion-mnist).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.build.vision_pack import RESULTS, collect, unpack
from data.build.vision_plan import (
    ARMS,
    SMALL,
    TINY,
    TITLES,
    Run,
    chosen,
    config_of,
    digits_plan,
    open_runs,
    plan,
    recipe_of,
)
from focus_core.errors import InvalidInput
from focus_core.jobs.files import write_json
from focus_core.vision.config import PRESETS

if TYPE_CHECKING:
    from focus_core.vision.training import Images, Training


def load(data: str | None, limit: int | None = None) -> Images:
    """Fashion-MNIST from a folder, or digits; of the first, only ``limit`` training images and 500 to test."""
    from focus_core.vision.data import digits, fashion_mnist
    from focus_core.vision.training import Images

    images = Images(*(digits() if data is None else (*fashion_mnist("train", data), *fashion_mnist("test", data))))
    if limit is None:
        return images
    return Images(images.train[:limit], images.train_labels[:limit], images.test[:500], images.test_labels[:500])


def work(
    queue: Any, folder: str, data: str | None, gpu: str | None, until: float, changes: dict[str, Any], together: int
) -> None:
    """One process: takes runs from the queue, some together in turns, until None or until the time is over."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    import torch

    from focus_core.vision.training import Training

    torch.set_num_threads(1)
    images = load(data, changes.get("limit"))
    captured = changes.get("captured", [])
    live: list[tuple[Run, Training]] = []
    more = True
    while more or live:
        while more and len(live) < together:
            run = queue.get()
            more = run is not None
            if run is None or (Path(folder) / f"{run.name}.json").is_file() or time.time() > until:
                continue
            begun = Training(
                config_of(run),
                images,
                recipe_of(run, changes.get("recipe")),
                Path(folder) / f"{run.name}.ckpt",
                "cpu" if gpu is None else "cuda",
                graph=gpu is not None and run.arm in captured,
                own_stream=together > 1,
            )
            live.append((run, begun))
        if time.time() > until:
            for _, training in live:
                training.save()
            live = []
            continue
        unfinished = [training for _, training in live if not training.done]
        for training in unfinished:
            training.begin()
        for training in unfinished:
            training.end()
        for run, training in [one for one in live if one[1].done]:
            keep(run, training, images, Path(folder))
        live = [one for one in live if not one[1].done]


def keep(run: Run, training: Training, images: Images, folder: Path) -> None:
    """Measure a trained model's maps, and write its weights and its document; then its checkpoint may go."""
    import torch

    from focus_core.vision.models import save_vision_model
    from focus_core.vision.records import maps_record, xattention_sweep

    target = folder / f"{run.name}.json"
    model, document = training.finish()
    place = training.place
    rate = training.recipe.learning_rate
    document |= {"name": run.name, "size": run.size, "arm": run.arm, "seed": run.seed, "rate": rate}
    document["maps"] = maps_record(
        model, torch.tensor(images.test[: 500 if run.size == "long" else 1000], device=place)
    )
    if run.size == "long":
        seen, labels = (torch.tensor(of[:2000], device=place) for of in (images.test, images.test_labels))
        document["xattention"] = xattention_sweep(model, seen, labels)
    title = f"{run.size.capitalize()} ViT, {TITLES.get(run.arm, run.arm)}"
    save_vision_model(
        model,
        target.with_suffix(""),
        title=title,
        data="digits" if run.size == "digits" else "fashion",
        seed=run.seed,
        accuracy=document["accuracy"],
        arm=run.arm,
        epochs=training.recipe.epochs,
    )
    write_json(target, document)
    target.with_suffix(".ckpt").unlink(missing_ok=True)
    told = {"run": run.name, "accuracy": round(document["accuracy"], 4), "captured": document["step"]["captured"]}
    print(json.dumps(told | {"seconds": round(sum(document["epoch_seconds"]), 1)}), flush=True)


def train_all(runs: list[Run], args: argparse.Namespace, until: float, changes: dict[str, Any]) -> None:
    """Spread the runs over processes and devices."""
    folder = Path(args.out) / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [run for run in runs if not (folder / f"{run.name}.json").is_file()]
    gpus = args.gpus.split(",") if args.gpus else [None]
    count = max(1, min(args.workers, len(waiting)))
    context = multiprocessing.get_context("spawn")
    queue, workers = context.Queue(), []
    for run in [*waiting, *[None] * count]:
        queue.put(run)
    data = None if args.stage == "digits" else args.data
    for i in range(count):
        given = (queue, str(folder), data, gpus[i % len(gpus)], until, changes, args.together)
        one = context.Process(target=work, args=given)
        one.start()
        workers.append(one)
    for one in workers:
        one.join()
    if any(one.exitcode for one in workers):
        print("A worker failed; its runs are left open.", file=sys.stderr)


def measure(args: argparse.Namespace, batch: int = 512) -> dict[str, Any]:
    """Time and memory alone on the device, after the runs."""
    from focus_core.vision.records import graphed_cost, memory_by_rank, step_cost

    device = f"cuda:{args.gpus.split(',')[0]}" if args.gpus else "cpu"
    quick: dict[str, Any] = {} if args.gpus else {"steps": 2, "warm": 1}
    shapes = [
        (size, arm, PRESETS[size].with_attention(**ARMS[arm]))
        for size, arms in (("tiny", TINY), ("small", SMALL))
        for arm in arms
    ]
    rows = [{"size": size, "arm": arm} | step_cost(config, device, batch, **quick) for size, arm, config in shapes]
    ranks = memory_by_rank(device) if args.gpus else memory_by_rank(device, 1, (2,), **quick)
    # Captured steps last: 65 MiB stay held for each (work space of its stream), which would count for the next model.
    if args.gpus:
        rows = [row | graphed_cost(config, device, batch) for row, (*_, config) in zip(rows, shapes, strict=True)]
    return {"steps": rows, "memory_by_rank": ranks}


def checked(path: str | None) -> dict[str, Any]:
    """What ``check`` found: the arms whose steps may be captured, and how many runs share the card best."""
    return json.loads(Path(path).read_text()) if path else {"captured": [], "best": {}}


def main(arguments: list[str] | None = None) -> int:
    """Run one stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("check", "all", "digits", "try", "unpack"))
    parser.add_argument("--data", help="folder with Fashion-MNIST's idx.gz files")
    parser.add_argument("--gpus", default="", help="numbers, like 0,1; none: the CPU")
    parser.add_argument("--check", help="what check wrote")
    parser.add_argument("--workers", type=int, help="processes; by default as the check found best, or 1")
    parser.add_argument("--together", type=int, help="runs that a process takes in turns; by default likewise")
    parser.add_argument("--anew", action="store_true", help="make the runs that are recorded, too")
    parser.add_argument(
        "--only", nargs="+", metavar="ARM", help="of all: arms (G5B), arms of a size (tiny-G5B) or runs (tiny-G5B-s0)"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="end cleanly by then")
    parser.add_argument("--out", default="build/vision")
    parser.add_argument("--json", help="write the summary there too")
    args = parser.parse_args(arguments)
    if args.stage in ("check", "all", "try") and args.data is None:
        parser.error(f"{args.stage} needs --data, the folder with Fashion-MNIST's four idx.gz files")
    if args.stage == "unpack":
        unpack(args)
        return 0
    if args.stage == "check":
        from data.build.vision_check import check

        return check(args)
    begun = time.time()
    found = checked(args.check)
    args.workers = args.workers or found["best"].get("processes", 1)
    args.together = args.together or found["best"].get("together", 1)
    runs = digits_plan() if args.stage == "digits" else plan()
    try:
        runs = chosen(runs, args.only) if args.only else runs
    except InvalidInput as error:
        parser.error(str(error))
    changes: dict[str, Any] = {"captured": found["captured"]}
    record = RESULTS / "vision-fashion.json"
    if args.stage == "all" and record.is_file() and not args.anew:
        runs = open_runs(runs, json.loads(record.read_text()))
        print(json.dumps({"open": len(runs), "workers": args.workers, "together": args.together}), flush=True)
    if args.stage == "try":
        runs = [Run("long", "softmax", 0), Run("tiny", "softmax", 0), Run("tiny", "G3B", 0), Run("tiny", "G3B-row", 0)]
        changes |= {"limit": 2000, "recipe": {"epochs": 1, "batch": 100, "validation": 200}}
    # Measuring and packing after the runs take about 40 s.
    train_all(runs, args, begun + args.seconds - (40 if args.gpus else 0), changes)
    cost = measure(args, 512 if args.gpus else 16) if args.stage != "digits" else None
    document = collect(args, runs, cost, time.time() - begun, found if args.check else None)
    if args.json:
        write_json(Path(args.json), document)
    print(json.dumps({"done": document["done"], "planned": document["planned"], "seconds": round(document["seconds"])}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
