"""Two processes under `accelerate launch` train what one does with the same batch; one that is killed loses nothing."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from focus_core.cli import main
from focus_core.training import trainer
from focus_core.training.checkpoint import FILE
from tests.training.small import ids
from tests.training.two_processes import KINDS, SHARDED, STEPS, go, shares

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder of all runs of two processes, and how their launcher ended."""
    out = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # --multi_gpu is how accelerate starts several processes on one machine, CPUs too; --cpu alone would ask for MPI.
    launch = ["-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", port]
    done = subprocess.run(
        [sys.executable, *launch, "-m", "tests.training.two_processes", str(out)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return out, done


def close(found: Path, wanted: Path) -> None:
    found_tensors, wanted_tensors = load_file(found / FILE), load_file(wanted / FILE)
    assert list(wanted_tensors) == list(found_tensors)
    for key, tensor in wanted_tensors.items():
        torch.testing.assert_close(
            found_tensors[key], tensor, rtol=1e-3, atol=2e-5, msg=lambda m, key=key: f"{key}: {m}"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_are_one_with_the_same_batch(kind, two, tmp_path):
    out, done = two
    assert (out / kind / FILE).exists(), done.stderr
    seen = go(tmp_path, kind)
    close(out / kind, tmp_path)
    log = json.loads((out / kind / trainer.RECORD_FILE).read_text())["log"]
    for ours, alone in zip(log, seen, strict=True):
        assert ours.pop("gate", None) == alone.pop("gate", None)
        assert ours == pytest.approx(alone, rel=1e-4)
    records = [json.loads((f / "focus_config.json").read_text())["record"] for f in (out / kind, tmp_path)]
    assert records[0].pop("processes") == 2
    assert records[0]["tokens"] == records[1]["tokens"]
    assert records[0]["settings"] == records[1]["settings"]


@pytest.mark.parametrize("kind", SHARDED)
def test_a_sharded_base_trains_the_same(kind, two):
    out, done = two
    assert (out / f"sharded-{kind}" / FILE).exists(), done.stderr
    close(out / f"sharded-{kind}", out / kind)
    told = [json.loads((f / "focus_config.json").read_text())["model"] for f in (out / f"sharded-{kind}", out / kind)]
    assert told[0] == told[1]


def test_no_window_is_in_two_shares():
    whole = torch.cat(shares(ids(), 1))
    for count in (2, 4):
        parts = shares(ids(), count)
        assert [len(part) for part in parts] == [4 // count] * count
        assert torch.equal(torch.cat(parts), whole)


def test_processes_stop_together_and_go_on_together(two, tmp_path):
    """One that left alone would keep the other waiting for gradients that never come."""
    out, done = two
    for rank in range(2):
        assert (out / f"stopped-{rank}").read_text() == f"Training stopped after 2 of {STEPS} steps.", done.stderr
    assert not list(out.glob("done-*"))
    go(tmp_path, "bias")
    close(out / "stopped", tmp_path)


def test_what_cannot_be_shared_or_is_not_alike_is_refused_by_all(two):
    out, _ = two
    for rank in range(2):
        odd, unlike = (out / f"{name}-{rank}" for name in ("odd", "unlike"))
        assert "3 windows cannot be shared evenly by 2 processes" in odd.read_text()
        assert "take 4" in odd.read_text()
        assert "Process 2 of 2 has other settings" in unlike.read_text()
    assert not (out / "odd").exists()


def test_a_killed_process_ends_the_run_and_its_checkpoint_stays(two, tmp_path):
    out, done = two
    assert done.returncode != 0
    assert "SIGKILL" in done.stderr
    told = (out / "killed-0").read_text()
    assert told.startswith("Process 1 of 2 has lost another one")
    assert "start the same command again" in told
    assert json.loads((out / "killed" / trainer.RECORD_FILE).read_text())["step"] == 2
    # One process goes on where two were.
    seen = go(out / "killed", "bias", changes={"checkpoint_every": 2})
    assert [m["step"] for m in seen] == [3, 4]
    go(tmp_path, "bias", changes={"checkpoint_every": 2})
    close(out / "killed", tmp_path)


def test_only_training_is_shared_work(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(["variants"]) == 2
    assert "[process 2 of 2] variants is one process's work, and 2 were started." in capsys.readouterr().err
    assert main(["train", "--kind", "kmeans", "--out", str(tmp_path)]) == 2
    assert "kmeans is fitted by one process" in capsys.readouterr().err
    assert main(["train", "--device", "cuda:1", "--out", str(tmp_path)]) == 2
    assert "2 processes cannot all have cuda:1" in capsys.readouterr().err
