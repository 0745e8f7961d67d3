"""Training Focus's router on a GPU: the soft gates' kernels checked, then timed forward and backward.

``python -m benchmarks.gpu_focus_training --json FILE --parts check`` checks every kind of call, outputs and gradients,
against the plain formula in double precision (NaN fails). ``--parts layer`` times one layer of SmolLM2's shape forward
and backward against the chunks that were used before (where their arrays fit) and against dense attention, all of them
once a repeat in an order that rotates; ``step`` times whole training steps of a model of SmolLM2's shape with random
weights, on the chunks and on the kernels.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu_focus_prefill import clock, flash_there
from benchmarks.gpu_focus_training_checks import check_all, make_call, plain
from benchmarks.gpu_model_lines import KERNELS
from benchmarks.gpu_options import Options, count, numbers, some_of
from benchmarks.gpu_record import Recording
from focus_core.benchmark.prefill import rotated, spread
from focus_core.kernels.focus.soft import LogAgreement, soft_attention
from focus_core.kernels.focus.triton_soft import soft_triton

PARTS = ("check", "layer", "step")
SOURCES = ("focus_core/kernels/focus/soft.py", "focus_core/kernels/focus/triton_soft", "focus_core/variants/focus.py")
GROUPS, LOOKS, WINDOW, SINKS = 16, 4, 128, 4
SIZES = {"heads": 9, "kv": 3, "dim": 64, "groups": GROUPS, "looks": LOOKS, "window": WINDOW}
SHAPE = SIZES | {"routers": 3, "held": 1, "layout": "tokens", "sinks": SINKS}
MASK: dict[str, Any] = {"groups": GROUPS, "query_topk": LOOKS, "key_topk": 1, "window": WINDOW, "sinks": SINKS}
DENSE = ("fa4", "cudnn", "fa2")
CHECKED = 1024
GATES = {False: "soft", True: "straight_through"}
STEPS = (
    (2048, "soft", ("chunked", "auto")),
    (4096, "soft", ("chunked", "auto")),
    (8192, "soft", ("chunked", "auto")),
    (8192, "straight_through", ("auto",)),
    (32768, "soft", ("auto",)),
)
"""Tokens of a window, the gate, and the backends that are timed."""


def peak_mb(run: Callable[[], Any]) -> float:
    """Most memory that a run takes beyond what is held before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def ways(call: list[Any], settings: dict[str, Any]) -> dict[str, tuple[Callable[[], Any], list[Any]]]:
    """Every way to compute a layer forward, and what its backward pass gives gradients of."""
    q, k, v = call[:3]
    options = {name: settings[name] for name in ("window", "sinks", "scale")}
    gate = LogAgreement(call[3], call[4], settings["key_topk"], settings["floor"])
    found: dict[str, tuple[Callable[[], Any], list[Any]]] = {
        "focus": (lambda: soft_triton(*call, **settings), call),
        "chunked": (lambda: soft_attention(q, k, v, add=gate, **options, backend="chunked"), call),
    }
    for name in DENSE if flash_there() else DENSE[1:]:
        found[name] = (functools.partial(KERNELS[name], q, k, v, settings["scale"]), call[:3])
    return found


def layer(tokens: int, hard: bool, repeats: int) -> dict[str, Any]:
    """The row of one layer's forward and backward: every way to compute it, interleaved."""
    call, settings = make_call(SHAPE | {"keys": tokens, "hard": hard}, "cuda")
    call = [x.detach().requires_grad_() for x in call]
    pull = torch.randn_like(call[0])
    row: dict[str, Any] = {"method": "training", "phase": "training", "what": "layer", "gate": GATES[hard]}
    row |= {"tokens": tokens, "batch": 1, **SIZES, "dtype": "bfloat16", "not_run": {}}
    runs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    memory: dict[str, float] = {}
    for name, (ahead, inputs) in ways(call, settings).items():

        def both(ahead=ahead, inputs=inputs):
            torch.autograd.grad(ahead(), inputs, pull)

        try:
            both()
            memory[name] = peak_mb(both)
            runs[name] = (ahead, both)
        except torch.OutOfMemoryError:
            row["not_run"][name] = "out of memory"
        except Exception as problem:
            if name == "focus":
                raise
            # A kernel that has no backward of this shape must not hide the others.
            row["not_run"][name] = f"{type(problem).__name__}: {problem}".partition("\n")[0][:200]
        torch.cuda.empty_cache()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name in rotated(list(runs), repeat):
            times[name].append((clock(runs[name][0]), clock(runs[name][1])))
    row |= against(times, memory)
    if tokens == CHECKED:
        wide = [x.detach().double().requires_grad_() for x in call]
        wanted = torch.autograd.grad(plain(*wide, **settings), wide, pull.double())
        got = torch.autograd.grad(soft_triton(*call, **settings), call, pull)
        errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(got, wanted, strict=True)]
        row["error"] = max(errors)
    return row


def against(times: dict[str, list[tuple[float, float]]], memory: dict[str, float]) -> dict[str, Any]:
    """Fields of a row: milliseconds (forward, forward and backward) of each way, and ``focus`` against the others."""
    row: dict[str, Any] = {}
    mine = [both for _, both in times["focus"]]
    for name, pairs in times.items():
        lead = "" if name == "focus" else f"{name}_"
        row |= {f"{lead}forward_ms": spread([a for a, _ in pairs]), f"{lead}ms": spread([b for _, b in pairs])}
        row[f"{lead}extra_mb"] = memory[name]
        if name != "focus":
            row[f"against_{name}"] = statistics.median(b / own for (_, b), own in zip(pairs, mine, strict=True))
    dense = [name for name in DENSE if name in times]
    if dense:
        row["baseline"] = min(dense, key=lambda name: row[f"{name}_ms"]["median"])
        row["speedup"] = row[f"against_{row['baseline']}"]
    return row


def training_step(tokens: int, gate: str, backends: tuple[str, ...], repeats: int) -> dict[str, Any]:
    """The row of optimizer steps of the router of a model of SmolLM2's shape with random weights, one window each."""
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
    ids = torch.randint(0, 49152, (1, tokens), device="cuda")

    def step(variant: Any) -> None:
        optimizer.zero_grad()
        meter.reset()
        loss, _ = routed(ids, variant, meter)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(adapter.parameters(), 1.0)
        optimizer.step()

    row: dict[str, Any] = {"method": "training", "phase": "training", "what": "step", "gate": gate, "tokens": tokens}
    row |= {"batch": 1, "layers": facts.layers, "dtype": "bfloat16", **SIZES, "not_run": {}}
    times: dict[str, list[float]] = {}
    for backend in backends:
        lead = "" if backend == "auto" else f"{backend}_"
        run = functools.partial(step, make("focus", MASK | {"gate": gate, "temperature": 0.1, "backend": backend}))
        try:
            run()
            row[f"{lead}extra_mb"] = peak_mb(run)
            times[backend] = [clock(run) for _ in range(repeats)]
            row[f"{lead}ms"] = spread(times[backend])
            row[f"{lead}tokens_per_s"] = tokens / statistics.median(times[backend]) * 1e3
        except torch.OutOfMemoryError:
            if backend == "auto":
                raise
            row["not_run"][backend] = "out of memory"
        optimizer.zero_grad()
        torch.cuda.empty_cache()
    if "chunked" in times:
        row["against_chunked"] = statistics.median(times["chunked"]) / statistics.median(times["auto"])
    row["finite"] = all(bool(x.isfinite().all()) for x in adapter.parameters())
    return row


def compiled(part: str) -> str:
    """Run a part's kernels once on a short text, so that the main process finds them on disk; what it could not run."""
    try:
        if part == "step":
            training_step(512, "soft", ("auto",), 1)
        else:
            call, settings = make_call(SHAPE | {"keys": 512}, "cuda")
            call = [x.detach().requires_grad_() for x in call]
            ahead, inputs = ways(call, settings)[part]
            torch.autograd.grad(ahead(), inputs, torch.randn_like(call[0]))
            torch.cuda.synchronize()
    except Exception as problem:
        # The row says it where it counts.
        return f"{part}: {type(problem).__name__}: {problem}"[:300]
    return ""


def main() -> None:
    """Check, time and write."""
    parser = Options(__doc__)
    parser.add_argument("--parts", type=some_of(PARTS), default="check,layer,step", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--repeats", type=count, default=7)
    parser.add_argument("--lengths", type=numbers(), default="1024,8192,32768", help="of the layer")
    chosen = parser.ready()
    parts, lengths = chosen.parts, chosen.lengths
    about = (
        "The soft gates that train Focus's router, forward and backward, by kernels that hold no array of all pairs: "
        "beside the chunks used before and dense attention."
    )
    begun = time.perf_counter()

    def tell(what: str) -> None:
        print(f"# {time.perf_counter() - begun:.0f} s: {what}", flush=True)

    record = Recording(chosen.json, about, SOURCES)
    if "check" in parts:
        record.check(*check_all(min(16, os.cpu_count() or 1)))
    if {"layer", "step"} & set(parts):
        # What flash-attn-4 compiles is kept on disk for the other processes.
        os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
        wanted = [name for name in ("fa4", "focus", "step") if name != "fa4" or flash_there()]
        with multiprocessing.get_context("spawn").Pool(len(wanted)) as pool:
            for problem in filter(None, pool.imap_unordered(compiled, wanted)):
                tell(problem)
        tell("compiled")
    for tokens in lengths if "layer" in parts else []:
        record.add(layer(tokens, False, chosen.repeats))
    if "layer" in parts:
        record.add(layer(8192, True, chosen.repeats))
        tell("layers timed")
    for tokens, gate, backends in STEPS if "step" in parts else ():
        record.add(training_step(tokens, gate, backends, 3))
        tell(f"steps of {tokens} tokens timed")
    sys.exit(record.failed(2e-2))


if __name__ == "__main__":
    main()
