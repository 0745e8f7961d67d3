"""Slim attention's cluster kernel on a GPU: checked on odd shapes, then timed beside Triton's and dense attention.

``python -m benchmarks.gpu_slim_clusters --json FILE``. Sizes that could be shipped are timed as graphs, and the shipped
ones without one stage each, which says what bounds the kernel (their results are wrong, and nobody sees them).
"""

from __future__ import annotations

import functools
import json
import math
import sys
from contextlib import nullcontext
from typing import Any

import torch

from benchmarks import gpu_decode_shapes as shapes
from benchmarks.gpu_decode_checks import LIMITS, slim
from benchmarks.gpu_decode_ways import Race, compared, dense_kernels, rate
from benchmarks.gpu_options import Options, count, some_of
from benchmarks.gpu_record import Recording
from benchmarks.gpu_slim_ways import CHANGED, CHECKED, OWN, PLANS, ROTATED, build, changed, kind_of, suits, used
from focus_core.benchmark.prefill import spread
from focus_core.kernels.slim import cluster_decode as clusters
from focus_core.kernels.slim import slim_attention
from focus_core.kernels.slim.cluster_decode import ClusterPlan

PARTS = ("check", "own", "time")
SOURCES = ["focus_core/kernels/cuda/instructions.cu", "focus_core/kernels/slim/decode.cu"]
SOURCES += [f"focus_core/kernels/slim/{name}.py" for name in ("cluster_decode", "triton_decode")]


def cases() -> list[dict[str, Any]]:
    """Every kind of call that the kernel serves."""
    wide, small = {"heads": 32, "dim": 128}, {"heads": 8, "dim": 64}
    pads = {"batch": 3, "first": [0, 150, 700]}
    found: list[dict[str, Any]] = []
    for more in (
        {"keys": 2}, {"keys": 65}, {"keys": 2100, "batch": 3}, {"keys": 2100, "turned": 1}, {"turned": 3} | pads,
        pads | {"new": False, "turned": 1}, {"keys": 5000, "softcap": 3.0, "scale": -0.2}, {"scale": 4.0, "keys": 3001},
        {"value_bias": True, "dtype": "float16"}, {"keys": 999, "batch": 40}, {"keys": 1},
    ):  # fmt: skip
        found.append({**wide, **more})
    for more in (
        {"keys": 333, "turned": 1}, pads, {"heads": 32, "turned": 2, "batch": 2}, {"heads": 16, "keys": 70},
        {"heads": 24, "turned": 1}, {"heads": 16, "dim": 128, "turned": 1}, {"heads": 4, "dim": 128},
        {"heads": 12, "dim": 128, "softcap": 3.0}, {"heads": 20, "dim": 128, "dtype": "float16"},
    ):  # fmt: skip
        found.append({**small, **more})
    return found


def checks() -> list[tuple[dict[str, Any], ClusterPlan | None]]:
    """Cases and sizes: all with the usual ones, a part with others."""
    found: list[tuple[dict[str, Any], ClusterPlan | None]] = [(case, None) for case in cases()]
    for n, plan in enumerate(CHECKED):
        suited = [case for case in cases() if suits(plan, case["dim"])]
        found += [(case, plan) for case in suited[n % 3 :: 3]]
    return found


def check(case: dict[str, Any], plan: ClusterPlan | None = None, change: str | None = None) -> dict[str, Any]:
    """Relative error of the output and error of the log-sum-exp of one case, and whether they are within the limits."""
    shape = {name: x for name, x in case.items() if name not in ("softcap", "scale", "first", "dtype")}
    named = {**case, "plan": str(plan or clusters.USUAL[bool(case.get("turned"))])}
    named |= {"change": change} if change else {}
    try:
        compute = slim(case, "cuda", **shape)
        wanted, sums = compute("reference", True)
        with used(plan), changed(change) if change else nullcontext():
            out, lse = compute("cuda", False)
        some = sums > -math.inf
        error = float((out.float() - wanted).norm() / wanted.norm().clamp_min(1e-30))
        off = float((lse - sums)[some].abs().max()) if bool(some.any()) else 0.0
        good = error < LIMITS[case.get("dtype", "bfloat16")] and off < 2e-2
        good &= bool(((lse == -math.inf) == ~some).all()) and bool(out.isfinite().all())
        return {**named, "error": error, "lse_error": off, "good": bool(good)}
    except Exception as problem:
        # One broken case must not hide the others; it counts as failed.
        return {**named, "good": False, "problem": f"{type(problem).__name__}: {problem}"[-700:]}


def measure(shape: dict[str, Any], repeats: int, triton: bool) -> list[dict[str, Any]]:
    """Rows of one shape."""
    c, race, past = shapes.slim_call(shape), Race(), shape["tokens"] - 1
    scale, turned = shape["dim"] ** -0.5, shape["turned"]
    build([(c.operands, False, plan) for plan in PLANS[turned]])
    race.add("cuda", [lambda: slim_attention(c.q, **c.given, backend="cuda")])
    if triton:
        race.add("triton", [lambda: slim_attention(c.q, **c.given, backend="triton")], eager=False)
    k = torch.randn(shape["batch"], shape["heads"], shape["tokens"], shape["dim"], device="cuda", dtype=torch.bfloat16)
    v = torch.randn_like(k)
    dense = [
        name for name, kernel in dense_kernels(False).items() if race.add(name, [functools.partial(kernel, c.q, k, v)])
    ]
    step = functools.partial(clusters.cluster_states, c.operands, past, scale, None)
    tried = [f"{plan}" for plan in PLANS[turned] if race.add(f"{plan}", [functools.partial(step, plan)], eager=False)]
    for name in CHANGED:
        if turned or name not in ROTATED:
            # A graph keeps the kernel that it was made with.
            with changed(name):
                tried += [name] if race.add(name, [step], eager=False) else []
    about = {
        "method": "slim",
        "phase": "decode",
        **shape,
        "kv": shape["heads"],
        "repeats": repeats,
        "dtype": "bfloat16",
    }
    if "cuda" in race.refused:
        return [{**about, "refused": race.refused, "error": math.nan}]
    times = race.times(repeats)
    size = c.operands.state.nbytes
    row = {**about, **compared(times, "cuda", dense), "refused": race.refused, "bytes": size}
    row |= {"dense_bytes": k.nbytes + v.nbytes}
    row |= {"gb_per_s": rate(size, row["ms_graph"]), "error": shapes.slim_error(c, c_out(c), scale)}
    plan = clusters.plan_for(c.operands)
    at_once = clusters.compiled(c.operands, False, plan).clusters(shape["heads"] * shape["dim"] // clusters.COLUMNS)
    row |= {"clusters": at_once, "shares": clusters.shares(shape["batch"], past, at_once, plan.tile)}
    rows = [row]
    for name in [*(["triton"] if triton else []), *tried]:
        ms = spread(times[f"{name}_graph"])
        rows.append(
            {**about, "kept": False, "part": "states", "design": name, "ms_graph": ms, "gb_per_s": rate(size, ms)}
        )
    return rows


def c_out(c: shapes.SlimCall) -> Any:
    """The kernel's output."""
    return slim_attention(c.q, **c.given, backend="cuda")


def why(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The reason where an aim is missed: what each stage alone costs, from the rows that leave it out."""
    found = {}
    for target, turned in (("slim-decode", False), ("slim-decode-rotated", True)):
        some = [row for row in rows if row["batch"] == 16 and row["turned"] == turned and "ms_graph" in row]
        whole = next((row for row in some if "kept" not in row), None)
        if whole is not None and whole["speedup_graph"] < 1.5:
            found[target] = _reason(whole, {r["design"]: r["ms_graph"]["median"] for r in some if "kept" in r})
    return found


def _reason(whole: dict[str, Any], ms: dict[str, float]) -> str:
    usual = f"{clusters.USUAL[whole['turned']]}"
    least = 0.5 * whole[f"{whole['baseline_graph']}_graph_ms"]["median"]
    parts = ", ".join(f"{name} {x:.2f}" for name, x in ms.items() if name.startswith("without"))
    others = {name: x for name, x in ms.items() if "Plan(" in name and name != usual}
    best = min(others, key=lambda name: others[name], default="")
    return (
        f"The states are read once, {whole['bytes'] / 1e9:.2f} GB at {whole['gb_per_s']:,.0f} GB/s; at dense "
        f"attention's own rate that would take {least:.2f} ms, and the kernel takes {ms[usual]:.2f} of "
        f"{whole['ms_graph']['median']:.2f}. {whole['clusters']} clusters of blocks run at once. Milliseconds with one "
        f"stage left out: {parts}. Of other sizes, {best} is the fastest with {others.get(best, math.nan):.2f}; "
        f"Triton's kernels take {ms.get('triton', math.nan):.2f} for the whole step."
    )


def short(row: dict[str, Any]) -> str:
    """One line."""
    names = ("batch", "turned", "design", "baseline_graph", "speedup_graph", "speedup", "gb_per_s", "error", "clusters",
             "shares", "refused")  # fmt: skip
    kept: dict[str, Any] = {n: row[n] for n in names if n in row}
    kept |= {n: x["median"] for n, x in row.items() if isinstance(x, dict) and "median" in x}
    return json.dumps({n: round(x, 4) if isinstance(x, float) else x for n, x in kept.items()})


def main() -> None:
    """Check, time and write."""
    parser = Options(__doc__)
    parser.add_argument(
        "--parts", type=some_of(PARTS), default=",".join(PARTS), help="own: blocks that each copy all angles"
    )
    parser.add_argument("--repeats", type=count, default=15)
    parser.add_argument("--triton", action="store_true", help="time Triton's kernels too")
    chosen = parser.ready()
    record = Recording(chosen.json, "Slim attention's decode step by clusters of blocks beside dense ones.", SOURCES)
    with torch.no_grad():
        wanted = checks() if "check" in chosen.parts else []
        if wanted:
            build([(kind_of(case, torch.device("cuda", 0)), "softcap" in case, plan) for case, plan in wanted])
        every: list[tuple[dict[str, Any], ClusterPlan | None, str | None]]
        every = [(case, plan, None) for case, plan in wanted]
        every += [(case, None, OWN) for case in cases() if "own" in chosen.parts and case.get("turned")]
        for case, plan, change in every:
            found = check(case, plan, change)
            record.check(found)
            if found["good"]:
                print("ok", json.dumps(found), flush=True)
            elif "CUDA error" in found.get("problem", ""):
                # After such an error nothing more can run.
                sys.exit(1)
        if record.failed():
            sys.exit(1)
        for shape in shapes.SHAPES["slim"] if "time" in chosen.parts else []:
            for row in measure(shape, chosen.repeats, chosen.triton):
                record.found["rows"].append(row)
                print(short(row), flush=True)
            record.add()
            torch.cuda.empty_cache()
        record.found["why"] = why(record.found["rows"])
        record.add()
    sys.exit(record.failed(1.5e-2))


if __name__ == "__main__":
    main()
