"""A router trained by one process and by two, on a base sharded over two (FSDP2), and on a base placed over two GPUs.

``python -m benchmarks.gpu_processes --json FILE`` needs two GPUs. What is the same is asked where rounding is not
magnified: in the gradient of the first step, which all processes take together. Later a token whose two best groups are
almost even, or a weight whose gradient is almost zero, falls to the other side (Adam's first steps are as large for a
small gradient as for a large one), and runs drift apart whoever computes them; one process whose base was moved by a
millionth, ``moved``, tells how far. A sharded base is computed with what an unsharded one is, batches included, so
there the trained weights themselves are compared.

Bases: ``tiny-novels``, which is trained, on a novel; and a random one of 0.5 B weights, for memory and times.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_options import Options
from benchmarks.gpu_record import Recording
from focus_core.jobs.files import write_json

TINY = Path(__file__).parents[1] / "data/models/tiny-novels"
SIZE = {"hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 16, "vocab_size": 16384}
HEADS = {"num_attention_heads": 24, "num_key_value_heads": 8, "max_position_embeddings": 2048}
BATCH = {"context": 1024, "batch": 4, "warmup": 2, "validation_windows": 2}
SOURCES = ("focus_core/processes.py", "focus_core/models/placement.py", "focus_core/training/trainer.py")
FIRST, SAME = 1e-3, 1e-6
"""Of a gradient, its difference's length over its own; of weights, the largest difference over the largest weight."""
MOVED = 1e-6


@dataclass(frozen=True)
class Run:
    """One run: how many processes, on which base, and what it must be the same as."""

    processes: int
    base: str
    load: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    moved: float = 0.0
    first_of: str = ""
    weights_of: str = ""


_SERVED = {"straight_through_from": 0.0, "steps": 2}
RUNS: dict[str, Run] = {
    "one": Run(1, "tiny"),
    "moved": Run(1, "tiny", moved=MOVED),
    "one_served": Run(1, "tiny", settings=_SERVED),
    "large_one": Run(1, "large"),
    "placed": Run(1, "large", load={"device_map": "balanced"}, first_of="large_one"),
    "two": Run(2, "tiny", first_of="one"),
    "two_served": Run(2, "tiny", settings=_SERVED, first_of="one_served"),
    "large_two": Run(2, "large", first_of="large_one"),
    "sharded": Run(2, "large", load={"shard": "full_shard"}, weights_of="large_two"),
    "sharded_kept": Run(2, "large", load={"shard": "shard_grad_op"}, weights_of="large_two"),
}
STEPS = {"tiny": 8, "large": 6}


def make_model(folder: Path) -> None:
    """Save a random model, with a tokenizer to load it by."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**SIZE, **HEADS, initializer_range=0.03))
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder)


def read(run: Run, folder: Path) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The base as this run loads it, and the ids to train and to validate on."""
    from focus_core.assets import load_text
    from focus_core.models.loading import load_model

    base = load_model(str(TINY if run.base == "tiny" else folder / "large"), dtype="float32", **run.load)
    draw = torch.Generator().manual_seed(0)
    if run.moved:
        for p in base.model.parameters():
            p.mul_(1 + run.moved * torch.randn(p.shape, generator=draw).to(p.device))
    if run.base == "tiny":
        ids = torch.tensor(base.tokenizer(load_text("persuasion").text[:120_000], verbose=False)["input_ids"])
        return base, ids[:24_000], ids[24_000:]
    ids = torch.randint(1, SIZE["vocab_size"], (24_000,), generator=draw)
    return base, ids[:20_000], ids[20_000:]


def fresh_peaks() -> range:
    """The GPUs that this process sees, each one's peak of memory counted from here on."""
    devices = range(torch.cuda.device_count())
    if devices:
        # Before CUDA has begun torch knows no device to count for, and says that the argument is invalid.
        torch.cuda.init()
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    return devices


def perform(name: str, folder: Path) -> None:
    """One run; the first process writes what was seen, and the first step's gradient."""
    from safetensors.torch import save_file

    from focus_core.training.settings import TrainSettings
    from focus_core.training.trainer import train

    run, began = RUNS[name], time.perf_counter()
    devices = fresh_peaks()
    base, training, validation = read(run, folder)
    weights = [torch.cuda.memory_allocated(device) for device in devices]
    seen: list[dict[str, Any]] = []
    marks: list[float] = []
    first: dict[str, torch.Tensor] = {}

    def watch(step: int, adapter: Any, load: Any) -> None:
        for device in devices if run.processes == 1 else devices[:1]:
            torch.cuda.synchronize(device if run.processes == 1 else None)
        marks.append(time.perf_counter())
        if step == 1:
            found = {n: p.grad for n, p in adapter.named_parameters() if p.grad is not None}
            first.update({n: grad.detach().cpu().clone() for n, grad in found.items()})

    steps = STEPS[run.base]
    settings = {"steps": steps, "validate_every": steps, "checkpoint_every": steps} | BATCH | run.settings
    train(base, training, validation, TrainSettings(**settings), folder / name, on_step=seen.append, watch=watch)
    held = [torch.cuda.max_memory_allocated(device) for device in devices]
    if run.processes > 1:
        # Each process sees its own use alone.
        for numbers in (weights, held):
            most = torch.tensor(max(numbers, default=0), device=base.model.device)
            torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
            numbers[:] = [int(most)] * run.processes
    if os.environ.get("RANK", "0") == "0":
        # The first two steps compile; the mark after the last one waits for a measurement.
        between = (marks[-2] - marks[2]) / (len(marks) - 4) if len(marks) > 4 else None
        took = time.perf_counter() - began
        document = {"seen": seen, "seconds": between, "weights": weights, "peak": held, "took": took}
        save_file(first, folder / f"{name}.gradient")
        write_json(folder / f"{name}.json", document | {"placed": base.placed})
    del base
    gc.collect()
    torch.cuda.empty_cache()


def work(names: Sequence[str], folder: Path) -> None:
    """What each process of a launch does: runs, one after the other."""
    from focus_core.processes import leave_group

    alone = [name for name in names if (RUNS[name].base, RUNS[name].processes) == ("large", 1)]
    if alone and not (folder / "large/config.json").exists():
        make_model(folder / "large")
    for name in names:
        perform(name, folder)
    leave_group()


def launch(names: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start what does some runs of as many processes, by accelerate's launcher as a person would."""
    own = ["-m", "benchmarks.gpu_processes", "--work", *names, "--folder", str(folder)]
    command = [sys.executable, *own]
    if (count := RUNS[names[0]].processes) > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu"]
        command += ["--num_processes", str(count), "--num_machines", "1", "--main_process_port", port]
        command += ["--mixed_precision", "no", "--dynamo_backend", "no", *own]
    # Small runs of one process keep to the second card, since the first one is timed.
    apart = {"CUDA_VISIBLE_DEVICES": "1"} if (count, RUNS[names[0]].base) == (1, "tiny") else {}
    with open(folder / f"{names[0]}.log", "w", encoding="utf-8") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | apart)


def gradients_apart(folder: Path, found: str, wanted: str) -> float:
    """Length of the difference of two runs' first gradients over the length of the second."""
    from safetensors.torch import load_file

    ours, theirs = (load_file(folder / f"{name}.gradient") for name in (found, wanted))
    if ours.keys() != theirs.keys():
        raise SystemExit(f"{found} and {wanted} trained other parameters.")
    apart = sum(float((ours[n].double() - theirs[n].double()).square().sum()) for n in theirs)
    return float((apart / sum(float(theirs[n].double().square().sum()) for n in theirs)) ** 0.5)


def weights_apart(folder: Path, found: str, wanted: str) -> float:
    """The largest difference of a tensor over its largest value, over two runs' trained weights."""
    from safetensors.torch import load_file

    from focus_core.training.checkpoint import FILE

    ours, theirs = (load_file(folder / name / FILE) for name in (found, wanted))
    names = [n for n in theirs if n.startswith("weight.")]
    return max(float((ours[n] - theirs[n]).abs().max() / theirs[n].abs().max().clamp_min(1e-6)) for n in names)


def losses(folder: Path, name: str) -> list[float]:
    """Of a run, step by step."""
    return [step["loss"] for step in json.loads((folder / f"{name}.json").read_text())["seen"]]


def tell(record: Recording, name: str, folder: Path) -> None:
    """Put a run's row and what it must be into the record."""
    run, found = RUNS[name], json.loads((folder / f"{name}.json").read_text())
    row: dict[str, Any] = {"run": name, "base": run.base, "processes": run.processes, "placed": found["placed"]}
    row |= {"loss": losses(folder, name), "served_ppl": found["seen"][-1]["served_ppl"], "took_s": found["took"]}
    row |= {"step_ms": found["seconds"] and round(1e3 * found["seconds"], 1)}
    row |= {f"{what}_mb": [round(n / 2**20) for n in found[what]] for what in ("weights", "peak")}
    row |= {"settings": {"steps": STEPS[run.base]} | BATCH | run.settings}
    if name in ("two", "moved") and (folder / "one.json").exists():
        pairs = zip(row["loss"], losses(folder, "one"), strict=True)
        row["drift"] = [abs(ours - theirs) / theirs for ours, theirs in pairs]
    shown = ("run", "placed", "drift", "served_ppl", "step_ms", "weights_mb", "peak_mb", "took_s")
    record.add(row, shown=shown)
    for wanted, what, apart, most in (
        (run.first_of, "first gradient", gradients_apart, FIRST),
        (run.weights_of, "trained weights", weights_apart, SAME),
    ):
        if wanted:
            error = apart(folder, name, wanted) if (folder / f"{wanted}.json").exists() else None
            good = error is not None and error <= most
            record.check({"check": f"{name}: {what} of {wanted}", "error": error, "limit": most, "good": good})
            print(f"{name}: {what} of {wanted}, apart by", error, flush=True)


def follow(record: Recording, names: Sequence[str], folder: Path) -> None:
    """Tell the runs of a launch that have ended and were not told."""
    told = {row["run"] for row in record.found["rows"]}
    for name in names:
        if name not in told and (folder / f"{name}.json").exists():
            tell(record, name, folder)


def left(record: Recording, names: Sequence[str], folder: Path) -> list[str]:
    """Of a launch that broke, the runs still to make: those after the one that it broke at, which is kept as failed."""
    undone = [name for name in names if not (folder / f"{name}.json").exists()]
    if not undone:
        return []
    said = (folder / f"{names[0]}.log").read_text(encoding="utf-8", errors="replace")
    print(said[-3000:], file=sys.stderr)
    # Launchers say much after what broke.
    lines = [line.strip() for line in said.splitlines() if re.search(r"^(\[\w+\]:)?\s*[\w.]*(Error|Exit)\b", line)]
    record.check({"check": f"{undone[0]}: made", "error": None, "said": (lines or [""])[0][:300], "good": False})
    return undone[1:]


def follow_all(record: Recording, turn: Sequence[Sequence[str]], folder: Path) -> bool:
    """Start launches beside each other and tell their runs as they end; whether each came to its end.

    One that breaks loses the run that it broke at: what it had before is told, and the rest is launched again.
    """
    going, whole = [(names, launch(names, folder)) for names in turn], True
    while going:
        time.sleep(0.2)
        ended = [process.poll() is not None for _, process in going]
        for names, _ in going:
            follow(record, names, folder)
        over = [one for one, done in zip(going, ended, strict=True) if done and one[1].returncode]
        going = [one for one, done in zip(going, ended, strict=True) if not done]
        for names, _ in over:
            whole = False
            if rest := left(record, names, folder):
                going.append((rest, launch(rest, folder)))
    return whole


def main() -> int:
    """Run all: small runs of one process beside the large ones of one, then those of two."""
    parser = Options(__doc__.splitlines()[0], gpus=2, file=Path("processes.json"))
    parser.add_argument("--work", nargs="+", choices=RUNS, help="be one process of these runs")
    parser.add_argument("--folder", type=Path, help="where the runs lie")
    args = parser.parse_args()
    if args.work:
        work(args.work, args.folder)
        return 0
    parser.check(args)
    record = Recording(args.json, " ".join(__doc__.split("\n\n")[1].split()), SOURCES)
    memory, whole = Path("/dev/shm"), True
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        alone = [[n for n, run in RUNS.items() if (run.processes, run.base) == (1, base)] for base in STEPS]
        for turn in (alone, [[name for name, run in RUNS.items() if run.processes == 2]]):
            whole = follow_all(record, turn, Path(place)) and whole
    return int(not whole or record.failed())


if __name__ == "__main__":
    sys.exit(main())
