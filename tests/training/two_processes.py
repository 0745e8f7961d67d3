"""What each of two processes does that `accelerate launch` started: runs, each into a folder of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from focus_core.errors import Cancelled, FocusError
from focus_core.models import placement
from focus_core.processes import leave_group
from focus_core.training.trainer import draw_windows, train
from tests.training.small import ids, loaded, settings

STEPS = 4
KINDS: dict[str, dict[str, Any]] = {
    "bias": {"balance": "bias", "accumulate": 2},
    "sinkhorn": {"balance": "sinkhorn"},
    "loss": {"balance": "loss", "balance_weight": 1.0},
    "sfa": {"kind": "sfa", "features": 4, "output_weight": 10.0},
    "lora": {"kind": "lora", "rank": 2},
}


SHARDED = ("loss", "sfa", "lora")


def sharded() -> Any:
    """The small model, of which this process has a part."""
    base, meta = loaded(), loaded().model.to("meta")
    base.model, _ = placement.shard(lambda: base.model, meta, "small", "float32", "cpu")
    return base


def go(out: Path, kind: str, base: Any = None, **given: Any) -> list[dict[str, Any]]:
    """One run of four windows a step, and three to validate on; what every step told."""
    seen: list[dict[str, Any]] = []
    changes = {"steps": STEPS, "batch": 4, "validate_every": 2, "validation_windows": 3} | KINDS[kind]
    chosen = settings(**(changes | given.pop("changes", {})))
    train(base or loaded(), ids(), ids(200, seed=1), chosen, out, on_step=seen.append, **given)
    return seen


def main(out: Path, rank: int) -> None:
    """All runs; starting processes takes far longer than they do."""
    torch.set_num_threads(1)
    # Only the first process has the folder, as on two machines.
    place = out if rank == 0 else out / "not here" / "nor here"
    for kind in KINDS:
        go(place / kind, kind)
    for kind in SHARDED:
        go(place / f"sharded-{kind}", kind, base=sharded())
    count = 0

    def second_asks() -> bool:
        nonlocal count
        count += 1
        return rank == 1 and count == 3

    for told in ("stopped", "done"):
        try:
            go(place / "stopped", "bias", cancel=second_asks)
        except Cancelled as stopped:
            (out / f"{told}-{rank}").write_text(stopped.message)
    try:
        go(place / "odd", "bias", changes={"batch": 3})
    except FocusError as refused:
        (out / f"odd-{rank}").write_text(str(refused))
    try:
        go(place / "unlike", "bias", changes={"learning_rate": 0.01 + 0.01 * rank})
    except FocusError as refused:
        (out / f"unlike-{rank}").write_text(str(refused))

    def die(step: int, *_: Any) -> None:
        if rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    # The launcher ends the one that is left; it is to say first what it lost.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        go(place / "killed", "bias", changes={"checkpoint_every": 2}, watch=die)
    except FocusError as lost:
        (out / f"killed-{rank}").write_text(str(lost))
        raise
    finally:
        leave_group()


def shares(text: torch.Tensor, count: int) -> list[torch.Tensor]:
    """The first batch of a run, as ``count`` processes share it."""
    from focus_core.processes import Processes

    alone = Processes(torch.device("cpu"))
    found = []
    for alone.rank in range(count):
        alone.count = count
        found.append(alone.own(draw_windows(text, settings(batch=4), 0, 0)))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(os.environ["RANK"]))
