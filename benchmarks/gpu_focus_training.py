"""Training Focus's router on a GPU: the soft gates' kernels checked, then timed forward and backward.

``python -m benchmarks.gpu_focus_training --json FILE --parts check`` checks every kind of call, outputs and gradients,
against the plain formula in double precision (NaN fails). ``--parts layer`` times one layer of SmolLM2's shape forward
and backward against the chunks that were used before (where their arrays fit) and against dense attention, all of them
once a repeat in an order that rotates; ``step`` times whole training steps of a model of SmolLM2's shape with random
weights; ``tune`` times each kernel with several sizes.
"""

from __future__ import annotations

import argparse
import functools
import gc
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_focus_training_checks import check_all, make_call, plain
from benchmarks.gpu_model_lines import KERNELS
from benchmarks.gpu_record import Recording
from focus_core.benchmark.prefill import rotated, spread
from focus_core.kernels.focus.soft import LogAgreement, soft_attention
from focus_core.kernels.focus.triton.tiles import Tile
from focus_core.kernels.focus.triton_soft import soft_triton
from focus_core.kernels.focus.triton_soft.backward_keys import _by_keys, by_keys
from focus_core.kernels.focus.triton_soft.backward_queries import _by_queries, by_queries
from focus_core.kernels.focus.triton_soft.call import Call, Settings, packed
from focus_core.kernels.focus.triton_soft.forward import _forward, forward
from focus_core.kernels.focus.triton_soft.run import delta_of

PARTS = ("check", "layer", "step", "tune")
SOURCES = ("focus_core/kernels/focus/soft.py", "focus_core/kernels/focus/triton_soft", "focus_core/variants/focus.py")
SHAPE: dict[str, Any] = {
    "heads": 9,
    "kv": 3,
    "dim": 64,
    "routers": 3,
    "groups": 16,
    "looks": 4,
    "held": 1,
    "layout": "tokens",
}
SHAPE |= {"window": 128, "sinks": 4}
MASK: dict[str, Any] = {"groups": 16, "query_topk": 4, "key_topk": 1, "window": 128, "sinks": 4}
CHECKED = 1024
Candidate = tuple[str, Tile, bool]
TILES = {
    "forward": [
        Tile(128, 64, 8, 3), Tile(128, 64, 4, 3), Tile(128, 64, 4, 2), Tile(64, 64, 4, 3), Tile(64, 128, 4, 2),
        Tile(128, 128, 8, 2), Tile(128, 32, 4, 4), Tile(128, 32, 8, 4), Tile(64, 32, 4, 4), Tile(64, 64, 4, 2),
    ],
    "keys": [
        Tile(64, 128, 8, 2), Tile(64, 128, 8, 3), Tile(32, 128, 8, 3), Tile(32, 128, 4, 3), Tile(64, 64, 4, 2),
        Tile(64, 64, 8, 2), Tile(128, 64, 8, 2), Tile(32, 64, 4, 3), Tile(128, 128, 8, 1),
    ],
    "fused": [
        Tile(64, 128, 8, 2), Tile(32, 128, 8, 2), Tile(64, 64, 4, 2), Tile(64, 64, 8, 2), Tile(128, 64, 8, 2),
    ],
    "queries": [
        Tile(128, 64, 8, 2), Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(128, 32, 4, 3), Tile(64, 64, 4, 2),
        Tile(64, 64, 4, 3), Tile(64, 128, 8, 2), Tile(128, 128, 8, 1), Tile(64, 32, 4, 3), Tile(64, 64, 8, 2),
    ],
}  # fmt: skip


def milliseconds(run: Callable[[], Any]) -> float:
    """Of one run, from an idle GPU to an idle GPU."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop)


def peak_mb(run: Callable[[], Any]) -> float:
    """Most memory that a run takes beyond what is held before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def layer(tokens: int, hard: bool, repeats: int) -> list[dict[str, Any]]:
    """Rows of one layer's forward and backward: every way to compute it, interleaved."""
    call, settings = make_call(SHAPE | {"keys": tokens, "hard": hard}, "cuda")
    call = [x.detach().requires_grad_() for x in call]
    q, k, v = call[:3]
    pull = torch.randn_like(q)
    options = {name: settings[name] for name in ("window", "sinks", "scale")}
    gate = LogAgreement(call[3], call[4], settings["key_topk"], settings["floor"])
    forwards: dict[str, tuple[Callable[[], Any], list[Any]]] = {
        "triton": (lambda: soft_triton(*call, **settings), call),
        "chunked": (lambda: soft_attention(q, k, v, add=gate, **options, backend="chunked"), call),
    }
    for name in ("cudnn", "fa2", "fa4"):
        forwards[name] = (functools.partial(KERNELS[name], q, k, v, settings["scale"]), call[:3])
    rows: dict[str, dict[str, Any]] = {}
    runs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for name, (ahead, inputs) in forwards.items():
        about = {"part": "layer", "tokens": tokens, "gate": "straight_through" if hard else "soft", "line": name}

        def both(ahead=ahead, inputs=inputs):
            torch.autograd.grad(ahead(), inputs, pull)

        try:
            both()
            about["extra_mb"] = peak_mb(both)
            runs[name] = (ahead, both)
        except torch.OutOfMemoryError:
            about["left_out"] = f"out of memory at {torch.cuda.max_memory_allocated() / 2**30:.0f} GiB"
        except Exception as problem:
            # A kernel that is not there, or has no backward of this shape, must not hide the others.
            about["left_out"] = f"{type(problem).__name__}: {problem}"[:300]
        torch.cuda.empty_cache()
        rows[name] = about
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name in rotated(list(runs), repeat):
            times[name].append((milliseconds(runs[name][0]), milliseconds(runs[name][1])))
    for name, pairs in times.items():
        rows[name] |= {"forward_ms": spread([a for a, _ in pairs]), "ms": spread([b for _, b in pairs])}
        rows[name]["over_triton"] = statistics.median(
            b / mine for (_, b), (_, mine) in zip(pairs, times["triton"], strict=True)
        )
    if tokens == CHECKED:
        wide = [x.detach().double().requires_grad_() for x in call]
        wanted = torch.autograd.grad(plain(*wide, **settings), wide, pull.double())
        got = torch.autograd.grad(soft_triton(*call, **settings), call, pull)
        errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(got, wanted, strict=True)]
        rows["triton"]["error"] = max(errors)
    return list(rows.values())


def training_step(tokens: int, gate: str, backend: str, repeats: int) -> dict[str, Any]:
    """One row: optimizer steps of the router of a model of SmolLM2's shape with random weights, one window each."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from focus_core.models.facts import facts_of
    from focus_core.routing.balance import LoadMeter
    from focus_core.routing.router import Router, RouterConfig
    from focus_core.training.trainer import RoutedModel
    from focus_core.variants import make

    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=49152, tie_word_embeddings=True, max_position_embeddings=tokens,
    )  # fmt: skip
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval().requires_grad_(False)
    facts = facts_of(model)
    adapter = Router(RouterConfig(facts.layers, facts.hidden_size, 16, 16, facts.kv_heads, "directed")).cuda()
    routed = RoutedModel(model, adapter)
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=1e-2, weight_decay=0.0)
    meter = LoadMeter(adapter, 1, 4)
    variant = make("focus", MASK | {"gate": gate, "temperature": 0.1, "backend": backend})
    losses = []

    def step() -> None:
        ids = torch.randint(0, 49152, (1, tokens), device="cuda")
        optimizer.zero_grad()
        meter.reset()
        loss, _ = routed(ids, variant, meter)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(adapter.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())

    row: dict[str, Any] = {"part": "step", "tokens": tokens, "gate": gate, "line": backend}
    try:
        step()
        row["peak_mb"] = peak_mb(step)
        times = [milliseconds(step) for _ in range(repeats)]
        row |= {"ms": spread(times), "tokens_per_s": tokens / statistics.median(times) * 1e3}
        row["finite"] = bool(torch.stack(losses).isfinite().all())
    except torch.OutOfMemoryError:
        row["left_out"] = f"out of memory at {torch.cuda.max_memory_allocated() / 2**30:.0f} GiB"
    return row


def kernels(tokens: int) -> tuple[Call, list[Any]]:
    """A call of the layer's shape, and what its backward passes take."""
    (q, k, v, xq, xk), settings = make_call(SHAPE | {"keys": tokens}, "cuda")
    told = Settings(**{name: value for name, value in settings.items() if name != "first_key"})
    call = Call(q, k, v, packed(xq, 1, q.dtype), packed(xk, 1, q.dtype), None, 16, told)
    out, lse = forward(call, Tile(64, 64, 4, 2))
    grad = torch.randn_like(out)
    return call, [grad, lse, delta_of(out, grad)]


def candidates() -> list[Candidate]:
    """(kernel, sizes, whether each query head writes its own part) of everything that is tried."""
    found = [(name, tile, True) for name, several in TILES.items() for tile in several]
    return found + [("keys", tile, False) for tile in TILES["keys"][:5]]


def launch(call: Call, given: list[Any], candidate: Candidate) -> Callable[[], Any]:
    """One launch of a kernel with these sizes."""
    kernel, tile, split = candidate
    grad, lse, delta = given
    if kernel == "forward":
        return lambda: forward(call, tile)
    if kernel == "queries":
        return lambda: by_queries(call, grad, lse, delta, True, True, tile)
    return lambda: by_keys(call, grad, lse, delta, True, True, tile, split, kernel == "fused")


def sizes_of(tile: Tile) -> list[int]:
    """Queries, keys, warps, stages."""
    return [tile.rows, tile.keys, tile.warps, tile.stages]


def compiled(candidate: Candidate) -> dict[str, Any]:
    """Registers and spills of a candidate, which is then in Triton's cache for every process."""
    function = {"forward": _forward, "queries": _by_queries}.get(candidate[0], _by_keys)
    try:
        launch(*kernels(512), candidate)()
        torch.cuda.synchronize()
    except Exception as problem:
        # Sizes that do not fit the GPU must not hide the others.
        return {"left_out": f"{type(problem).__name__}: {problem}"[:200]}
    try:
        made = list(function.device_caches[torch.cuda.current_device()][0].values())[-1]
        return {"registers": made.n_regs, "spills": made.n_spills, "shared": made.metadata.shared}
    except (AttributeError, KeyError, IndexError, TypeError):
        return {}


def tune(lengths: list[int], repeats: int) -> list[dict[str, Any]]:
    """A row for each kernel and sizes: milliseconds at each length."""
    tried = candidates()
    workers = min(16, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        rows = [
            {"part": "tune", "kernel": name, "tile": sizes_of(tile), "split": split} | about
            for (name, tile, split), about in zip(tried, pool.map(compiled, tried), strict=True)
        ]
    for tokens in lengths:
        call, given = kernels(tokens)
        for row, candidate in zip(rows, tried, strict=True):
            if "left_out" in row:
                continue
            run = launch(call, given, candidate)
            run()
            row[f"ms_{tokens}"] = spread([milliseconds(run) for _ in range(repeats)])
    return rows


def main() -> None:
    """Check, time and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--parts", default="check,layer,step", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--lengths", default="1024,8192,32768", help="of the layer")
    chosen = parser.parse_args()
    parts, lengths = chosen.parts.split(","), [int(n) for n in chosen.lengths.split(",")]
    about = (
        "The soft gates that train Focus's router, forward and backward, by kernels that hold no array of all pairs: "
        "beside the chunks used before and dense attention."
    )
    record = Recording(chosen.json, about, SOURCES)
    if "check" in parts:
        record.check(*check_all(min(16, os.cpu_count() or 1)))
    if "tune" in parts:
        record.add(*tune([8192, 32768], chosen.repeats))
    for tokens in lengths if "layer" in parts else []:
        record.add(*layer(tokens, False, chosen.repeats))
        torch.cuda.empty_cache()
    if "layer" in parts:
        record.add(*layer(8192, True, chosen.repeats))
    if "step" in parts:
        for tokens, gate, backend in (
            (2048, "soft", "chunked"),
            (2048, "soft", "auto"),
            (4096, "soft", "chunked"),
            (4096, "soft", "auto"),
            (8192, "soft", "chunked"),
            (8192, "soft", "auto"),
            (8192, "straight_through", "auto"),
            (32768, "soft", "auto"),
        ):
            record.add(training_step(tokens, gate, backend, 3))
    sys.exit(record.failed(2e-2))


if __name__ == "__main__":
    main()
