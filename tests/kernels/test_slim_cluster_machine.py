"""Slim attention's cluster kernel itself, compiled for a CPU on an emulated cluster, against double precision."""

import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from focus_core.kernels.slim import Turned, cluster_decode
from focus_core.kernels.slim.cluster_decode import ClusterPlan, compiled
from focus_core.kernels.slim.operands import Operands

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
CASES = {
    "rotated and padded": {"heads": 8, "dim": 128, "past": 300, "per": 160, "turned": True, "first": 19, "size": 9},
    "scores that grow": {"heads": 8, "dim": 64, "past": 333, "per": 352, "turned": True, "size": 12},
    "wide tiles and soft cap": {"heads": 24, "dim": 64, "past": 200, "per": 256, "tile": (64, 3), "softcap": 3.0},
}


@pytest.mark.skipif(COMPILER is None, reason="needs g++ to compile the kernel for a CPU")
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_on_an_emulated_cluster(name, tmp_path, monkeypatch):
    case = {"turned": False, "first": 0, "size": 1.0, "tile": (32, 6), "softcap": None} | CASES[name]
    heads, dim, past, per = (case[x] for x in ("heads", "dim", "past", "per"))
    torch.manual_seed(past)
    q = (torch.randn(1, heads, 1, dim) * case["size"]).bfloat16()
    state = torch.randn(1, past + 1, heads * dim).bfloat16()
    angles = torch.arange(past + 1)[None, :, None] * 1e4 ** -(torch.arange(0, dim, 2) / dim)
    turned = Turned(angles.cos(), angles.sin())
    first = torch.tensor([case["first"]]) if case["first"] else None
    operands = Operands(q, state, None, None, None, None, turned if case["turned"] else None, q, q, True, first, None)
    scores = cluster_decode.scores_of(dim**-0.5, case["softcap"])

    # The macros are those that the GPU's compiler would be given.
    given = []
    monkeypatch.setattr(cluster_decode, "kernel", lambda *x: given.append(x))
    compiled(operands, scores.capped, ClusterPlan(*case["tile"]))
    path, _, constants, *_ = given[0]
    program = tmp_path / "kernel"
    macros = [f"-D{name}={value}" for name, value in constants]
    subprocess.run(
        [COMPILER, "-O1", "-std=c++17", "-w", *macros, f'-DKERNEL="{path}"', HERE / "cluster_run.cpp", "-o", program],
        check=True,
    )
    files = {"q": q.view(torch.int16), "state": state.view(torch.int16), "cos": turned.cos, "sin": turned.sin}
    for file, numbers in files.items():
        (tmp_path / file).write_bytes(numbers.numpy().tobytes())
    about = past, per, past + 1, case["first"], scores.unit, scores.cap_in, scores.cap_out, 1
    ran = subprocess.run([program, tmp_path, *map(str, about)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout

    lines, width = (32 if heads > 16 else 16), dict(constants)["WIDTH"]
    found = {}
    for file, size in (("part", width), ("most", 1), ("total", 1)):
        numbers = torch.frombuffer(bytearray((tmp_path / file).read_bytes()), dtype=torch.float32)
        found[file] = numbers.view(-1, lines, size)[:, :heads].double()
    part, most, total = found.values()
    share = torch.exp2(most - most.amax(0))
    sums = ((share * part[..., : heads * dim]).sum(0)) / (share * total).sum(0)

    keys = state[:, :past].double().unflatten(2, (heads, dim)).transpose(1, 2)
    if case["turned"]:
        keys = Turned(turned.cos.double(), turned.sin.double())(keys, slice(0, 1), slice(0, past))
    x = (keys @ q.double().mT)[0, ..., 0] * dim**-0.5
    if case["softcap"]:
        x = case["softcap"] * torch.tanh(x / case["softcap"])
    x[:, : case["first"]] = -math.inf
    wanted = x.softmax(1) @ state[0, :past].double()
    assert (sums - wanted).norm() / wanted.norm() < 5e-3
    lse = (most.amax(0) + (share * total).sum(0).log2())[:, 0] * math.log(2)
    assert (lse - x.logsumexp(1)).abs().max() < 1e-4
