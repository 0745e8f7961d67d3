"""Focus on a GPU: checked against the reference, then timed beside the strongest dense attention of the card.

``python -m benchmarks.gpu_focus --json FILE`` checks every kind of call (NaN fails), and times prefill; decoding has a
programme of its own, ``benchmarks.gpu_focus_decode``.
Each repeat runs every candidate once, in an order that rotates. Plan, sort, gather and merge are in the time; the error
of each timed row is that of some of its queries against a computation in double precision. ``--parts`` chooses.
Without flash-attn-4 (requirements-gpu.txt) it is left out, and the record says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

import torch

from benchmarks.gpu_focus_checks import check_all, group_sets
from benchmarks.gpu_focus_prefill import flash_there, prefill, quiet, sampled_error, warm_all
from benchmarks.gpu_options import Options, count, some_of
from benchmarks.gpu_record import Recording, say
from focus_core.kernels.focus import focus_attention

SOURCES = ("focus_core/kernels/focus/triton", "focus_core/kernels/focus/flash")
PARTS = ("check", "crossover", "short", "middle", "directed", "far", "long")
SINKS = 0
_AIM_128 = 11

_MHA64, _MHA128 = {"heads": 12, "kv": 12, "dim": 64}, {"heads": 8, "kv": 8, "dim": 128}
_GQA = {"heads": 32, "kv": 8, "dim": 128, "routers": 8}
PREFILL: dict[str, list[dict[str, Any]]] = {
    "crossover": [
        {**shape, "tokens": n, "groups": [16]} for n in (2048, 4096, 8192, 16384) for shape in (_MHA64, _MHA128)
    ],
    "short": [{**shape, "tokens": 32768, "groups": [16]} for shape in (_MHA64, _MHA128)],
    "middle": [{**shape, "tokens": 131072, "groups": [16]} for shape in (_MHA64, _MHA128)],
    "directed": [{**_GQA, "tokens": 131072, "groups": [16], "looks": 4}],
    "long": [
        {**_MHA64, "tokens": 1 << 20, "groups": [16, 8]},
        {**_MHA128, "tokens": 1 << 20, "groups": [16], "dense": ["fa4", "cudnn"]},
    ],
}


def far_offsets(backend: str) -> list[dict[str, Any]]:
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
        out = focus_attention(*call, window=64, backend=backend, members=(1, 1))
        error = sampled_error(call, 64, 0, out)
        row = {"what": "offsets", "backend": backend, "by_token": by_token, "numbers": parts[0].numel(), "error": error}
        last = focus_attention(parts[0][:, :, -1:], *parts[1:], sets[..., -1:], sets, window=64, backend="triton")
        row["decode_error"] = float((last - out[:, :, -1:]).float().norm() / last.float().norm())
        rows.append(row | {"good": error < 1.5e-2 and row["decode_error"] < 1.5e-2})
        say(rows[-1])
        del parts, call, out, last
        torch.cuda.empty_cache()
    return rows


def why(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The reason where 8 heads x 128 miss their aim at 131,072 tokens: what each pass would take at its own bound."""
    wanted = {**_MHA128, "tokens": 131072, "groups": 16, "looks": 1}
    rows = [row for row in rows if wanted.items() <= row.items() and "ms_graph" in row]
    row = next((row for row in rows if row.get("kept", True)), None)
    if row is None or row["speedup_graph"] >= _AIM_128:
        return {}
    ms, stages = row["ms_graph"]["median"], row["stages_ms"]
    dense = row[f"{row['baseline_graph']}_graph_ms"]["median"]
    every = row["tokens"] / 2
    far = dense / row["groups"] * (1 - row["window"] / every)
    operand = row["tokens"] * row["heads"] * row["dim"] * 2 / 1e9
    rate = 6 * operand / stages["gather"] * 1e3
    others = ", ".join(f"{other['design']} {other['ms_graph']['median']:.2f}" for other in rows if other is not row)
    return {
        "focus-131k-128": f"{_AIM_128}x leaves {dense / _AIM_128:.2f} ms as a graph, and {ms:.2f} are taken. The pairs "
        f"of the groups alone take {far:.2f} at dense attention's rate; the group pass takes "
        f"{stages['group_pass']:.2f}. Sorted copies of q, k and v read and write {6 * operand:.2f} GB in "
        f"{stages['gather']:.2f} ms, {rate:,.0f} GB/s, the memory's rate. The window pass reads q, k, v and the "
        f"groups' result and writes the output, {5 * operand:.2f} GB, which alone take {5 * operand / rate * 1e3:.2f}; "
        f"with the window's products and the merge it takes {stages['near_pass']:.2f}. The other design: {others}."
    }


def main() -> None:
    """Check, time and write."""
    parser = Options(__doc__)
    parser.add_argument("--parts", type=some_of(PARTS), default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--repeats", type=count, default=7)
    parser.add_argument("--long-repeats", type=count, default=5)
    parser.add_argument("--slow-repeats", type=count, default=1, help="runs of cuDNN and FlashAttention-2 at a million")
    chosen = parser.ready()
    parts = chosen.parts
    quiet()
    about = "Focus beside dense attention, forward, bf16."
    if "long" in parts:
        about += (
            f" At a million tokens cuDNN and FlashAttention-2 run {chosen.slow_repeats} time(s), without warming up."
        )
    if not flash_there():
        about += " flash-attn-4 was not installed and is not measured."
    record = Recording(chosen.json, about, SOURCES)
    workers = max(1, min(14, (os.cpu_count() or 2) - 2))
    with torch.no_grad():
        if "check" in parts:
            checks = check_all(workers, flash_there())
            record.check(*checks)
            print(f"{sum(row['good'] for row in checks)} of {len(checks)} checks hold", flush=True)
            errors = [row["error"] for row in checks if "error" in row]
            print("largest relative error", max(errors, default=None), flush=True)
        shapes = [shape for part in PREFILL if part in parts for shape in PREFILL[part]]
        if shapes:
            warm_all(shapes, workers)
        for part in PREFILL:
            if part not in parts or part == "long":
                continue
            for shape in PREFILL[part]:
                record.add(*prefill(shape, chosen.repeats))
                torch.cuda.empty_cache()
        for backend in ("triton", "flash") if "far" in parts else ():
            if backend == "triton" or flash_there():
                record.check(*far_offsets(backend))
        # Minutes: last, so that what a time limit cuts is only this.
        for shape in PREFILL["long"] if "long" in parts else []:
            record.add(*prefill(shape, chosen.long_repeats, chosen.slow_repeats))
            torch.cuda.empty_cache()
        record.found["why"] = why(record.found["rows"])
        record.add()
    sys.exit(record.failed(1.5e-2))


if __name__ == "__main__":
    main()
