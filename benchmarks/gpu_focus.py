"""Focus's Triton kernels on a GPU: checked against the reference, then timed beside the strongest dense attention.

``python -m benchmarks.gpu_focus --json FILE`` checks every kind of call (NaN fails), and times prefill and decode.
Each repeat runs every candidate once, in an order that rotates. Plan, sort, gather and merge are in the time; the error
of each timed row is that of some of its queries against a computation in double precision. ``--parts`` chooses.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_focus_checks import check_all, group_sets
from focus_core.benchmark.prefill import rotated, spread
from focus_core.evaluation.environment import environment
from focus_core.jobs.files import write_json
from focus_core.kernels.focus import focus_attention
from focus_core.kernels.focus.triton import gather, group_pass, near_pass, plan, tiles

SOURCES = Path(plan.__file__).parent
PARTS = ("check", "short", "decode", "far", "long")
DENSE = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
WINDOW, SINKS = 256, 0
CHECKED = 48

_MHA64, _MHA128 = {"heads": 12, "kv": 12, "dim": 64}, {"heads": 8, "kv": 8, "dim": 128}
_GQA = {"heads": 32, "kv": 8, "dim": 128, "routers": 8}
SHORT = [{**shape, "tokens": n, "groups": [16]} for n in (8192, 32768, 131072) for shape in (_MHA64, _MHA128)]
SHORT.append({**_GQA, "tokens": 131072, "groups": [16], "looks": 4})
LONG = [
    {**_MHA64, "tokens": 1 << 20, "groups": [16, 8]},
    # FlashAttention-2 takes 1.8x cuDNN's time at this head size: not run for half a minute more.
    {**_MHA128, "tokens": 1 << 20, "groups": [16], "dense": ["cudnn"]},
]
DECODE = [{**_GQA, "tokens": 131072, "groups": [16], "batch": n} for n in (1, 16)]


class Clock:
    """Milliseconds by events."""

    def __call__(self, run: Callable[[], Any]) -> float:
        """Of one run, from an idle GPU to an idle GPU."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop)


def by_kernel(kernel: SDPBackend, q: Any, k: Any, v: Any) -> Callable[[], Any]:
    """Dense attention by one of torch's kernels."""

    def run() -> Any:
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)

    return run


def graphed(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same work as one CUDA graph, as servers run it: no time goes to starting kernels one by one."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay() -> Any:
        graph.replay()
        return kept

    return replay


def sampled_error(call: list[Any], window: int, sinks: int, out: Any) -> float:
    """Relative error of some queries of all heads against double precision."""
    q, k, v, sets, offered = call
    keys, share = k.shape[2], q.shape[1] // k.shape[1]
    rows = torch.linspace(0, q.shape[2] - 1, min(q.shape[2], CHECKED), device=q.device).long()
    i, j = rows + keys - q.shape[2], torch.arange(keys, device=q.device)
    wrong = whole = 0.0
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            r = h * sets.shape[1] // q.shape[1]
            keep = (sets[b, r, rows][:, None] & offered[b, r]) != 0
            keep |= (i[:, None] - j < window) | (j < sinks)
            keep &= j <= i[:, None]
            scores = q[b, h, rows].double() @ k[b, h // share].double().T / math.sqrt(q.shape[3])
            wanted = scores.masked_fill_(~keep, -math.inf).softmax(-1) @ v[b, h // share].double()
            wrong += float((out[b, h, rows].double() - wanted).square().sum())
            whole += float(wanted.square().sum())
    return math.sqrt(wrong / whole)


def stages(call: list[Any], members: tuple[int, int], clock: Clock) -> dict[str, float]:
    """Milliseconds of each stage of one prefill (one round of groups), each the median of five runs."""
    q, k, v, sets, offered = call
    scores = tiles.scores_of(q.shape[3] ** -0.5, None)
    far, near = (of(q.dtype, q.shape[3]) for of in (tiles.group_tile, tiles.near_tile))
    out, kept = torch.empty_like(q), {}

    def planned() -> None:
        kept["plan"] = plan.make_plan(sets, offered, None, WINDOW, SINKS, members, 0, members[0], far.rows)

    def gathered() -> None:
        kept["rows"] = gather.gather_keys(k, v, kept["plan"], sets.shape[1])

    def grouped() -> None:
        kept["parts"] = group_pass.group_pass(q, *kept["rows"], kept["plan"], sets, offered, False, scores, far)

    def neared() -> None:
        near_pass.near_pass(
            (q, k, v), out, None, kept["parts"], kept["plan"], sets, None, WINDOW, SINKS, 0, scores, near
        )

    runs = {"plan": planned, "gather": gathered, "group_pass": grouped, "near_pass": neared}
    for run in runs.values():
        run()
    return {name: statistics.median(clock(run) for _ in range(5)) for name, run in runs.items()}


def inputs(shape: dict[str, Any], groups: int, queries: int | None = None, seed: int = 0) -> list[Any]:
    """q, k, v and sets: the same set for query and key with one shared router, else drawn apart."""
    generator = torch.Generator("cuda").manual_seed(seed)
    batch, tokens, routers = shape.get("batch", 1), shape["tokens"], shape.get("routers", 1)
    kind = {"generator": generator, "device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(batch, shape["heads"], queries or tokens, shape["dim"], **kind)
    k, v = (torch.randn(batch, shape["kv"], tokens, shape["dim"], **kind) for _ in range(2))
    offered = group_sets((batch, routers, tokens), groups, 1, "cuda", seed + 1)
    sets = (
        offered
        if routers == 1
        else group_sets((batch, routers, tokens), groups, shape.get("looks", 1), "cuda", seed + 2)
    )
    return [q, k, v, sets[..., tokens - (queries or tokens) :], offered]


def kept_pairs(call: list[Any], members: tuple[int, int]) -> float:
    """Pairs of query and key that are kept, over all heads."""
    q, _, _, sets, offered = call
    tokens = q.shape[2]
    made = plan.make_plan(sets, offered, None, WINDOW, SINKS, members, 0, members[0], 128)
    near = tokens * min(WINDOW, tokens) - min(WINDOW, tokens) * (min(WINDOW, tokens) - 1) / 2
    return q.shape[1] * (float(made.limit.double().sum()) / sets.shape[1] + q.shape[0] * near)


def prefill(shape: dict[str, Any], repeats: int) -> list[dict[str, Any]]:
    """Rows of one shape: dense kernels and Focus with each number of groups, interleaved."""
    clock, looks = Clock(), shape.get("looks", 1)
    calls = {n: inputs(shape, n) for n in shape["groups"][:1]}
    first = calls[shape["groups"][0]]
    for n in shape["groups"][1:]:
        sets = group_sets(first[4].shape, n, 1, "cuda", 1)
        calls[n] = [*first[:3], sets, sets]
    runs: dict[str, Callable[[], Any]] = {
        f"focus{n}": lambda call=call: focus_attention(
            *call, window=WINDOW, sinks=SINKS, backend="triton", members=(looks, 1)
        )
        for n, call in calls.items()
    }
    if shape["tokens"] <= 32768:
        runs |= {f"{name}_graph": graphed(run) for name, run in list(runs.items())}
    kernels = shape.get("dense", list(DENSE))
    for name in kernels:
        run = by_kernel(DENSE[name], *first[:3])
        runs[name] = run
        if shape["tokens"] <= 32768:
            runs[f"{name}_graph"] = graphed(run)
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name in rotated(list(runs), repeat):
            times[name].append(clock(runs[name]))
    pairs = shape["heads"] * shape["tokens"] * (shape["tokens"] + 1) / 2
    unit = first[0].nbytes * 2 + first[1].nbytes * 2
    rows = []
    for n, call in calls.items():
        row = {
            **shape,
            "phase": "prefill",
            "groups": n,
            "looks": looks,
            "repeats": repeats,
            "window": WINDOW,
            "sinks": SINKS,
        }
        for suffix in ("", "_graph"):
            mine = times.get(f"focus{n}{suffix}")
            if mine is None:
                continue
            dense = {name: times[name + suffix] for name in kernels}
            best = min(dense, key=lambda name: statistics.median(dense[name]))
            row |= {f"ms{suffix}": spread(mine), f"baseline{suffix}": best}
            row |= {f"{name}{suffix}_ms": spread(dense[name]) for name in kernels}
            for name in kernels:
                row[f"against_{name}{suffix}"] = statistics.median(
                    a / b for a, b in zip(dense[name], mine, strict=True)
                )
            row[f"speedup{suffix}"] = row[f"against_{best}{suffix}"]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = runs[f"focus{n}"]()
        torch.cuda.synchronize()
        extra = torch.cuda.max_memory_allocated() - before - out.nbytes
        kept = kept_pairs(call, (looks, 1))
        row |= {
            "pair_limit": pairs / kept,
            "share_of_limit": row["speedup"] * kept / pairs,
            "tflops": 4 * shape["dim"] * kept / row["ms"]["median"] / 1e9,
            "extra_mb": extra / 2**20,
            "extra_over_qkvo": extra / unit,
            "error": sampled_error(call, WINDOW, SINKS, out),
            "stages_ms": stages(call, (looks, 1), clock),
        }
        del out
        rows.append(row)
        say(row)
    return rows


def decode(shape: dict[str, Any], repeats: int) -> dict[str, Any]:
    """One new token a sequence over a cache; several caches in turn, so that none stays in the GPU's own cache."""
    clock, sets = Clock(), 4 if shape["batch"] == 1 else 1
    calls = [inputs(shape, shape["groups"][0], 1, 10 * seed) for seed in range(sets)]

    def every(run: Callable[[list[Any]], Any]) -> Callable[[], Any]:
        return lambda: [run(call) for call in calls]

    eager = {"focus": lambda c: focus_attention(*c, window=WINDOW, sinks=SINKS, backend="triton", members=(1, 1))}
    for name, kernel in DENSE.items():
        eager[name] = lambda c, kernel=kernel: by_kernel(kernel, *c[:3])()
    runs = {name: every(run) for name, run in eager.items()}
    runs |= {f"{name}_graph": graphed(run) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name in rotated(list(runs), repeat):
            times[name].append(clock(runs[name]) / sets)
    row: dict[str, Any] = {**shape, "phase": "decode", "groups": shape["groups"][0], "repeats": repeats, "caches": sets}
    for suffix in ("", "_graph"):
        dense = {name: statistics.median(times[name + suffix]) for name in eager if name != "focus"}
        best = min(dense, key=dense.__getitem__)
        mine = times["focus" + suffix]
        row |= {f"ms{suffix}": spread(mine), f"baseline{suffix}": best}
        row |= {f"{name}{suffix}_ms": spread(times[name + suffix]) for name in dense}
        row[f"speedup{suffix}"] = statistics.median(a / b for a, b in zip(times[best + suffix], mine, strict=True))
    row["error"] = sampled_error(calls[0], WINDOW, SINKS, eager["focus"](calls[0]))
    kept = shape["batch"] * shape["kv"] * (shape["tokens"] / row["groups"] + WINDOW)
    row["kept_gb_per_s"] = kept * shape["dim"] * 4 / row["ms_graph"]["median"] / 1e6
    say(row)
    return row


def far_offsets() -> list[dict[str, Any]]:
    """Tensors of more than 2^31 numbers, in both layouts: offsets must not wrap."""
    rows = []
    for by_token in (False, True):
        heads, tokens, dim = 34, 1 << 20, 64
        parts = []
        for seed in range(3):
            generator = torch.Generator("cuda").manual_seed(seed)
            shape = (1, tokens, heads, dim) if by_token else (1, heads, tokens, dim)
            x = torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
            parts.append(x.transpose(1, 2) if by_token else x)
        sets = group_sets((1, 1, tokens), 64, 1, "cuda", 1)
        call = [*parts, sets, sets]
        out = focus_attention(*call, window=64, backend="triton", members=(1, 1))
        error = sampled_error(call, 64, 0, out)
        rows.append({"what": "offsets", "by_token": by_token, "numbers": parts[0].numel(), "error": error})
        rows[-1]["good"] = error < 1.5e-2
        last = focus_attention(parts[0][:, :, -1:], *parts[1:], sets[..., -1:], sets, window=64, backend="triton")
        rows[-1]["decode_error"] = float((last - out[:, :, -1:]).float().norm() / last.float().norm())
        rows[-1]["good"] &= rows[-1]["decode_error"] < 1.5e-2
        say(rows[-1])
        del parts, call, out, last
        torch.cuda.empty_cache()
    return rows


def say(row: dict[str, Any]) -> None:
    """One line a row, without the spreads."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return short(value["median"]) if "median" in value else {name: short(x) for name, x in value.items()}
        return float(f"{value:.4g}") if isinstance(value, float) else value

    print(json.dumps({name: short(value) for name, value in row.items()}), flush=True)


def source_hash() -> str:
    """Hash of the kernels' sources."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.py")))).hexdigest()


def main() -> None:
    """Check, time and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--parts", default="check,short,decode,far,long", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--long-repeats", type=int, default=5)
    chosen = parser.parse_args()
    parts = chosen.parts.split(",")
    import triton

    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split("\n")[0]
    found: dict[str, Any] = {
        "about": "Focus's Triton kernels beside dense attention; flash-attn-4 was not measured in this run.",
        "command": " ".join(["python -m benchmarks.gpu_focus", *sys.argv[1:]]),
        "environment": environment("cuda") | {"triton": triton.__version__, "driver": driver},
        "source_hash": source_hash(),
        "checks": [],
        "rows": [],
    }

    def keep() -> None:
        write_json(chosen.json, found, indent=1)

    with torch.no_grad():
        if "check" in parts:
            found["checks"] += check_all(max(1, min(14, (os.cpu_count() or 2) - 2)))
            for row in found["checks"]:
                if not row["good"]:
                    print("FAILED", json.dumps(row), flush=True)
            errors = [row["error"] for row in found["checks"] if "error" in row]
            print(f"{sum(row['good'] for row in found['checks'])} of {len(found['checks'])} checks hold", flush=True)
            print("largest relative error", max(errors, default=None), flush=True)
            keep()
        for shape in SHORT if "short" in parts else []:
            found["rows"] += prefill(shape, chosen.repeats)
            torch.cuda.empty_cache()
            keep()
        for shape in DECODE if "decode" in parts else []:
            found["rows"].append(decode(shape, 4 * chosen.repeats))
            torch.cuda.empty_cache()
            keep()
        if "far" in parts:
            found["checks"] += far_offsets()
            keep()
        # Minutes: last, so that what a time limit cuts is only this.
        for shape in LONG if "long" in parts else []:
            found["rows"] += prefill(shape, chosen.long_repeats)
            torch.cuda.empty_cache()
            keep()
    sys.exit(any(not row["good"] for row in found["checks"]) or any(not row["error"] < 1.5e-2 for row in found["rows"]))


if __name__ == "__main__":
    main()
