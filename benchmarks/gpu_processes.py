"""A router trained by one process, by two, on a base sharded over two (FSDP2), and on a base placed over two GPUs.

``python -m benchmarks.gpu_processes --json FILE`` needs two GPUs. The base is a random model in float32, the batch of
all runs is the same, and so must the adapters be, up to rounding; each row has a step's time and the most memory that a
GPU held.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_record import Recording

RUNS: dict[str, tuple[int, dict[str, str]]] = {
    "one": (1, {}),
    "two": (2, {}),
    "sharded": (2, {"shard": "full_shard"}),
    "sharded_kept": (2, {"shard": "shard_grad_op"}),
    "placed": (1, {"device_map": "balanced"}),
}
"""Processes, and how the base is spread."""
SETTINGS = {"steps": 8, "context": 1024, "batch": 4, "validate_every": 4, "validation_windows": 3, "warmup": 2}
SOURCES = ("focus_core/processes.py", "focus_core/models/placement.py", "focus_core/training/trainer.py")
SIZE = {"hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 16, "vocab_size": 16384}
HEADS = {"num_attention_heads": 24, "num_key_value_heads": 8, "max_position_embeddings": 2048}
CLOSE = 2e-3


def make_model(folder: Path) -> None:
    """Save a random model, with a tokenizer to load it by."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**SIZE, **HEADS, initializer_range=0.03))
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(__file__).parents[1] / "data/models/tiny-novels" / name, folder)


def work(name: str, folder: Path) -> None:
    """What each process of a run does; the first one writes what it saw."""
    import time

    from focus_core.models.loading import load_model
    from focus_core.processes import leave_group
    from focus_core.training.settings import TrainSettings
    from focus_core.training.trainer import train

    torch.cuda.reset_peak_memory_stats()
    loaded = load_model(str(folder / "model"), dtype="float32", **RUNS[name][1])
    draw = torch.Generator().manual_seed(0)
    ids = [torch.randint(1, SIZE["vocab_size"], (n,), generator=draw) for n in (20_000, 4_000)]
    seen: list[dict[str, Any]] = []
    marks: list[float] = []

    def step(metrics: dict[str, Any]) -> None:
        seen.append(metrics)
        torch.cuda.synchronize()
        marks.append(time.perf_counter())

    train(loaded, *ids, TrainSettings(**SETTINGS), folder / name, on_step=step)
    held = [torch.cuda.max_memory_allocated(n) for n in range(torch.cuda.device_count())]
    if RUNS[name][0] == 2:
        most = torch.tensor(max(held), device=loaded.model.device)
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
        held = [int(most)] * 2
    if os.environ.get("RANK", "0") == "0":
        # Steps that were not followed by a validation: 6 and 7.
        document = {"seen": seen, "seconds": (marks[6] - marks[4]) / 2, "held": held, "placed": loaded.placed}
        (folder / f"{name}.json").write_text(json.dumps(document))
    leave_group()


def launch(name: str, folder: Path) -> None:
    """Start a run's processes by accelerate's launcher, as a person would."""
    own = ["-m", "benchmarks.gpu_processes", "--work", name, "--folder", str(folder)]
    command = [sys.executable, *own]
    if RUNS[name][0] > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu"]
        command += ["--num_processes", str(RUNS[name][0]), "--num_machines", "1", "--main_process_port", port]
        command += ["--mixed_precision", "no", "--dynamo_backend", "no", *own]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)
        raise SystemExit(f"The run {name} failed.")


def difference(found: Path, wanted: Path) -> float:
    """The largest difference of a tensor over its largest value, over the checkpoints' weights."""
    from safetensors.torch import load_file

    from focus_core.training.checkpoint import FILE

    ours, theirs = load_file(found / FILE), load_file(wanted / FILE)
    names = [n for n in theirs if n.startswith("weight.")]
    return max(float((ours[n] - theirs[n]).abs().max() / theirs[n].abs().max().clamp_min(1e-6)) for n in names)


def main() -> int:
    """Run all, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("processes.json"))
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--work", choices=RUNS, help="be one process of this run")
    parser.add_argument("--folder", type=Path, help="where the runs lie")
    args = parser.parse_args()
    if args.work:
        work(args.work, args.folder)
        return 0
    if torch.cuda.device_count() < 2:
        raise SystemExit(f"This needs two GPUs, and there are {torch.cuda.device_count()}.")
    record = Recording(args.json, "A router trained on a random float32 base, the same batch in every run", SOURCES)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_model(folder / "model")
        for name in args.runs:
            launch(name, folder)
            found = json.loads((folder / f"{name}.json").read_text())
            losses = [m["loss"] for m in found["seen"]]
            row = {"run": name, "processes": RUNS[name][0], "placed": found["placed"], "loss": losses}
            row |= {"served_ppl": found["seen"][-1]["served_ppl"], "step_ms": round(1e3 * found["seconds"], 1)}
            row |= {"peak_mb": [round(h / 2**20) for h in found["held"]], "settings": SETTINGS}
            record.add(row, shown=("run", "placed", "loss", "served_ppl", "step_ms", "peak_mb"))
            if name != "one" and "one" in args.runs:
                error = difference(folder / name, folder / "one")
                record.check({"check": f"{name} is one", "error": error, "limit": CLOSE, "good": error <= CLOSE})
                print(f"{name}: largest relative difference {error:.2e}", flush=True)
    return int(record.failed())


if __name__ == "__main__":
    sys.exit(main())
