"""Slim attention's cluster kernel on a GPU: checked on odd shapes, then timed beside Triton's and dense attention.

``python -m benchmarks.gpu_slim_clusters --json FILE``. Sizes that could be shipped are timed as graphs, and the shipped
ones without one stage each, which says what bounds the kernel (their results are wrong, and nobody sees them).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_decode_shapes as shapes
from benchmarks.gpu_decode_checks import LIMITS, slim
from benchmarks.gpu_decode_ways import Race, compared, dense_kernels, rate
from benchmarks.gpu_record import Recording
from focus_core.benchmark.prefill import spread
from focus_core.kernels.slim import cluster_decode as clusters
from focus_core.kernels.slim import slim_attention
from focus_core.kernels.slim.cluster_decode import ClusterPlan, cluster_states

SOURCES = ["focus_core/kernels/cuda/instructions.cu", "focus_core/kernels/slim/decode.cu"]
SOURCES += [f"focus_core/kernels/slim/{name}.py" for name in ("cluster_decode", "triton_decode")]
PLANS = [ClusterPlan(), ClusterPlan(64, 2), ClusterPlan(32, 6), ClusterPlan(64, 3, 4), ClusterPlan(64, 3, 8)]
_MULTIPLY = "multiply(acc[i][n], left[i], right[n / 2] + n % 2 * 2)"
_LEFT = "matrices(left[i], weights + i * 16 * LINE + k * 32)"
_RIGHT = "turned_matrices(right[n], rows + k * 16 * ROW + n * 32)"
_LEFT_OUT = {
    "products": {_MULTIPLY: "acc[i][n][0] += number(left[i][0] ^ right[n / 2][n % 2])"},
    "reading for products": {
        _RIGHT: "for (u32& x : right[n]) x = rows",
        f" {_LEFT}": " for (u32& x : left[i]) x = weights",
    },
    "reading for scores": {"one = load(at_one + at), two = load(at_two + at)": "one = at_one + at, two = at_two + at"},
    "angles": {"if (TURNED && t + 1 < tiles) angles(t + 1)": ""},
}


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
    return found + [{**case, "plan": [32, 6, 3]} for case in found[1::3]]


def check(case: dict[str, Any]) -> dict[str, Any]:
    """Relative error of the output and error of the log-sum-exp of one case, and whether they are within the limits."""
    shape = {name: x for name, x in case.items() if name not in ("softcap", "scale", "first", "dtype", "plan")}
    usual = clusters.USUAL
    try:
        compute = slim(case, "cuda", **shape)
        wanted, sums = compute("reference", True)
        clusters.USUAL = ClusterPlan(*case["plan"]) if "plan" in case else usual
        out, lse = compute("cuda", False)
        some = sums > -math.inf
        error = float((out.float() - wanted).norm() / wanted.norm().clamp_min(1e-30))
        off = float((lse - sums)[some].abs().max()) if bool(some.any()) else 0.0
        good = error < LIMITS[case.get("dtype", "bfloat16")] and off < 2e-2
        good &= bool(((lse == -math.inf) == ~some).all()) and bool(out.isfinite().all())
        return {**case, "error": error, "lse_error": off, "good": bool(good)}
    except Exception as problem:
        # One broken case must not hide the others; it counts as failed.
        return {**case, "good": False, "problem": f"{type(problem).__name__}: {problem}"[-700:]}
    finally:
        clusters.USUAL = usual


@contextmanager
def without(stage: str | None) -> Iterator[None]:
    """The kernel with one stage left out."""
    usual = clusters._SOURCE
    with tempfile.TemporaryDirectory() as folder:
        if stage is not None:
            text = usual.read_text(encoding="utf-8")
            for old, new in _LEFT_OUT[stage].items():
                assert old in text, f"{stage} is written otherwise."
                text = text.replace(old, new)
            clusters._SOURCE = Path(folder, f"{stage}.cu".replace(" ", "-"))
            clusters._SOURCE.write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            clusters._SOURCE = usual


def measure(shape: dict[str, Any], repeats: int, triton: bool) -> list[dict[str, Any]]:
    """Rows of one shape."""
    c, race, past = shapes.slim_call(shape), Race(), shape["tokens"] - 1
    scale = shape["dim"] ** -0.5
    race.add("cuda", [lambda: slim_attention(c.q, **c.given, backend="cuda")])
    if triton:
        race.add("triton", [lambda: slim_attention(c.q, **c.given, backend="triton")], eager=False)
    k = torch.randn(shape["batch"], shape["heads"], shape["tokens"], shape["dim"], device="cuda", dtype=torch.bfloat16)
    v = torch.randn_like(k)
    dense = [
        name
        for name, kernel in dense_kernels(False).items()
        if race.add(name, [lambda kernel=kernel: kernel(c.q, k, v)])
    ]
    tried = []
    for plan in PLANS:
        step = lambda plan=plan: cluster_states(c.operands, past, scale, None, plan)  # noqa: E731
        tried += [f"{plan}"] if race.add(f"{plan}", [step], eager=False) else []
    for stage in _LEFT_OUT:
        with without(stage):
            step = lambda: cluster_states(c.operands, past, scale, None)  # noqa: E731
            tried += [f"without {stage}"] if race.add(f"without {stage}", [step], eager=False) else []
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
    found = clusters.compiled(c.operands, False, ClusterPlan())
    at_once = found.clusters(shape["heads"] * shape["dim"] // clusters.COLUMNS)
    row |= {"clusters": at_once, "shares": clusters.shares(shape["batch"], past, at_once, ClusterPlan().tile)}
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
    """The reason where the aim is missed: what each stage alone costs, from the rows that leave it out."""
    some = [row for row in rows if row["batch"] == 16 and not row["turned"] and "ms_graph" in row]
    whole = next((row for row in some if "kept" not in row), None)
    if whole is None or whole["speedup_graph"] >= 1.5:
        return {}
    ms = {row["design"]: row["ms_graph"]["median"] for row in some if "kept" in row}
    states = ms[f"{ClusterPlan()}"]
    least = 0.5 * whole[f"{whole['baseline_graph']}_graph_ms"]["median"]
    parts = ", ".join(f"{name} {ms[name]:.2f}" for name in (f"without {stage}" for stage in _LEFT_OUT) if name in ms)
    return {
        "slim-decode": f"The states are read once, {whole['bytes'] / 1e9:.2f} GB at {whole['gb_per_s']:,.0f} GB/s; at "
        f"dense attention's own rate that would take {least:.2f} ms, and the kernel takes {states:.2f} of "
        f"{whole['ms_graph']['median']:.2f}. {whole['clusters']} clusters of blocks run at once. Milliseconds with one "
        f"stage left out: {parts}. No stage bounds it: what remains is a tile's chain, in which scores, their exchange "
        "across the cluster and the barrier wait for each other; Triton's kernels take "
        f"{ms.get('triton', math.nan):.2f} for the whole step. Closest and not tried: two tiles in flight, scored by "
        "other warps than those that weight."
    }


def short(row: dict[str, Any]) -> str:
    """One line."""
    kept = {n: row[n] for n in ("batch", "turned", "design", "baseline_graph", "speedup_graph", "speedup", "gb_per_s",
                                "error", "clusters", "shares", "refused") if n in row}  # fmt: skip
    kept |= {n: x["median"] for n, x in row.items() if isinstance(x, dict) and "median" in x}
    return json.dumps({n: round(x, 4) if isinstance(x, float) else x for n, x in kept.items()})


def main() -> None:
    """Check, time and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--parts", default="check,time")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--triton", action="store_true", help="time Triton's kernels too")
    chosen = parser.parse_args()
    record = Recording(chosen.json, "Slim attention's decode step by clusters of blocks beside dense ones.", SOURCES)
    with torch.no_grad():
        for case in cases() if "check" in chosen.parts else []:
            found = check(case)
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
