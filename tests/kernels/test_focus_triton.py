"""Focus's Triton kernels, interpreted on the CPU, against the reference; and when they refuse."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from focus_core.errors import InvalidInput, NotAvailable
from focus_core.kernels.focus import choose_backend, focus_attention
from focus_core.kernels.focus.triton import tiles, triton_refusal
from tests.kernels.cases import make
from tests.kernels.interpreted import CASES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results():
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.interpreted"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernels_agree_with_the_reference(results, name):
    row = results[name]
    assert row["good"], row


def test_a_token_with_more_groups_than_was_said_gives_no_number(results):
    assert results["more groups than was said"]["good"]


def test_without_a_gpu_the_backend_says_so():
    q, k, v, *bits = make(keys=20)
    with pytest.raises(NotAvailable, match="needs a GPU") as caught:
        focus_attention(q, k, v, *bits, window=4, backend="triton")
    assert caught.value.hint
    assert choose_backend(q, k, *bits, window=4).backend == "chunked"


@pytest.mark.parametrize(
    "case, members, reason",
    [
        ({"dtype": torch.float64}, None, "float64"),
        ({"dim": 257}, None, "257"),
        ({}, (1, 9), "not 9"),
        ({"grad": True}, None, "no backward"),
    ],
)
def test_what_the_kernels_do_not_serve_is_refused_with_the_reason(monkeypatch, case, members, reason):
    monkeypatch.setattr("focus_core.kernels.focus.triton.applies.machine_refusal", lambda device: None)
    grad = case.pop("grad", False)
    q, k, v, *_ = make(keys=20, **case)
    q.requires_grad_(grad)
    assert reason in triton_refusal(q, k, v, members)
    q.requires_grad_(False)
    assert triton_refusal(*(x.float()[..., :64] for x in (q, k, v)), (1, 8)) is None


@pytest.mark.parametrize("members", [(-1, 1), (1, 65)])
def test_members_are_checked(members):
    with pytest.raises(InvalidInput, match="members"):
        focus_attention(*make(keys=20), window=4, members=members)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("widest", [16, 64, 80, 128, 256])
def test_tiles_fit_gpus_with_less_shared_memory(dtype, widest):
    for of in (tiles.group_tile, tiles.near_tile):
        best = of(dtype, widest)
        assert tiles.fitted(best, dtype, widest, 227 * 1024) == best
        small = tiles.fitted(best, dtype, widest, 99 * 1024)
        used = (small.rows + 2 * small.keys * small.stages) * tiles.padded(widest) * dtype.itemsize
        assert used <= 99 * 1024
        assert small.rows == best.rows
