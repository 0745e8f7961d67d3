"""Two processes train what one does on both their windows: gradients and loads are summed over them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from focus_core.errors import Cancelled
from focus_core.training import trainer
from focus_core.training.checkpoint import FILE
from focus_core.training.trainer import leave_group, train
from tests.training.small import ids, loaded, settings

ROOT = Path(__file__).parents[2]
STEPS = 3
BALANCES = ("bias", "sinkhorn")


def draw_rows(text, chosen, step, part, process):
    """Two windows of each step: a process of two takes its own, a process alone takes both."""
    rows = [0, 1] if chosen.batch == 2 else [process]
    return torch.stack([text[50 * r + 3 * step :][:48] for r in rows])


def go(out: Path, batch: int, balance: str, stop_after: int = -1) -> None:
    """One process of a run; the second one alone asks to stop."""
    seen: list[dict] = []
    chosen = settings(steps=STEPS, batch=batch, balance=balance, validate_every=STEPS)
    asks = os.environ.get("RANK", "0") == "1"
    train(
        loaded(),
        ids(),
        ids(200, seed=1),
        chosen,
        out,
        on_step=seen.append,
        cancel=lambda: asks and len(seen) == stop_after,
    )


def every_run(out: str) -> None:
    """What one of two processes does; starting processes takes far longer than their runs."""
    torch.set_num_threads(1)
    trainer.draw_windows = draw_rows
    for balance in BALANCES:
        go(Path(out) / balance, 1, balance)
    try:
        go(Path(out) / "stopped", 1, "bias", stop_after=2)
    except Cancelled as stopped:
        (Path(out) / f"stopped-{os.environ['RANK']}").write_text(stopped.message)
    leave_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """The folder of all runs of two processes."""
    out = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    code = f"from tests.training.test_distributed import every_run; every_run({str(out)!r})"
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [p.communicate(timeout=200)[1] for p in processes]
    finally:
        for p in processes:
            p.kill()
    for p, error in zip(processes, errors, strict=True):
        assert p.returncode == 0, error
    return out


@pytest.mark.parametrize("balance", BALANCES)
def test_two_processes_are_one_with_both_batches(balance, two, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "draw_windows", draw_rows)
    go(tmp_path, 2, balance)
    wanted, found = load_file(tmp_path / FILE), load_file(two / balance / FILE)
    assert list(wanted) == list(found)
    for key, tensor in wanted.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-3, atol=2e-5, msg=lambda m, key=key: f"{key}: {m}")
    assert wanted["weight.bias"].abs().max() > 0
    assert (two / balance / "focus_config.json").exists()


def test_processes_stop_together(two):
    """One that left alone would keep the other waiting for gradients that never come."""
    for rank in range(2):
        assert (two / f"stopped-{rank}").read_text() == f"Training stopped after 2 of {STEPS} steps."
    assert (two / "stopped" / FILE).exists()
