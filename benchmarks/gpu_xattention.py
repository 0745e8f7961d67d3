"""XAttention on a GPU: checked against the reference, then timed beside the strongest dense attention.

``python -m benchmarks.gpu_xattention --json FILE`` checks every kind of call and times the choice of blocks and ways of
attention over them, eager and as CUDA graphs, on activations of the shipped model; longer texts than the model knows
are read by YaRN. Each repeat runs every candidate once, in an order that rotates. Errors are those of sampled rows
against double precision over the kept blocks. ``--parts`` chooses, ``tune`` (all tiles) and ``flex`` (FlexAttention)
too; ``--activations random`` needs no model, and ``--device cpu`` with TRITON_INTERPRET=1 only tries the programme out.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_xattention_tune as tune
from benchmarks.gpu_record import Recording
from benchmarks.gpu_xattention_checks import check_all, check_flash
from benchmarks.gpu_xattention_inputs import Activations, random_inputs
from benchmarks.gpu_xattention_needles import CASES, needles
from benchmarks.gpu_xattention_totals import FORMS, totals, why
from benchmarks.gpu_xattention_ways import (
    BLOCK,
    dense_runs,
    flex_ways,
    interleaved,
    ratio,
    score_alone,
    sparse_ways,
)
from focus_core.benchmark.inputs import Inputs
from focus_core.benchmark.prefill import peak_bytes, spread
from focus_core.kernels.xattention import causal_block_mask, xattention_block_mask

SOURCES = tuple(f"focus_core/kernels/{name}" for name in ("xattention", "xattention/triton", "block_sparse"))
PARTS = ("check", "real", "needle", "synthetic")
STRIDE, THRESHOLD = 16, 0.9
SAMPLED = 24


def chosen_blocks(form: str, q: Any, k: Any) -> Any:
    """The kept blocks of one of the two forms."""
    settings: dict[str, Any] = {"block_size": BLOCK, "stride": STRIDE, "threshold": THRESHOLD, "backend": "triton"}
    if form == "own":
        return xattention_block_mask(q, k, **settings)
    return causal_block_mask(q, k, q.shape[2], **settings)


def _whole(way: Callable[..., Any], form: str, q: Any, k: Any, v: Any) -> Any:
    return way(q, k, v, chosen_blocks(form, q, k))


def density(mask: Any, tokens: int) -> float:
    """Kept pairs of all causal ones."""
    rows = torch.full(mask.shape[2:3], BLOCK, device=mask.device)
    rows[-1] = tokens - (mask.shape[2] - 1) * BLOCK
    earlier = (mask.tril(-1).sum(-1) * rows * BLOCK).sum()
    own = (mask.diagonal(dim1=2, dim2=3) * (rows * (rows + 1) // 2)).sum()
    return float(earlier + own) / (mask.shape[0] * mask.shape[1] * tokens * (tokens + 1) / 2)


def sampled(q: Any, k: Any, v: Any, mask: Any, outs: dict[str, Any], at: Any = None) -> dict[str, Any]:
    """Some rows in double precision: each output's error over the kept blocks, and what the kept blocks hold."""
    tokens, share = q.shape[2], q.shape[1] // k.shape[1]
    rows = torch.linspace(tokens // 64, tokens - 1, SAMPLED, device=q.device).long() if at is None else at
    columns = torch.arange(tokens, device=q.device)
    wrong, whole = dict.fromkeys([*outs, "dense"], 0.0), 0.0
    dense_whole, recalls = 0.0, []
    for h in range(q.shape[1]):
        values = v[0, h // share].double()
        scores = q[0, h, rows].double() @ k[0, h // share].double().T / math.sqrt(q.shape[3])
        scores.masked_fill_(columns > rows[:, None], -math.inf)
        kept = mask[0, h, rows // BLOCK].repeat_interleave(BLOCK, 1)[:, :tokens]
        weights = scores.softmax(-1)
        recalls.append((weights * kept).sum(-1))
        dense = weights @ values
        wanted = scores.masked_fill_(~kept, -math.inf).softmax(-1) @ values
        for name, out in outs.items():
            wrong[name] += float((out[0, h, rows].double() - wanted).square().sum())
        wrong["dense"] += float((wanted - dense).square().sum())
        whole += float(wanted.square().sum())
        dense_whole += float(dense.square().sum())
    recall = torch.stack(recalls)
    return {
        "errors": {name: math.sqrt(wrong[name] / whole) for name in outs},
        "change_from_dense": math.sqrt(wrong["dense"] / dense_whole),
        "recall": float(recall.mean()),
        "recall_p10": float(recall.flatten().quantile(0.1)),
        "recall_of_worst_head": float(recall.mean(1).min()),
    }


def measure(
    one: Inputs, about: dict[str, Any], repeats: int, ways: dict[str, Callable[..., Any]], given: Any = None
) -> dict[str, Any]:
    """One layer: dense kernels, the choice, each way over the chosen (or ``given``) blocks, and the whole."""
    q, k, v = one.query, one.key, one.value
    device, tokens = q.device.type, q.shape[2]
    runs = dense_runs(q, k, v)
    kernels = list(runs)
    masks = {form: chosen_blocks(form, q, k) for form in FORMS} if given is None else {"given": given}
    form = next(iter(masks))
    for name in FORMS:
        runs[f"select_{name}"] = functools.partial(chosen_blocks, name, q, k)
    runs["score"] = score_alone(q, k, functools.partial(chosen_blocks, "own"))
    for name, way in ways.items():
        runs[name] = functools.partial(way, q, k, v, masks[form])
        for each in FORMS if given is None else ():
            runs[f"whole_{each}_{name}"] = functools.partial(_whole, way, each, q, k, v)
    times, failed = interleaved(runs, repeats, device, graphs=True)
    middle = {name: statistics.median(found) for name, found in times.items()}
    row: dict[str, Any] = {
        **about,
        "method": "xattention",
        "layer": one.layer,
        "tokens": tokens,
        "heads": q.shape[1],
        "kv": k.shape[1],
        "dim": q.shape[3],
        "stride": STRIDE,
        "threshold": THRESHOLD,
        "repeats": repeats,
        "densities": {name: density(mask, tokens) for name, mask in masks.items()},
        "all_ms": {name: spread(found) for name, found in times.items()},
        "score_flops": q.shape[1] * (tokens / STRIDE) ** 2 * STRIDE * q.shape[3],
        "not_run": failed,
    }
    for suffix in ("", "_graph"):
        best = min((name for name in kernels if name + suffix in times), key=lambda n: middle[n + suffix], default="")
        if best:
            dense = times[best + suffix]
            row[f"baseline{suffix}"] = best
            row[f"select_share{suffix}"] = {
                each: ratio(dense, times[f"select_{each}{suffix}"]) ** -1
                for each in FORMS
                if f"select_{each}{suffix}" in times
            }
            # Dense attention's time a pair over this one's: 1 is as fast.
            row[f"speed{suffix}"] = {
                name: ratio(dense, times[name + suffix]) * row["densities"][form]
                for name in ways
                if name + suffix in times
            }
    outs = {name: runs[name]() for name in ways if name in times}
    row |= sampled(q, k, v, masks[form], outs)
    if given is None:
        row["recall_before"] = sampled(q, k, v, masks["before"], {})["recall"]
        unit = 2 * q.nbytes + 2 * k.nbytes
        for name in [name for name in ways if name in times]:
            used = peak_bytes(runs[f"whole_own_{name}"], device) - q.nbytes
            row |= {f"extra_over_qkvo_{name}": used / unit, f"extra_mb_{name}": used / 2**20}
    return row


def flex_rows(one: Inputs, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """FlexAttention over the same blocks, one backend after the other: each takes its time to compile, and may fail."""
    q, k, v = one.query, one.key, one.value
    runs = dense_runs(q, k, v)
    runs = {name: runs[name] for name in list(runs)[:1]}
    name = next(iter(runs))
    mask = chosen_blocks("own", q, k)
    kept = density(mask, q.shape[2])
    shape = {"tokens": q.shape[2], "heads": q.shape[1], "kv": k.shape[1], "dim": q.shape[3], "layer": one.layer}
    about = {**about, "method": "xattention", "phase": "prefill", "form": "own", "kept": False, **shape}
    for design, way in flex_ways().items():
        row = {**about, "stride": STRIDE, "threshold": THRESHOLD, "design": design, "density": kept}
        both = runs | {"whole": functools.partial(_whole, way, "own", q, k, v)}
        times, failed = interleaved(both, 5, q.device.type)
        if failed:
            yield row | {"not_run": failed}
            continue
        row |= {"ms": spread(times["whole"]), f"{name}_ms": spread(times[name]), "baseline": name}
        row["speedup"] = row[f"against_{name}"] = ratio(times[name], times["whole"])
        row |= {"pair_limit": 1 / kept, "share_of_limit": row["speedup"] * kept}
        yield row | {"error": sampled(q, k, v, mask, {design: way(q, k, v, mask)})["errors"][design]}


def synthetic(tokens: int, device: str, repeats: int, shape: tuple[int, int, int], kept: float) -> dict[str, Any]:
    """Random q, k, v and random kept blocks in a large model's shape: the kernels' speed, not the method's."""
    one = random_inputs(*shape, tokens, device, torch.bfloat16 if device == "cuda" else torch.float16)
    rows = -(-tokens // BLOCK)
    generator = torch.Generator(device).manual_seed(7)
    mask = torch.rand(1, shape[0], rows, rows, generator=generator, device=device) < kept
    mask |= torch.eye(rows, dtype=torch.bool, device=device)
    mask &= torch.ones(rows, rows, dtype=torch.bool, device=device).tril()
    about = {"what": "synthetic", "activations": "random, and random blocks: the kernels' ratio alone"}
    return measure(one, about, repeats, sparse_ways(False), mask)


def main() -> None:
    """Check, tune, time and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--model", "--model-dir", default="smollm2", help="what load_model takes")
    parser.add_argument("--activations", choices=("model", "random"), default="model")
    parser.add_argument("--lengths", default="8192,32768,131072")
    parser.add_argument("--layers", default="2,8,15,22,28")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    chosen = parser.parse_args()
    parts, device = chosen.parts.split(","), chosen.device
    lengths = [int(n) for n in chosen.lengths.split(",")]
    layers = [int(n) for n in chosen.layers.split(",")]
    record = Recording(chosen.json, "XAttention's GPU kernels beside dense attention.", SOURCES, device)
    with torch.no_grad():
        if "check" in parts:
            record.check(*check_all(max(1, min(14, (os.cpu_count() or 2) - 2))), *check_flash())
            checks = record.found["checks"]
            print(f"{sum(row['good'] for row in checks)} of {len(checks)} checks hold", flush=True)
        model = None
        if chosen.activations == "model" and {"tune", "real", "needle", "flex"} & set(parts):
            model = Activations(chosen.model, device, "bfloat16" if device == "cuda" else "float16", layers)
        if "tune" in parts:
            tune.warm(max(1, min(14, (os.cpu_count() or 2) - 2)))
        real = []
        for tokens in lengths if {"tune", "real", "needle", "flex"} & set(parts) else []:
            longest = tokens == max(lengths)
            if model is None:
                dtype = torch.bfloat16 if device == "cuda" else torch.float16
                some = [random_inputs(9, 3, 64, tokens, device, dtype, layer) for layer in layers]
                about = {"activations": "random, neighbours alike"}
            else:
                some, about = model.at(tokens)
            if longest and "tune" in parts:
                record.add(*tune.pick(some[len(some) // 2], chosen_blocks, device))
            for one in some if "real" in parts else []:
                real.append(measure(one, about, chosen.repeats, sparse_ways(longest and device == "cuda")))
                record.add(real[-1])
            if longest and "needle" in parts:
                for one in some[1::2]:
                    for run, keys in CASES:
                        record.add(needles(one, about, run, keys, chosen_blocks, sparse_ways(False)["triton"]))
            if longest and "flex" in parts:
                for row in flex_rows(some[len(some) // 2], about):
                    record.add(row)
            del some
        if real:
            means = totals(real)
            record.found["why"] = why(means)
            record.add(*means)
        if "synthetic" in parts:
            record.add(
                synthetic(max(lengths), device, chosen.repeats, (32, 8, 128) if device == "cuda" else (4, 2, 32), 0.1)
            )
    wrong = any(not error < 1.5e-2 for row in record.found["rows"] for error in row.get("errors", {}).values())
    sys.exit(record.failed() or wrong)


if __name__ == "__main__":
    main()
