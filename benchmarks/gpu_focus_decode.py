"""Focus's decoding by lists on a GPU: checked against the reference, then timed beside the strongest dense attention.

``python -m benchmarks.gpu_focus_decode --json FILE``. One new token a sequence over a cache; caches take turns so that
none stays in the GPU's own cache. A step of Focus is everything that ``generate()`` asks for: its launch reads the
lists, attends, merges, and appends the token to the lists. ``ms`` is eager, ``ms_graph`` one CUDA graph of all turns;
dense kernels are measured both ways too, and each way has its own strongest. Every repeat runs every candidate once, in
an order that rotates; alternatives are graphs.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_focus_decode_checks import check_all
from benchmarks.gpu_focus_prefill import clock, graphed, inputs, sampled_error
from benchmarks.gpu_options import Options, count, some_of
from benchmarks.gpu_record import Recording
from focus_core.benchmark.prefill import rotated, spread
from focus_core.cache import Memo
from focus_core.kernels.focus import focus_attention
from focus_core.kernels.focus.listed import listed_attention
from focus_core.kernels.focus.triton.decode_lists import Cut, attend_lists, cut_for, splits_for
from focus_core.kernels.focus.triton.lists import PAGE, append_lists, build_lists
from focus_core.kernels.focus.triton.tiles import scores_of

SOURCES = ["focus_core/kernels/focus/triton/" + name for name in ("decode_lists.py", "lists.py", "tiles.py")]
PARTS = ("check", "time")
WINDOW, SINKS, GROUPS = 256, 0, 16
_GQA = {"heads": 32, "kv": 8, "dim": 128, "routers": 8, "groups": [GROUPS]}
SHAPES = [
    {**_GQA, "tokens": 131_072, "batch": 1, "caches": 6},
    {**_GQA, "tokens": 131_072, "batch": 16, "caches": 1},
    {**_GQA, "tokens": 32_768, "batch": 1, "caches": 16},
    {**_GQA, "tokens": 32_768, "batch": 16, "caches": 2},
]
CUTS = {
    1: [Cut(splits=32), Cut(splits=16), Cut(stages=5, splits=32), Cut(32, 4, 3, 64), Cut(32, 4, 5, 32),
        Cut(128, 8, 3, 32), Cut(64, 8, 3, 64), Cut(64, 8, 3, 32)],
    16: [Cut(splits=2), Cut(splits=8), Cut(stages=5, splits=4), Cut(32, 4, 5, 4), Cut(32, 4, 5, 8),
         Cut(128, 8, 3, 2), Cut(64, 8, 3, 4), Cut(64, 8, 5, 4)],
}  # fmt: skip
"""Sizes that are timed beside the chosen ones, by batch."""
_DENSE = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}


def dense_kernels() -> dict[str, Callable[[Any, Any, Any], Any]]:
    """Dense attention of one new token, by everything that is here; ``packed`` gives the query heads of a key head as
    that many queries.
    """

    def by(kernel: SDPBackend, packed: bool) -> Callable[[Any, Any, Any], Any]:
        def run(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(kernel):
                if packed:
                    rows = q.view(q.shape[0], k.shape[1], -1, q.shape[3])
                    return F.scaled_dot_product_attention(rows, k, v).view(q.shape)
                return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        return run

    found = {"sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)}
    for name, kernel in _DENSE.items():
        found |= {name: by(kernel, False), f"{name}_packed": by(kernel, True)}
    try:
        from flash_attn.cute import flash_attn_func
    except ImportError:
        return found

    def fa4(splits: int) -> Callable[[Any, Any, Any], Any]:
        def run(q: Any, k: Any, v: Any) -> Any:
            out = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), num_splits=splits)
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

        return run

    return found | {"fa4": fa4(1), "fa4_32": fa4(32)}


def focus_call(
    call: list[Any], cut: Cut | None = None, page: int = PAGE, own_append: bool = False
) -> Callable[[], Any]:
    """One step over one cache with lists of its own, below what ``generate()`` goes through."""
    q, k, _, _, offered = call
    tokens = k.shape[2]
    lists = build_lists(offered, tokens - 1, GROUPS, 1, k.shape[1], page)
    scores = scores_of(q.shape[3] ** -0.5, None)

    def step() -> Any:
        if own_append:
            append_lists(lists, offered, tokens, 1)
        return attend_lists(lists, *call, WINDOW, SINKS, None, scores, append=not own_append, cut=cut)[0]

    return step


def generated(call: list[Any]) -> Callable[[], Any]:
    """One step over one cache as ``generate()`` takes it: every call appends the last token anew."""
    q, k = call[:2]
    memo, tokens = Memo(), k.shape[2]
    memo.keep(build_lists(call[4], tokens - 1, GROUPS, 1, k.shape[1]).tensors, tokens - 1)

    def step() -> Any:
        memo.tokens = tokens - 1
        return listed_attention(
            memo, *call, groups=GROUPS, members=(1, 1), window=WINDOW, sinks=SINKS, scale=q.shape[3] ** -0.5
        )

    return step


def by_group(call: list[Any]) -> list[Any]:
    """The same cache with the rows of each group together, as a copy of keys and values in pages would have them."""
    q, k, v, sets, offered = call
    order = offered.argsort(dim=-1, stable=True)
    k, v = (torch.take_along_dim(x, order[..., None], 2) for x in (k, v))
    return [q, k, v, sets, offered.gather(-1, order)]


def turns(steps: list[Callable[[], Any]]) -> Callable[[], Any]:
    """All caches in turn."""
    return lambda: [step() for step in steps]


def tried(name: str, steps: list[Callable[[], Any]], refused: dict[str, str]) -> dict[str, Callable[[], Any]]:
    """A candidate eager and as a graph; what cannot run is put into ``refused`` with its reason."""
    try:
        run = turns(steps)
        run()
        torch.cuda.synchronize()
        found = {name: run}
        found[f"{name}_graph"] = graphed(run)
        return found
    except Exception as problem:
        refused[name] = f"{type(problem).__name__}: {problem}"[:200]
        torch.cuda.synchronize()
        return {}


def decode(shape: dict[str, Any], repeats: int) -> dict[str, Any]:
    """The row of one shape."""
    caches, batch = shape["caches"], shape["batch"]
    calls = [inputs(shape, GROUPS, 1, 10 * seed) for seed in range(caches)]
    refused: dict[str, str] = {}
    runs = tried("focus", [generated(call) for call in calls], refused)
    error = sampled_error(calls[0], WINDOW, SINKS, generated(calls[0])())
    dense: list[str] = []
    for name, kernel in dense_kernels().items():
        got = tried(name, [lambda c=c, kernel=kernel: kernel(*c[:3]) for c in calls], refused)
        runs |= got
        dense += [name] if got else []
    scan = [
        lambda c=c: focus_attention(*c, window=WINDOW, sinks=SINKS, backend="triton", members=(1, 1)) for c in calls
    ]
    runs |= tried("scan", scan, refused)
    others: dict[str, list[Callable[[], Any]]] = {
        f"{cut.block}x{cut.warps} warps, {cut.stages} stages, {cut.splits} splits": [focus_call(c, cut) for c in calls]
        for cut in CUTS[batch]
    }
    others["pages of 64"] = [focus_call(c, page=64) for c in calls]
    others["append in a launch of its own"] = [focus_call(c, own_append=True) for c in calls]
    grouped = [by_group(c) for c in calls]
    others["rows of a group together"] = [focus_call(c) for c in grouped]
    alternatives = []
    for name, steps in others.items():
        if got := tried(name, steps, refused):
            runs[f"{name}_graph"] = got[f"{name}_graph"]
            alternatives.append(name)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name in rotated(list(runs), repeat):
            times[name].append(clock(runs[name]) / caches)

    def middle(name: str) -> float:
        return statistics.median(times[name])

    q, k = calls[0][:2]
    cut = cut_for(q.dtype, shape["dim"])
    row: dict[str, Any] = {**shape, "groups": GROUPS, "phase": "decode", "repeats": repeats, "window": WINDOW}
    row |= {"sinks": SINKS, "cut": [cut.block, cut.warps, cut.stages, splits_for(batch * shape["kv"], k.shape[2], 64)]}
    row |= {"page": PAGE, "refused": refused, "error": error}
    for suffix in ("", "_graph"):
        best = min(dense, key=lambda name: middle(name + suffix))
        mine = times["focus" + suffix]
        row |= {f"ms{suffix}": spread(mine), f"baseline{suffix}": best}
        row |= {f"{name}{suffix}_ms": spread(times[name + suffix]) for name in [*dense, "scan"]}
        row[f"speedup{suffix}"] = statistics.median(a / b for a, b in zip(times[best + suffix], mine, strict=True))
    row["alternatives_ms"] = {name: spread(times[f"{name}_graph"]) for name in alternatives}
    kept = batch * shape["kv"] * (shape["tokens"] / GROUPS + WINDOW)
    row["kept_gb_per_s"] = kept * shape["dim"] * 4 / row["ms_graph"]["median"] / 1e6
    row["dense_gb_per_s"] = 2 * k.nbytes / middle(row["baseline_graph"] + "_graph") / 1e6
    built = build_lists(calls[0][4], shape["tokens"], GROUPS, 1, shape["kv"])
    row["lists_mb"] = sum(x.nbytes for x in built.tensors) / 2**20
    row["lists_over_cache"] = sum(x.nbytes for x in built.tensors) / (2 * k.nbytes)
    row["build_ms"] = statistics.median(
        clock(lambda: build_lists(calls[0][4], shape["tokens"], GROUPS, 1, shape["kv"])) for _ in range(5)
    )
    return row


def _compile(job: tuple[int, Cut | None, int]) -> str | None:
    """Compiles one cut on a small cache, so that the timing process finds it on the disk."""
    batch, cut, page = job
    try:
        if cut is None:
            cut = Cut(splits=splits_for(batch * 8, 131_072, 64))
        shape = {**_GQA, "tokens": 2048, "batch": 1}
        focus_call(inputs(shape, GROUPS, 1), cut, page)()
        if page == PAGE and cut.splits == CUTS[batch][0].splits:
            focus_call(inputs(shape, GROUPS, 1), own_append=True)()
        torch.cuda.synchronize()
        return None
    except Exception as problem:
        # What fails here fails in the timing too, and is named there.
        return f"{job}: {type(problem).__name__}: {problem}"[-300:]


def main() -> None:
    """Check, time and write."""
    parser = Options(__doc__)
    parser.add_argument("--parts", type=some_of(PARTS), default="check,time", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--repeats", type=count, default=24)
    chosen = parser.ready()
    parts = chosen.parts
    record = Recording(
        chosen.json,
        "Focus's decoding by lists of each group's keys beside dense attention over the same cache. Every timed step "
        "of Focus appends its token to the lists.",
        SOURCES,
    )
    workers = max(1, min(14, (os.cpu_count() or 2) - 2))
    with torch.no_grad():
        if "check" in parts:
            record.check(*check_all(workers))
            checks = record.found["checks"]
            print(f"{sum(row['good'] for row in checks)} of {len(checks)} checks hold", flush=True)
            print("largest relative error", max((row["error"] for row in checks if "error" in row), default=None))
        if "time" in parts:
            jobs = [(batch, cut, PAGE) for batch, cuts in CUTS.items() for cut in [*cuts, None]]
            jobs += [(batch, None, 64) for batch in CUTS]
            with multiprocessing.get_context("spawn").Pool(workers) as pool:
                for problem in filter(None, pool.map(_compile, jobs, chunksize=1)):
                    print("not compiled", problem, flush=True)
            for shape in SHAPES:
                record.add(decode(shape, chosen.repeats))
                torch.cuda.empty_cache()
    sys.exit(record.failed(1.5e-2))


if __name__ == "__main__":
    main()
