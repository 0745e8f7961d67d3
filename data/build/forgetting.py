"""What is forgotten: the probes that ship, and LoRA's over ranks and learning rates.

    python -m data.build.forgetting list              every arm, with the commands that it stands for
    python -m data.build.forgetting all               trains and probes what is not there yet
    python -m data.build.forgetting all --device cuda --only dense directed-k16 lora-r8 lora-r8-0.001

Adapters that do not ship go to build/forgetting. The probes that ship were made on two CPU cores, 10 minutes each.
Results are compared only where they were asked the same on the same device, so all arms take the same options; on a GPU
they are asked more.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from data.build.baseline_lines import BUDGET
from focus_core.cli import main as focus_core

ROOT = Path(__file__).resolve().parents[2]
WORK, RESULTS = Path("build/forgetting"), Path("data/results")
SHIPPED = {
    "dense": "",
    "directed-k16": "smollm2-directed-k16",
    "shared-k8": "smollm2-shared-k8",
    "lora-r8": "smollm2-lora-r8",
}
SWEEP = {
    f"lora-r{rank}-{rate:g}": (rank, rate)
    for rank, rates in ((2, (3e-3,)), (8, (3e-4, 1e-3, 1e-2)), (32, (3e-3,)))
    for rate in rates
}
"""Rank and learning rate of what is trained; what ships is rank 8 at 3e-3."""
LARGE = {"pairs": 100, "haystacks": 20, "lengths": "512,1024,2048,4096,8192", "windows": 16}
"""Sizes of the probes on a GPU."""


def _options(given: dict[str, object]) -> list[str]:
    return [part for key, value in given.items() for part in (f"--{key}", str(value))]


def train_command(name: str) -> list[str]:
    """Arguments of ``python -m focus_core`` that train an arm of the sweep."""
    rank, rate = SWEEP[name]
    lora = ["--kind", "lora", "--through", "dense", "--rank", str(rank), "--learning-rate", f"{rate:g}"]
    return ["train", "--model", "smollm2", *_options(BUDGET), *lora, "--out", str(WORK / name)]


def result_of(name: str, device: str | None, results: Path) -> Path:
    """Where an arm's probe lies: those of a GPU beside those of a CPU, since they were asked more."""
    return results / f"probe-{'gpu-' if _on_gpu(device) else ''}{name}.json"


def probe_command(name: str, device: str | None, results: Path) -> list[str]:
    """Arguments of ``python -m focus_core`` that probe an arm."""
    adapter = str(WORK / name) if name in SWEEP else SHIPPED[name]
    given = ["--adapter", adapter] if adapter else []
    where = ["--device", device, "--dtype", "float32"] if device else []
    sizes = _options(LARGE) if _on_gpu(device) else []
    return ["probe", "--model", "smollm2", *given, *where, *sizes, "--json", str(result_of(name, device, results))]


def _on_gpu(device: str | None) -> bool:
    return (device or "").startswith("cuda")


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["list", "all"])
    every = [*SHIPPED, *SWEEP]
    parser.add_argument("--only", nargs="+", choices=every, metavar="ARM", default=every)
    parser.add_argument("--device", help="cpu, cuda or cuda:N")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    args = parser.parse_args()
    os.chdir(ROOT)
    for name in args.only:
        commands = [train_command(name)] if name in SWEEP and not (WORK / name / "focus_config.json").exists() else []
        if not result_of(name, args.device, args.results).exists():
            commands.append(probe_command(name, args.device, args.results))
        for command in commands:
            print(f"{name}: {shlex.join(['python', '-m', 'focus_core', *command])}", flush=True)
            if args.what == "all" and (status := focus_core(command)):
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
