"""Slim attention's cluster kernel itself, compiled for a CPU on an emulated cluster, against double precision."""

import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from focus_core.kernels.focus.triton.tiles import scores_of
from focus_core.kernels.slim import Turned, cluster_decode
from focus_core.kernels.slim.cluster_decode import ClusterPlan, compiled, shares
from focus_core.kernels.slim.operands import Operands

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
CASES = {
    "rotated and padded": {
        "heads": 8, "dim": 128, "past": 125, "turned": 1, "first": [19], "size": 3.0, "plan": (32, 1, 2),
    },
    "scores that grow, sequences that share clusters and have angles of their own": {
        "heads": 16, "dim": 64, "past": 70, "batch": 3, "clusters": 2, "size": 9, "plan": (48, 2), "turned": 3,
    },
    "wide tiles and soft cap": {"heads": 24, "dim": 64, "past": 100, "plan": (64, 3, 4), "softcap": 3.0},
}  # fmt: skip


@pytest.mark.skipif(COMPILER is None, reason="needs g++ to compile the kernel for a CPU")
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_on_an_emulated_cluster(name, tmp_path, monkeypatch):
    case = {"turned": 0, "first": [0], "size": 1.0, "plan": (32, 3), "softcap": None, "clusters": 1} | CASES[name]
    heads, dim, past = (case[x] for x in ("heads", "dim", "past"))
    batch, plan = case.get("batch", len(case["first"])), ClusterPlan(*case["plan"])
    torch.manual_seed(past)
    q = (torch.randn(batch, heads, 1, dim) * case["size"]).bfloat16()
    state = torch.randn(batch, past + 1, heads * dim).bfloat16()
    rows = max(1, case["turned"])
    places = torch.arange(past + 1) + 5 * torch.arange(rows)[:, None]
    angles = places[..., None] * 1e4 ** -(torch.arange(0, dim, 2) / dim)
    turned = Turned(angles.cos(), angles.sin())
    first = torch.tensor(case["first"], dtype=torch.int32) if any(case["first"]) else None
    operands = Operands(q, state, None, None, None, None, turned if case["turned"] else None, q, q, True, first, None)
    scores = scores_of(dim**-0.5, case["softcap"])

    # The macros are those that the GPU's compiler would be given.
    given = []
    monkeypatch.setattr(cluster_decode, "kernel", lambda *x: given.append(x))
    compiled(operands, scores.capped, plan)
    path, _, constants, threads, *_ = given[0]
    program = tmp_path / "kernel"
    macros = [f"-D{name}={value}" for name, value in (*constants, ("BLOCK_THREADS", threads))]
    subprocess.run(
        [COMPILER, "-O1", "-std=c++17", "-w", *macros, f'-DKERNEL="{path}"', HERE / "cluster_run.cpp", "-o", program],
        check=True,
    )
    files = {"q": q.view(torch.int16), "state": state.view(torch.int16), "cos": turned.cos, "sin": turned.sin}
    files["first"] = torch.zeros(batch, dtype=torch.int32) if first is None else first
    for file, numbers in files.items():
        (tmp_path / file).write_bytes(numbers.numpy().tobytes())
    _, per, _, splits = shares(batch, past, case["clusters"], plan.tile)
    about = past, batch, per, splits, past + 1, rows, scores.unit, scores.cap_in, scores.cap_out, 1
    ran = subprocess.run([program, tmp_path, *map(str, about)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout

    lines, width = (32 if heads > 16 else 16), dict(constants)["WIDTH"]
    found = {}
    for file, size in (("part", width), ("most", 1), ("total", 1)):
        numbers = torch.frombuffer(bytearray((tmp_path / file).read_bytes()), dtype=torch.float32)
        found[file] = numbers.view(batch, splits, lines, size)[:, :, :heads].double()
    # As when parts are put together: one without weights counts for nothing, whatever it holds.
    some = found["total"] > 0
    part, most = found["part"].where(some, 0.0), found["most"].where(some, -math.inf)
    top = most.amax(1, True)
    share = torch.exp2(most - top)
    total = (share * found["total"]).sum(1)
    sums = (share * part[..., : heads * dim]).sum(1) / total

    keys = state[:, :past].double().unflatten(2, (heads, dim)).transpose(1, 2)
    if case["turned"]:
        # Rotated keys are rounded, as dense attention's are.
        keys = Turned(turned.cos.double(), turned.sin.double())(keys, slice(None), slice(0, past)).bfloat16().double()
    x = (keys @ q.double().mT)[..., 0] * dim**-0.5
    if case["softcap"]:
        x = case["softcap"] * torch.tanh(x / case["softcap"])
    if first is not None:
        x = x.masked_fill(torch.arange(past) < first[:, None, None], -math.inf)
    wanted = x.softmax(2) @ state[:, :past].double()
    assert (sums - wanted).norm() / wanted.norm() < 5e-3
    lse = (top[:, 0, :, 0] + total[..., 0].log2()) * math.log(2)
    assert (lse - x.logsumexp(2)).abs().max() < (2e-2 if case["turned"] else 1e-4)
