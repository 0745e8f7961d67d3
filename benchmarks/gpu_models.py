"""Whole models on a GPU: prefill and decode with dense attention and with the variants, and attention's share of it.

``python -m benchmarks.gpu_models --json FILE`` checks that Focus with every pair kept is dense attention, then times.
Processes compile first, one a line, while the first model is made. Each repeat runs every line once, in an order that
rotates: one prefill (logits of the last token alone), then tokens one at a time from its cache, each waited for as
``generate`` does; eager, no CUDA graph. The cache is transformers' own, which copies all keys and values for each
token. Then more tokens from the same cache, given room, with one CUDA graph a token (``gpu_model_graphs``). Attention's
time is taken by events around it in the same runs, the variants' routing, plan and merge included. Ratios of kernels
are not ratios of serving: every row has both.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_focus_prefill import flash_there
from benchmarks.gpu_model_compile import compiling
from benchmarks.gpu_model_graphs import graph_checks, graph_rows
from benchmarks.gpu_model_lines import Line, Subject, llama_shape, smollm2
from benchmarks.gpu_model_runs import Runner, checks, shortened
from benchmarks.gpu_options import Options, count, loaded, numbers, some_of
from benchmarks.gpu_record import Recording, say
from focus_core.benchmark.prefill import rotated, spread
from focus_core.errors import FocusError
from focus_core.evaluation.sources import ROOT

MODELS = ("smollm2", "llama")
REPEATS = 5
STEPS = 8
"""Tokens that are decoded after each prefill."""
WARM_LAYERS = 1
SHOWN = {"model", "tokens", "phase", "line", "kernel", "ms", "attention_ms", "attention_share", "append_ms", "speedup"}
SHOWN |= {"attention_speedup", "pair_limit", "peak_gb", "left_out", "kernels_ms", "refused", "without_attention_ms"}
BEGUN = time.perf_counter()


def tell(what: str) -> None:
    """Where the run stands, with the seconds since it began."""
    print(f"# {time.perf_counter() - BEGUN:.1f} s: {what}", flush=True)


def measure(
    runner: Runner, tokens: int, repeats: int, until: float = float("inf"), tell: Callable[[str], None] = tell
) -> Iterator[list[dict[str, Any]]]:
    """Rows of one length after each repeat: each line's prefill and decode; one that cannot run has one that says why.

    Args:
        runner: the model.
        tokens: the length.
        repeats: how often each line runs.
        until: when the run should have ended, by ``time.perf_counter``: no repeat but the first starts that would not.
        tell: is told where it stands.
    """
    subject = runner.subject
    shared = {"method": "model", "model": subject.name, **subject.shape, **subject.about}
    shared |= {"tokens": tokens, "batch": 1, "positions": subject.stretch(subject.model, tokens)}
    lines, left, counted = [], [], {}
    for line in subject.lines:
        try:
            kept, layers = runner.kept_pairs(line, tokens)
            # All was compiled before: one layer at the full length loads it and takes the memory.
            with shortened(subject.model, WARM_LAYERS):
                runner.run(line, tokens)
        except (FocusError, torch.OutOfMemoryError) as error:
            left.append({**shared, "line": line.name, **line.about, "left_out": str(error).partition("\n")[0]})
            continue
        lines.append(line)
        if line.variant is not None:
            counted[line.name] = {"kept_pairs": kept, "pair_limit": 1 / kept, "counted_layers": layers}
        tell(f"{subject.name}, {tokens:,} tokens, {line.name}: warm")
    times: dict[Line, list[dict[str, Any]]] = {line: [] for line in lines}
    took = 0.0
    for repeat in range(repeats):
        begun = time.perf_counter()
        if repeat and begun + took > until:
            tell(f"no time for repeat {repeat + 1}")
            break
        for line in rotated(lines, repeat):
            times[line].append(runner.run(line, tokens))
            tell(f"{subject.name}, {tokens:,} tokens, {line.name}: repeat {repeat + 1}")
        took = time.perf_counter() - begun
        yield left + _rows(times, shared, counted)


def _rows(times: dict[Line, list[dict[str, Any]]], shared: dict[str, Any], counted: dict[str, Any]) -> list[Any]:
    """The rows of the lines that ran: prefill, then decode."""
    rows = []
    for phase in ("prefill", "decode"):
        done = {line: found for line, found in times.items() if phase in found[0]}
        dense = [line for line in done if line.variant is None]
        best = min(dense, key=lambda line: statistics.median(_each(times[line], phase, "ms")))
        for line, found in done.items():
            row = {**shared, "phase": phase, "line": line.name, **line.about, **counted.get(line.name, {})}
            row["baseline"] = best.kernels[phase == "decode"]
            if line.variant is None:
                row["kernel"] = line.kernels[phase == "decode"]
            rows.append(row | {"repeats": len(found)} | _row(found, times[best], phase))
    return rows + graph_rows(times, shared, counted)


def _row(mine: list[dict[str, Any]], dense: list[dict[str, Any]], phase: str) -> dict[str, Any]:
    """Times of one line, and against dense in the same repeat: the whole, and attention alone."""
    ms, inside = (_each(mine, phase, name) for name in ("ms", "attention_ms"))
    base, base_inside = (_each(dense, phase, name) for name in ("ms", "attention_ms"))
    every = _flat(mine, phase, "ms")
    row: dict[str, Any] = {
        "ms": spread(every),
        "attention_ms": spread(_flat(mine, phase, "attention_ms")),
        "attention_share": statistics.median(a / b for a, b in zip(inside, ms, strict=True)),
        "dense_ms": spread(_flat(dense, phase, "ms")),
        "dense_attention_ms": spread(_flat(dense, phase, "attention_ms")),
        "dense_attention_share": statistics.median(a / b for a, b in zip(base_inside, base, strict=True)),
        "speedup": statistics.median(b / a for a, b in zip(ms, base, strict=True)),
        "attention_speedup": statistics.median(b / a for a, b in zip(inside, base_inside, strict=True)),
    }
    for name in ("peak_gb", "cache_gb"):
        if name in mine[0][phase]:
            row[name] = max(one[phase][name] for one in mine)
    if phase == "decode":
        row["append_ms"] = spread(_flat(mine, phase, "append_ms"))
        row["cuda_graph"] = False
    return row


def _each(runs: list[dict[str, Any]], phase: str, name: str) -> list[float]:
    """One number a repeat: of decoded tokens their median."""
    found = [one[phase][name] for one in runs]
    return [statistics.median(x) if isinstance(x, list) else x for x in found]


def _flat(runs: list[dict[str, Any]], phase: str, name: str) -> list[float]:
    found = [one[phase][name] for one in runs]
    return [x for part in found for x in (part if isinstance(part, list) else [part])]


def dense_kernels(device: str) -> tuple[str, str]:
    """The strongest dense kernels: of prefill, and of decode, where cuDNN would plan at every length."""
    if device == "cpu":
        return ("torch", "torch")
    return ("fa4" if flash_there() else "cudnn", "fa2")


def sources() -> list[str]:
    """The files and folders of the kernels that run on a GPU."""
    found: list[Path] = []
    for name in ("focus", "block_sparse", "xattention"):
        folder = ROOT / "focus_core" / "kernels" / name
        found += [*folder.glob("triton*"), *folder.glob("flash*")]
    steps = ("kernels/dense_steps.py", "kernels/step_rows.py", "routing/triton_sets.py")
    found += [ROOT / "focus_core" / name for name in steps]
    return [str(path.relative_to(ROOT)) for path in sorted(found) if path.suffix in ("", ".py")]


def main() -> None:
    """Check, time and write."""
    parser = Options(__doc__)
    parser.add_argument("--models", type=some_of(MODELS), default=",".join(MODELS))
    parser.add_argument("--model", default="smollm2", help="where SmolLM2 is, as load_model takes it")
    parser.add_argument("--lengths", type=numbers(), default="32768,131072")
    parser.add_argument("--repeats", type=count, default=REPEATS, help="of each length")
    parser.add_argument("--steps", type=count, default=STEPS, help="tokens that are decoded after each prefill")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=count, help="layers of the random model, where not all are wanted")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no repeat that would end later")
    chosen = parser.ready()
    lengths, names = chosen.lengths, chosen.models
    about = (
        "Whole models with dense attention and with the variants, prefill and decode of one sequence, eager. "
        "attention_ms is by events around attention in the same runs (routing, plan and merge included); append_ms is "
        "what appending a token to transformers' cache takes, which copies all of it. 'decode as a graph' is one CUDA "
        "graph a token in a cache with room, dense too; attention_ms is there what leaving attention out saves. "
        "speedup is the whole model's, attention_speedup attention's alone."
    )
    tell("imported")
    kernels = dense_kernels(chosen.device)
    sizes = {"num_hidden_layers": chosen.layers} if chosen.layers else None
    makers = {
        "smollm2": lambda: smollm2(chosen.model, lengths, chosen.device, kernels),
        "llama": lambda: llama_shape(lengths, chosen.device, kernels, sizes),
    }
    on_gpu = chosen.device == "cuda"
    # Processes compile while the first model is made here.
    with compiling(names, lengths, kernels) if on_gpu else contextlib.nullcontext() as pool:
        record = Recording(chosen.json, about, sources(), chosen.device)
        subject: Subject | None = loaded(makers[names[0]])
        tell("the first model is there")
        for said in pool or ():
            tell(said)
    for name in names:
        if subject is None:
            subject = loaded(makers[name])
            tell(f"{name} is there")
        runner, subject = Runner(subject, chosen.steps), None
        found, given = checks(runner, kernels), runner.subject
        rounding = found[0]["two_dense_kernels"]
        record.check(*found, *graph_checks(given.model, given.ids, given.lines, given.name, rounding))
        tell("checked")
        for tokens in lengths:
            first, rows = len(record.found["rows"]), []
            for rows in measure(runner, tokens, chosen.repeats, BEGUN + chosen.seconds):
                record.replace(first, *rows)
            for row in rows:
                say({field: row[field] for field in row if field in SHOWN})
        del runner, given
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
    sys.exit(record.failed())


if __name__ == "__main__":
    main()
