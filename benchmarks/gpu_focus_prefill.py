"""Prefill of Focus on a GPU beside every dense kernel of the card: rows of one shape, and how long each stage takes."""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import os
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_focus_checks import group_sets
from focus_core.benchmark.prefill import rotated, spread
from focus_core.kernels.focus import choose_backend, flash, focus_attention
from focus_core.kernels.focus.flash import attend, scatter, sort, tiled
from focus_core.kernels.focus.triton import gather, group_pass, near_pass, pieces, plan, tiles

TORCH = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
DENSE = ("fa4", *TORCH)
WINDOW, SINKS = 256, 0
CHECKED = 48
GRAPHED = 131072
"""The most tokens of rows that are also timed as CUDA graphs."""


def flash_there() -> bool:
    """Whether flash-attn-4 is installed."""
    try:
        return importlib.util.find_spec("flash_attn.cute") is not None
    except ModuleNotFoundError:
        return False


def clock(run: Callable[[], Any]) -> float:
    """Milliseconds of one run by events, from an idle GPU to an idle GPU."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop)


def dense(name: str, q: Any, k: Any, v: Any) -> Callable[[], Any]:
    """Dense causal attention by one kernel."""
    if name == "fa4":
        from flash_attn.cute import flash_attn_func

        x, y, z = (t.transpose(1, 2) for t in (q, k, v))
        return lambda: flash_attn_func(x, y, z, causal=True)

    def run() -> Any:
        with sdpa_kernel(TORCH[name]):
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


def inputs(shape: dict[str, Any], groups: int, queries: int | None = None, seed: int = 0) -> list[Any]:
    """q, k, v and sets: the same set for query and key with one shared router, else drawn apart."""
    generator = torch.Generator("cuda").manual_seed(seed)
    batch, tokens, routers = shape.get("batch", 1), shape["tokens"], shape.get("routers", 1)
    kind = {"generator": generator, "device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(batch, shape["heads"], queries or tokens, shape["dim"], **kind)
    k, v = (torch.randn(batch, shape["kv"], tokens, shape["dim"], **kind) for _ in range(2))
    sets = offered = group_sets((batch, routers, tokens), groups, 1, "cuda", seed + 1)
    if routers > 1:
        sets = group_sets((batch, routers, tokens), groups, shape.get("looks", 1), "cuda", seed + 2)
    return [q, k, v, sets[..., tokens - (queries or tokens) :], offered]


def kept_pairs(call: list[Any], members: tuple[int, int]) -> float:
    """Pairs of query and key that are kept, over all heads."""
    q, _, _, sets, offered = call
    tokens = q.shape[2]
    made = plan.make_plan(sets, offered, None, WINDOW, SINKS, members, 0, members[0], 128)
    near = tokens * min(WINDOW, tokens) - min(WINDOW, tokens) * (min(WINDOW, tokens) - 1) / 2
    return q.shape[1] * (float(made.limit.double().sum()) / sets.shape[1] + q.shape[0] * near)


def stage_runs(call: list[Any], members: tuple[int, int], backend: str) -> dict[str, Callable[[], None]]:
    """Every stage of one prefill (its first piece and round of groups), each on the results of those before."""
    parts, most = served(call, members, backend)
    call = list(next(pieces.views((*call, None, call[0], None), parts))[:5])
    q, k, v, sets, offered = call
    scores, routers = tiles.scores_of(q.shape[3] ** -0.5, None), offered.shape[1]
    out = torch.empty_like(q)
    kept: dict[str, Any] = {}
    kind = (q.dtype, q.shape[3])

    def near(parts: Any, tile: Any) -> None:
        near_pass.near_pass((q, k, v), out, None, parts, sets, None, WINDOW, SINKS, scores, tile)

    if backend == "flash" and flash.same_sets(sets, offered):

        def sorted_() -> None:
            kept["sort"] = sort.sort_tokens(sets, offered, None, 0, True)

        def scattered() -> None:
            at = kept["sort"]
            kept["rows"] = scatter.scatter_tokens(q, k, v, (at.spot, at.spot), at.group, routers)

        def attended() -> None:
            at = kept["sort"]
            kept["part"] = attend.attend_groups(*kept["rows"], (at.cuts, at.cuts), None, q.shape[3] ** -0.5, None)

        def merged() -> None:
            at = kept["sort"]
            near(near_pass.SortedPart(*kept["part"], at.spot, at.group, at.over), tiles.near_tile(*kind))

        return {"plan": sorted_, "gather": scattered, "group_pass": attended, "near_pass": merged}
    far = tiles.begun_tile(*kind) if backend == "flash" else tiles.group_tile(*kind)

    def planned() -> None:
        kept["plan"] = plan.make_plan(sets, offered, None, WINDOW, SINKS, members, 0, most, far.rows)

    def gathered() -> None:
        kept["rows"] = gather.gather_keys(k, v, kept["plan"], routers)

    def grouped() -> None:
        rows = (q, *kept["rows"], kept["plan"], sets, offered)
        if backend == "flash":
            kept["parts"] = tiled.tiled_pass(*rows, scores, far, q.shape[3] ** -0.5, None)
        else:
            kept["parts"] = group_pass.group_pass(*rows, False, scores, far)

    def neared() -> None:
        near(near_pass.SlotParts(*kept["parts"], kept["plan"].over, 0), tiles.near_tile(*kind))

    return {"plan": planned, "gather": gathered, "group_pass": grouped, "near_pass": neared}


def served(call: list[Any], members: tuple[int, int], backend: str) -> tuple[int, int]:
    """In how many pieces of heads a call is served, and how many groups of a query a round serves."""
    tiled_ = backend == "flash" and not flash.same_sets(call[3], call[4])
    heads = call[1].shape[0] * call[1].shape[1]
    parts, slots = pieces.pieces_of(heads, members[0], pieces.TILED_STANDING if tiled_ else None)
    return parts, min(slots, members[0])


def stages(runs: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Milliseconds of each stage as a CUDA graph, each the median of five runs."""
    found = {}
    for name, run in runs.items():
        replay = graphed(run)
        found[name] = statistics.median(clock(replay) for _ in range(5))
    return found


def quiet() -> None:
    """flash-attn-4's compiled kernels are kept on disk for other processes, and a warning of each is not shown.

    Before flash-attn-4 is imported.
    """
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    os.environ.setdefault("PYTHONWARNINGS", "ignore:Argument aux_data")
    warnings.filterwarnings("ignore", message="Argument aux_data")


def warm_all(shapes: list[dict[str, Any]], workers: int) -> None:
    """Compile what the shapes need, several at once; kernels are kept on disk.

    Args:
        shapes: as for ``prefill``.
        workers: processes.
    """
    jobs: dict[Any, tuple[dict[str, Any], str]] = {}
    for shape in shapes:
        # Lengths that the plan and the sort tell apart.
        tokens = 4096 if shape["tokens"] <= 1 << 15 else 1 << 16 if shape["tokens"] <= 1 << 18 else 1 << 19
        few = {name: size for name, size in shape.items() if name not in ("dense", "groups")} | {"tokens": tokens}
        for backend in ("triton", *(("flash", "fa4") if flash_there() else ())):
            kind = few | ({"tokens": 4096, "looks": 1, "routers": 1} if backend == "fa4" else {})
            jobs[tuple(sorted(kind.items())), backend] = kind, backend
    with multiprocessing.get_context("spawn").Pool(min(workers, len(jobs))) as pool:
        pool.map(_warm_one, sorted(jobs.values(), key=lambda job: job[1]), chunksize=1)


def _warm_one(job: tuple[dict[str, Any], str]) -> None:
    shape, backend = job
    with torch.no_grad():
        call = inputs(shape, 16)
        if backend == "fa4":
            dense("fa4", *call[:3])()
        else:
            members = shape.get("looks", 1), 1
            focus_attention(*call, window=WINDOW, sinks=SINKS, backend=backend, members=members)
        torch.cuda.synchronize()


def prefill(shape: dict[str, Any], repeats: int, slow_repeats: int | None = None) -> list[dict[str, Any]]:
    """Rows of one shape: every dense kernel, and Focus by each backend with each number of groups, interleaved.

    Args:
        shape: heads, kv, dim, tokens, groups; and routers, looks, batch, dense, where they are not the usual ones.
        repeats: runs of each.
        slow_repeats: runs of cuDNN and FlashAttention-2, where fewer; these have none before them to warm up.
    """
    looks = shape.get("looks", 1)
    first = inputs(shape, shape["groups"][0])
    calls = {shape["groups"][0]: first}
    for n in shape["groups"][1:]:
        sets = group_sets(first[4].shape, n, 1, "cuda", 1)
        calls[n] = [*first[:3], sets, sets]
    backends = ["flash", "triton"] if flash_there() else ["triton"]
    names = [name for name in shape.get("dense", DENSE) if name != "fa4" or flash_there()]

    def focus(call: list[Any], backend: str) -> Callable[[], Any]:
        kind: dict[str, Any] = {"window": WINDOW, "sinks": SINKS, "backend": backend, "members": (looks, 1)}
        return lambda: focus_attention(*call, **kind)

    mine = {f"{backend}{n}": focus(call, backend) for n, call in calls.items() for backend in backends}
    runs = mine | {name: dense(name, *first[:3]) for name in names}
    counts = {name: slow_repeats if name in TORCH and slow_repeats else repeats for name in runs}
    short = [x[:, :, :4096] for x in first[:3]]
    for name, run in runs.items():
        # A run of seconds needs none before it.
        (dense(name, *short) if slow_repeats and name in TORCH else run)()
    if shape["tokens"] <= GRAPHED:
        runs |= {f"{name}_graph": graphed(run) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name in rotated(list(runs), repeat):
            if repeat < counts[name.removesuffix("_graph")]:
                times[name].append(clock(runs[name]))
    pairs = shape["heads"] * shape["tokens"] * (shape["tokens"] + 1) / 2
    unit = first[0].nbytes * 2 + first[1].nbytes * 2
    rows = []
    for n, call in calls.items():
        for backend in backends:
            row = {**shape, "phase": "prefill", "groups": n, "backend": backend, "looks": looks, "repeats": repeats}
            row |= {"window": WINDOW, "sinks": SINKS}
            taken = choose_backend(call[0], call[1], *call[3:], window=WINDOW, sinks=SINKS, members=(looks, 1)).backend
            if backend != taken:
                row |= {"kept": False, "design": f"groups by {backend}"}
            if slow_repeats:
                row["slow_repeats"] = {name: slow_repeats for name in names if name in TORCH}
            for suffix in ("", "_graph"):
                if suffix and shape["tokens"] > GRAPHED:
                    continue
                took = times[f"{backend}{n}{suffix}"]
                row |= {f"ms{suffix}": spread(took)}
                for name in names:
                    other = times[name + suffix]
                    row[f"{name}{suffix}_ms"] = spread(other)
                    # A dense kernel of fewer runs meets those of the same rounds.
                    row[f"against_{name}{suffix}"] = statistics.median(a / b for a, b in zip(other, took, strict=False))
                best = min(names, key=lambda name: row[f"{name}{suffix}_ms"]["median"])
                row |= {f"baseline{suffix}": best, f"speedup{suffix}": row[f"against_{best}{suffix}"]}
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            out = mine[f"{backend}{n}"]()
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
            }
            del out
            parts, slots = served(call, (looks, 1), backend)
            row |= {"rounds": -(-looks // slots), "pieces": parts}
            # Pieces are alike, and one after another.
            took_ms = stages(stage_runs(call, (looks, 1), backend))
            rows.append(row | {"stages_ms": {name: ms * parts for name, ms in took_ms.items()}})
    return rows
