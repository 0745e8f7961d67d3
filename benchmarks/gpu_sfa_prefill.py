"""SFA's prefill on a GPU, beside dense attention of two kinds.

SFA's exact way is to choose features, write rows with zeros off them, and use the fastest dense kernel: tensor cores
multiply by zeros as fast as by anything else, so that it cannot be faster than dense attention. The paper's kernels run
on CUDA cores and are set beside dense attention there; a plain fp32 kernel without tensor cores stands for that, as a
baseline of the paper's kind and no more.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.gpu_decode_ways import Race, by_prefill, relative
from focus_core.benchmark.prefill import spread
from focus_core.kernels.sfa import sfa_attention, sparsify
from focus_core.kernels.sfa.triton_thin import thin

SHAPES = [{"dim": 128, "features": 16, "heads": 8, "kv": 8, "batch": 1, "tokens": n} for n in (8_192, 32_768)]
_KINDS = ("cudnn", "fa2", "fa4")


@triton.jit
def _dense_fp32(
    Q, K, V, OUT, tokens, scale, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    # The longest rows first, so that the GPU is full to the end.
    tile, group = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1).to(tl.int64)
    i, d, e = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, D), tl.arange(0, BLOCK)
    base = group * tokens * D
    q = tl.load(Q + base + i[:, None] * D + d[None, :], mask=(i < tokens)[:, None], other=0.0)
    m = tl.full([ROWS], -1e30, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for start in range(0, tl.minimum((tile + 1) * ROWS, tokens), BLOCK):
        j = start + e
        k = tl.load(K + base + j[None, :] * D + d[:, None], mask=(j < tokens)[None, :], other=0.0)
        v = tl.load(V + base + j[:, None] * D + d[None, :], mask=(j < tokens)[:, None], other=0.0)
        # fp32 in full precision: multiplied and added by CUDA cores.
        x = tl.dot(q, k, input_precision="ieee") * scale
        x = tl.where(j[None, :] <= i[:, None], x, float("-inf"))
        new = tl.maximum(m, tl.max(x, 1))
        p = tl.exp2(x - new[:, None])
        shrink = tl.exp2(m - new)
        l = l * shrink + tl.sum(p, 1)
        acc = tl.dot(p, v, acc * shrink[:, None], input_precision="ieee")
        m = new
    tl.store(OUT + base + i[:, None] * D + d[None, :], acc / l[:, None], mask=(i < tokens)[:, None])


def cuda_cores(q: Any, k: Any, v: Any) -> Any:
    """Causal dense attention of contiguous fp32 (B, H, N, D) without tensor cores; D is a power of two."""
    batch, heads, tokens, dim = q.shape
    out = torch.empty_like(q)
    scale = dim**-0.5 * 1.4426950408889634
    _dense_fp32[(triton.cdiv(tokens, 64), batch * heads)](q, k, v, out, tokens, scale, dim, 64, 32, num_warps=8)
    return out


def prefill(shape: dict[str, Any], repeats: int) -> Iterator[dict[str, Any]]:
    """Rows of one shape: SFA's exact way, then the same beside CUDA cores."""
    generator = torch.Generator("cuda").manual_seed(0)
    size = (shape["batch"], shape["heads"], shape["tokens"], shape["dim"])
    q, k, v = (torch.randn(size, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    wide, race, features = [x.float() for x in (q, k, v)], Race(), shape["features"]

    def sfa() -> Any:
        return sfa_attention(q, k, v, features=features, backend="scatter")

    race.add("sfa", [sfa])
    race.add("choose", [lambda: (thin(q, features), thin(k, features))])
    dense = [name for name in _KINDS if race.add(name, [lambda name=name: by_prefill(name, q, k, v)])]
    slow = race.add("cuda_cores", [lambda: cuda_cores(*wide)])
    times = race.times(repeats)
    best = min(dense, key=lambda name: statistics.median(times[name]))
    about = {"method": "sfa", "phase": "prefill", **shape, "repeats": repeats, "dtype": "bfloat16"}
    # Exact, and what is used; no design that was kept for its speed.
    about |= {"kept": False, "design": "prefill: features chosen, zeros written, torch's dense kernel"}
    row = {**about, "refused": race.refused}
    row |= {"ms": spread(times["sfa"]), "stages_ms": {"choose": spread(times["choose"])}}
    row |= {f"{name}_ms": spread(times[name]) for name in dense}
    row |= {"baseline": best, "speedup": _ratio(times, best)}
    some = slice(-64, None)
    queries, keys = (sparsify(x, features)[0, 0].double() for x in (q, k))
    scores = queries[some] @ keys.T * shape["dim"] ** -0.5
    i = torch.arange(shape["tokens"], device="cuda")
    scores = scores.masked_fill(i[None, :] > i[some, None], -torch.inf)
    row["error"] = relative(sfa()[0, 0, some], scores.softmax(-1) @ v[0, 0].double())
    yield row
    if slow:
        about |= {"design": "the same prefill, beside dense fp32 on CUDA cores, the paper's kind of baseline"}
        about |= {"ms": row["ms"], "cuda_cores_ms": spread(times["cuda_cores"]), "baseline": "cuda_cores"}
        wanted = by_prefill("fa2", q, k, v)[0, 0, some].double()
        off = relative(cuda_cores(*wide)[0, 0, some], wanted)
        yield {**about, "speedup": _ratio(times, "cuda_cores"), "baseline_off": off}


def _ratio(times: dict[str, list[float]], slower: str) -> float:
    return statistics.median(a / b for a, b in zip(times[slower], times["sfa"], strict=True))
