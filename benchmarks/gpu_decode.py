"""Decode kernels of SFA, Slim attention and MLA on a GPU: checked, then timed beside the strongest dense attention.

``python -m benchmarks.gpu_decode --json FILE``. One new token a sequence over a cache; small caches take turns so that
none stays in the GPU's own cache. ``ms`` is eager, ``ms_graph`` one CUDA graph of all turns; each way has its own
strongest dense kernel. A step holds everything that attention does with the cache: choosing the query's features,
folding matrices into queries and sums, merging. Bytes are those of the tensors. Rows with ``kept: false`` are sizes and
designs tried beside the shipped one (``--tune``), as graphs. SFA's prefill comes last. The error is that of some heads
against double precision.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks import gpu_decode_shapes as shapes
from benchmarks import gpu_sfa_prefill
from benchmarks.gpu_decode_checks import check_all
from benchmarks.gpu_decode_ways import TORCH, Race, by, compared, dense_kernels, rate, relative
from benchmarks.gpu_options import Options, count, some_of
from benchmarks.gpu_record import Recording
from benchmarks.gpu_slim_profile import profile, why
from focus_core.benchmark.prefill import spread
from focus_core.kernels.mla import keys_and_values, mla_attention
from focus_core.kernels.mla.triton_decode import by_head, mla_decode
from focus_core.kernels.sfa import sfa_attention, sparsify
from focus_core.kernels.sfa.triton_decode import sfa_decode
from focus_core.kernels.slim import slim_attention
from focus_core.kernels.slim.triton_decode import weighted_states

SOURCES = [f"focus_core/kernels/{name}/triton_decode.py" for name in ("sfa", "slim", "mla")]
SOURCES += [
    f"focus_core/kernels/{name}.py" for name in ("sfa/triton_thin", "split_merge", "ready", "focus/triton/tiles")
]
PARTS = ("check", "sfa", "slim", "mla", "prefill")


def others(times: dict[str, list[float]], names: list[str], about: dict[str, Any], size: int) -> Iterator[dict]:
    """Rows of designs that are not shipped."""
    for name in names:
        ms = spread(times[f"{name}_graph"])
        yield {**about, "kept": False, "design": name, "ms_graph": ms, "gb_per_s": rate(size, ms)}


def sfa(shape: dict[str, Any], repeats: int, tune: bool) -> list[dict[str, Any]]:
    """SFA's rows of one shape."""
    calls = [shapes.sfa_call(shape, seed) for seed in range(shape["caches"])]
    features, race = shape["features"], Race()
    steps = [lambda c=c: sfa_attention(c.q, c.codes, c.v, features=features, backend="triton") for c in calls]
    race.add("sfa", steps)
    share = shape["heads"] != shape["kv"]
    dense = [
        name
        for name, kernel in dense_kernels(share).items()
        if race.add(name, [lambda c=c, kernel=kernel: kernel(c.q, c.k, c.v) for c in calls])
    ]
    plans = {
        f"{plan}": [lambda c=c, plan=plan: sfa_decode(c.q, c.codes, c.v, None, **_SFA, plan=plan) for c in calls]
        for plan in (shapes.SFA_PLANS if tune else [])
    }
    tried = [name for name, steps in plans.items() if race.add(name, steps, eager=False)]
    times = race.times(repeats)
    c = calls[0]
    size = c.codes.values.nbytes + c.codes.ids.nbytes + c.v.nbytes
    about = {"method": "sfa", "phase": "decode", **shape, "repeats": repeats, "dtype": "bfloat16"}
    row = {**about, **compared(times, "sfa", dense), "refused": race.refused, "bytes": size}
    row |= {"dense_bytes": c.k.nbytes + c.v.nbytes, "ceiling": (c.k.nbytes + c.v.nbytes) / size}
    row |= {"gb_per_s": rate(size, row["ms_graph"])}
    row["dense_gb_per_s"] = rate(row["dense_bytes"], row[row["baseline_graph"] + "_graph_ms"])
    out, thin, errors = steps[0](), sparsify(c.q, features), []
    for b, h in ((0, 0), (shape["batch"] - 1, shape["heads"] - 1)):
        held = h * shape["kv"] // shape["heads"]
        keys = type(c.codes)(c.codes.values[b, held].double(), c.codes.ids[b, held], shape["dim"]).dense()
        weights = (thin[b, h].double() @ keys.T / shape["dim"] ** 0.5).softmax(-1)
        errors.append(relative(out[b, h], weights @ c.v[b, held].double()))
    row["error"] = max(errors)
    return [row, *others(times, tried, about, size)]


_SFA = {"choose": 16, "exclude": False, "first_key": None, "scale": 128**-0.5, "softcap": None, "return_lse": False}


def slim(shape: dict[str, Any], repeats: int, tune: bool) -> list[dict[str, Any]]:
    """Slim's rows of one shape."""
    c, race = shapes.slim_call(shape), Race()

    def step() -> Any:
        return slim_attention(c.q, **c.given, backend="triton")

    race.add("slim", [step])
    heads, dim, scale = shape["heads"], shape["dim"], shape["dim"] ** -0.5
    k = torch.randn(shape["batch"], heads, shape["tokens"], dim, device="cuda", dtype=torch.bfloat16)
    v = torch.randn_like(k)
    dense = [
        name
        for name, kernel in dense_kernels(False).items()
        if race.add(name, [lambda kernel=kernel: kernel(c.q, k, v)])
    ]
    plain = race.add("torch", [lambda: slim_attention(c.q, **c.given, backend="cpu")], graph=False)
    past = shape["tokens"] - 1
    shipped, *more = shapes.slim_plans(shape["turned"])
    tried = [
        f"{plan}"
        for plan in [shipped, *(more if tune else [])]
        if race.add(f"{plan}", [lambda plan=plan: weighted_states(c.operands, past, scale, None, plan)], eager=False)
    ]
    times = race.times(repeats)
    size = c.operands.state.nbytes
    about = {"method": "slim", "phase": "decode", **shape, "kv": heads, "repeats": repeats, "dtype": "bfloat16"}
    row = {**about, **compared(times, "slim", dense), "refused": race.refused, "bytes": size}
    row |= {"dense_bytes": k.nbytes + v.nbytes, "cache_ratio": size / (k.nbytes + v.nbytes)}
    row |= {"ceiling": 1 / row["cache_ratio"], "gb_per_s": rate(size, row["ms_graph"])}
    row["dense_gb_per_s"] = rate(row["dense_bytes"], row[row["baseline_graph"] + "_graph_ms"])
    states = spread(times[f"{shipped}_graph"])
    row |= {"stages_ms": {"states": states}, "profile": profile(shape, shipped, states["median"])}
    if plain:
        # What a user of torch alone has over the same cache; it does not run as a graph.
        row |= {"torch_ms": spread(times["torch"])}
        row["speedup_over_torch"] = statistics.median(a / b for a, b in zip(times["torch"], times["slim"], strict=True))
    row["error"] = shapes.slim_error(c, step(), scale)
    return [row, *others(times, tried[1:], about | {"part": "states"}, size)]


def mla(shape: dict[str, Any], repeats: int, tune: bool) -> list[dict[str, Any]]:
    """MLA's rows of one shape: beside keys and values made and kept, and beside the absorbed form in plain torch."""
    calls, race = [shapes.mla_call(shape, seed) for seed in range(shape["caches"])], Race()
    rank, nope = shape["rank"], shape["nope"]
    scale = (nope + shape["rope"]) ** -0.5
    race.add("mla", [lambda c=c: mla_attention(*c.operands, backend="triton") for c in calls])
    dense: list[str] = []
    if shape["expanded"]:
        made = [keys_and_values(*c.operands[1:]) for c in calls]
        wide = [torch.nn.functional.pad(v, (0, k.shape[3] - v.shape[3])) for k, v in made]
        for name, kernel in dense_kernels(False).items():
            steps = [
                lambda c=c, kv=kv, kernel=kernel: kernel(c.operands[0], *kv) for c, kv in zip(calls, made, strict=True)
            ]
            dense += [name] if race.add(name, steps) else []
        steps = [
            lambda c=c, k=kv[0], v=v: by(TORCH["fa2"], c.operands[0], k, v)[..., : shape["value"]]
            for c, kv, v in zip(calls, made, wide, strict=True)
        ]
        dense += ["fa2_padded"] if race.add("fa2_padded", steps) else []

    def absorbed(c: Any, attend: Any) -> Any:
        q, _, _, up_k, up_v = c.operands
        folded = torch.cat([by_head(q[..., :nope], up_k), q[..., nope:]], -1)
        return by_head(attend(folded, c.cache, c.cache[..., :rank]), up_v.mT)

    def plain(q: Any, k: Any, v: Any) -> Any:
        scores = torch.bmm(q[:, :, 0], k[:, 0].mT)
        return torch.bmm((scores.float() * scale).softmax(-1).to(v.dtype), v[:, 0])[:, :, None]

    ways = {"absorbed_torch": plain} | {
        f"absorbed_{name}": lambda q, k, v, kind=kind: by(
            kind, q, *(x.expand(-1, q.shape[1], -1, -1) for x in (k, v)), scale=scale
        )
        for name, kind in (TORCH if tune else {}).items()
    }
    tried = [
        name
        for name, way in ways.items()
        if race.add(name, [lambda c=c, way=way: absorbed(c, way) for c in calls], eager=False)
    ]
    for plan in shapes.MLA_PLANS[shape["heads"]] if tune else []:
        steps = [lambda c=c, plan=plan: mla_decode(*c.operands, **_MLA, scale=scale, plan=plan) for c in calls]
        tried += [f"{plan}"] if race.add(f"{plan}", steps, eager=False) else []
    times = race.times(repeats)
    size = calls[0].cache.nbytes
    about = {"method": "mla", "phase": "decode", **shape, "repeats": repeats, "dtype": "bfloat16"}
    row = {**about, **compared(times, "mla", dense), "refused": race.refused, "bytes": size}
    row |= {"gb_per_s": rate(size, row["ms_graph"])}
    flops = 2.0 * shape["batch"] * shape["heads"] * shape["tokens"] * (2 * rank + shape["rope"])
    row["tflops"] = flops / row["ms_graph"]["median"] / 1e9
    row["error"] = shapes.mla_error(calls[0], mla_attention(*calls[0].operands, backend="triton"), scale)
    return [row, *others(times, tried, about, size)]


_MLA = {"bias_k": None, "bias_v": None, "first_key": None, "softcap": None, "return_lse": False}


def main() -> None:
    """Check, time and write."""
    parser = Options(__doc__)
    parser.add_argument("--parts", type=some_of(PARTS), default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--repeats", type=count, default=21)
    parser.add_argument("--tune", action="store_true", help="time other sizes and designs too")
    chosen = parser.ready()
    parts = chosen.parts
    about = "Decode kernels of SFA, Slim attention and MLA beside the fastest dense attention of each shape."
    record = Recording(chosen.json, about, SOURCES)
    workers = max(1, min(14, (os.cpu_count() or 2) - 2))
    jobs = shapes.jobs([part for part in parts if part in shapes.SHAPES], chosen.tune)
    with torch.no_grad():
        record.check(*check_all(workers, shapes.compile_one, jobs, "check" in parts))
        checks = record.found["checks"]
        print(f"{sum(check['good'] for check in checks)} of {len(checks)} checks hold", flush=True)
        for part, measure in (("sfa", sfa), ("slim", slim), ("mla", mla)):
            for shape in shapes.SHAPES[part] if part in parts else []:
                rows = measure(shape, chosen.repeats, chosen.tune and shape.get("tune", True))
                if part == "slim":
                    record.found.setdefault("why", {}).update(why(rows[0]))
                record.add(*rows)
                torch.cuda.empty_cache()
        for shape in gpu_sfa_prefill.SHAPES if "prefill" in parts else []:
            record.add(*gpu_sfa_prefill.prefill(shape, min(chosen.repeats, 5)))
    sys.exit(record.failed(1.5e-2))


if __name__ == "__main__":
    main()
