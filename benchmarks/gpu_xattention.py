"""XAttention on a GPU: checked against the reference, then timed beside the strongest dense attention.

``python -m benchmarks.gpu_xattention --json FILE`` checks every kind of call, picks the fastest tiles, and times the
choice of blocks and three ways of attention over them on activations of the shipped model; longer texts than the model
knows are read by YaRN. Each repeat runs every candidate once, in an order that rotates. Errors are those of sampled
rows against double precision over the kept blocks. ``--parts`` chooses; ``--activations random`` needs no model, and
``--device cpu`` with TRITON_INTERPRET=1 only tries the programme out.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import gpu_xattention_tune as tune
from benchmarks.gpu_options import Options, count, loaded, numbers, some_of
from benchmarks.gpu_record import Recording
from benchmarks.gpu_xattention_checks import check_all, check_flash
from benchmarks.gpu_xattention_inputs import Activations, random_inputs
from benchmarks.gpu_xattention_ways import BLOCK, dense_runs, interleaved, ratio, sparse_ways
from focus_core.benchmark.inputs import Inputs
from focus_core.benchmark.prefill import peak_bytes, spread
from focus_core.kernels.xattention import causal_block_mask, xattention_block_mask

SOURCES = tuple(f"focus_core/kernels/{name}" for name in ("xattention", "xattention/triton", "block_sparse"))
PARTS = ("check", "tune", "real", "needle", "synthetic")
STRIDE, THRESHOLD = 16, 0.9
AIM = 0.7
"""Share of 1/density that was aimed at."""
SAMPLED = 24
FORMS = ("own", "before")
"""Whose queries choose a row's blocks: its own, as published; or those of the row before, as served."""


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


def measure(one: Inputs, about: dict[str, Any], repeats: int, flex: bool, given: Any = None) -> dict[str, Any]:
    """One layer: dense kernels, the choice, each way over the chosen (or ``given``) blocks, and the whole."""
    q, k, v = one.query, one.key, one.value
    device, tokens = q.device.type, q.shape[2]
    runs = dense_runs(q, k, v)
    kernels = list(runs)
    masks = {form: chosen_blocks(form, q, k) for form in FORMS} if given is None else {"given": given}
    form = next(iter(masks))
    for name in FORMS:
        runs[f"select_{name}"] = functools.partial(chosen_blocks, name, q, k)
    ways = sparse_ways(flex)
    for name, way in ways.items():
        runs[name] = functools.partial(way, q, k, v, masks[form])
        if name in ("triton", "flash") and given is None:
            for each in FORMS:
                runs[f"whole_{each}_{name}"] = functools.partial(_whole, way, each, q, k, v)
    graphs = [*kernels, *(name for name in runs if name.startswith(("whole_own", "select_own")))]
    times, failed = interleaved(runs, repeats, device, tuple(graphs) if given is None else ())
    middle = {name: statistics.median(found) for name, found in times.items()}
    kernels = [name for name in kernels if name in times]
    best = min(kernels, key=middle.__getitem__)
    row: dict[str, Any] = {
        **about,
        "layer": one.layer,
        "tokens": tokens,
        "heads": q.shape[1],
        "kv": k.shape[1],
        "dim": q.shape[3],
        "stride": STRIDE,
        "threshold": THRESHOLD,
        "repeats": repeats,
        "baseline": best,
        "densities": {name: density(mask, tokens) for name, mask in masks.items()},
        "ms": {name: spread(found) for name, found in times.items()},
        "not_run": failed,
    }
    row["select_share"] = {each: ratio(times[f"select_{each}"], times[best]) for each in FORMS}
    for name in ways:
        if name in times:
            row[f"{name}_speed"] = ratio(times[best], times[name]) * row["densities"][form]
    for name in [name for name in times if name.startswith("whole_") and not name.endswith("_graph")]:
        each = name.split("_")[1]
        row[f"speedup_{name[6:]}"] = ratio(times[best], times[name])
        row[f"share_of_limit_{name[6:]}"] = row[f"speedup_{name[6:]}"] * row["densities"][each]
    outs = {name: runs[name]() for name in ways if name in times}
    row |= sampled(q, k, v, masks[form], outs)
    if given is None:
        row["recall_before"] = sampled(q, k, v, masks["before"], {})["recall"]
        unit = 2 * q.nbytes + 2 * k.nbytes
        for name in [name for name in ("triton", "flash") if name in times]:
            used = peak_bytes(runs[f"whole_own_{name}"], device) - q.nbytes
            row[f"extra_over_qkvo_{name}"] = used / unit
    return row


def totals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean layer of a length, one row a form and way."""
    found = []
    for tokens in sorted({row["tokens"] for row in rows}):
        some = [row for row in rows if row["tokens"] == tokens]
        names = set.intersection(*(set(row["ms"]) for row in some))
        sums = {name: statistics.mean(row["ms"][name]["median"] for row in some) for name in names}
        kernels = [name for name in ("fa4", "cudnn", "fa2", "sdpa") if name in names]
        best = min(kernels, key=sums.__getitem__)
        ways = [way for way in ("flash", "triton") if f"whole_{FORMS[0]}_{way}" in names]
        about = {name: some[0][name] for name in some[0] if name in _OF_A_LENGTH}
        about |= {"method": "xattention", "phase": "prefill", "layers": len(some), "baseline": best}
        about |= {f"{name}_ms": {"median": sums[name], "n": some[0]["repeats"]} for name in kernels}
        for form in FORMS:
            kept = statistics.mean(row["densities"][form] for row in some)
            for way in ways:
                whole = sums[f"whole_{form}_{way}"]
                row = {**about, "form": form, "design": way, "kept": way == ways[0], "density": kept}
                row |= {"ms": {"median": whole, "n": some[0]["repeats"]}, "select_ms": sums[f"select_{form}"]}
                row |= {"select_share": sums[f"select_{form}"] / sums[best], "speedup": sums[best] / whole}
                row |= {"pair_limit": 1 / kept, "share_of_limit": sums[best] / whole * kept}
                row["stages_ms"] = {"select": sums[f"select_{form}"], "attend": whole - sums[f"select_{form}"]}
                row |= _as_graphs(sums, f"whole_{form}_{way}", kernels)
                row["error"] = max(one["errors"][way] for one in some)
                if extra := [one[f"extra_over_qkvo_{way}"] for one in some if f"extra_over_qkvo_{way}" in one]:
                    row["extra_over_qkvo"] = max(extra)
                found.append(row)
    return found


def why(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Why the aim at the longest text is missed: what choosing costs, and how fast a kept pair is."""
    found = [row for row in rows if row.get("kept") and row.get("form") == FORMS[0] and "ms_graph" in row]
    row = max(found, key=lambda row: row["tokens"], default=None)
    if row is None or row["speedup_graph"] * row["density"] >= AIM:
        return {}
    dense, whole = row[f"{row['baseline_graph']}_graph_ms"]["median"], row["ms_graph"]["median"]
    select, least = row["select_graph_ms"], dense * row["density"]
    return {
        "xattention": f"As CUDA graphs: dense {dense:.1f} ms, of which {row['density']:.1%} of the pairs are "
        f"{least:.2f}; choosing takes {select:.2f} and attention over what it keeps {whole - select:.2f}, "
        f"{least / (whole - select):.0%} of dense attention's speed a pair. Scores alone are 1/{2 * row['stride']} of "
        f"dense attention's operations, {dense / 2 / row['stride']:.2f} ms at its speed: with those and attention as "
        f"fast a pair as dense, {least / (least + dense / 2 / row['stride']):.0%} of 1/density could be reached."
    }


def _as_graphs(sums: dict[str, float], whole: str, kernels: list[str]) -> dict[str, Any]:
    """The same with everything inside CUDA graphs, where that was timed."""
    dense = {name: sums[f"{name}_graph"] for name in kernels if f"{name}_graph" in sums}
    if f"{whole}_graph" not in sums or not dense:
        return {}
    best = min(dense, key=dense.__getitem__)
    row: dict[str, Any] = {f"{name}_graph_ms": {"median": ms} for name, ms in dense.items()}
    row |= {"ms_graph": {"median": sums[f"{whole}_graph"]}, "baseline_graph": best}
    return row | {"speedup_graph": dense[best] / sums[f"{whole}_graph"], "select_graph_ms": sums["select_own_graph"]}


_OF_A_LENGTH = ("tokens", "heads", "kv", "dim", "stride", "threshold", "repeats", "activations", "rope")


def needles(one: Inputs, about: dict[str, Any], run: int) -> dict[str, Any]:
    """Keys planted deep in the text that ``run`` queries in a row look for, late in it: are their blocks kept?

    Each key points where its queries do on average, and is so long that the last of them gives it most of its weight.
    """
    q, k, v = one.query, one.key.clone(), one.value.clone()
    tokens, share = q.shape[2], q.shape[1] // k.shape[1]
    rows = torch.linspace(tokens * 0.7, tokens - BLOCK - 1, 2 * SAMPLED, device=q.device).long()
    places = torch.linspace(tokens * 0.1, tokens * 0.6, 2 * SAMPLED, device=q.device).long()
    places += torch.arange(len(places), device=q.device) * 5 % 16
    heads = torch.arange(len(places), device=q.device) % k.shape[1]
    generator = torch.Generator(q.device).manual_seed(5)
    for row, place, kv in zip(rows.tolist(), places.tolist(), heads.tolist(), strict=True):
        asks = q[0, kv * share, row - run + 1 : row + 1].double()
        toward = asks.mean(0)
        scores = asks[-1] @ k[0, kv, : row + 1].double().T / math.sqrt(q.shape[3])
        # Three above the log-sum-exp: 95 % of the last query's weight.
        size = (float(scores.logsumexp(0)) + 3) * math.sqrt(q.shape[3]) / float(asks[-1] @ toward)
        k[0, kv, place] = (toward * size).to(k.dtype)
        v[0, kv, place] = torch.randn(q.shape[3], generator=generator, device=q.device).to(v.dtype) * v.std() * 4
    row_of: dict[str, Any] = {**about, "what": "needles", "layer": one.layer, "tokens": tokens, "queries_in_a_row": run}
    for form in FORMS:
        mask = chosen_blocks(form, q, k)
        out = sparse_ways(False)["triton"](q, k, v, mask)
        full = next(iter(dense_runs(q, k, v).values()))()
        got = out[0, heads * share, rows].float()
        wanted = full[0, heads * share, rows].float()
        off = (got - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        kept = mask[0, heads * share, rows // BLOCK, places // BLOCK]
        row_of |= {
            f"kept_{form}": float(kept.float().mean()),
            f"within_5_percent_{form}": float((off < 0.05).float().mean()),
        }
        row_of[f"off_where_kept_{form}"] = float(off[kept].max()) if bool(kept.any()) else None
        row_of[f"density_{form}"] = density(mask, tokens)
    return row_of | {"needles": len(places)}


def synthetic(tokens: int, device: str, repeats: int, shape: tuple[int, int, int], kept: float) -> dict[str, Any]:
    """Random q, k, v and random kept blocks in a large model's shape: the kernels' speed, not the method's."""
    one = random_inputs(*shape, tokens, device, torch.bfloat16 if device == "cuda" else torch.float16)
    rows = -(-tokens // BLOCK)
    generator = torch.Generator(device).manual_seed(7)
    mask = torch.rand(1, shape[0], rows, rows, generator=generator, device=device) < kept
    mask |= torch.eye(rows, dtype=torch.bool, device=device)
    mask &= torch.ones(rows, rows, dtype=torch.bool, device=device).tril()
    about = {"what": "synthetic", "activations": "random, and random blocks: the kernels' ratio alone"}
    return measure(one, about, repeats, False, mask)


def main() -> None:
    """Check, tune, time and write."""
    parser = Options(__doc__)
    parser.add_argument("--parts", type=some_of(PARTS), default=",".join(PARTS))
    parser.add_argument("--model", "--model-dir", default="smollm2", help="what load_model takes")
    parser.add_argument("--activations", choices=("model", "random"), default="model")
    parser.add_argument("--lengths", type=numbers(), default="8192,32768,131072")
    parser.add_argument("--layers", type=numbers(0), default="2,8,15,22,28")
    parser.add_argument("--repeats", type=count, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-flex", action="store_true", help="leave FlexAttention's compiling out")
    chosen = parser.ready()
    parts, device = chosen.parts, chosen.device
    lengths, layers = chosen.lengths, chosen.layers
    if device == "cpu" and ("check" in parts or os.environ.get("TRITON_INTERPRET") != "1"):
        parser.refuse("On a CPU this is only tried out, with TRITON_INTERPRET=1 and --parts without check")
    record = Recording(chosen.json, "XAttention's GPU kernels beside dense attention.", SOURCES, device)
    with torch.no_grad():
        if "check" in parts:
            record.check(*check_all(max(1, min(14, (os.cpu_count() or 2) - 2))), *check_flash())
            checks = record.found["checks"]
            print(f"{sum(row['good'] for row in checks)} of {len(checks)} checks hold", flush=True)
        model = None
        if chosen.activations == "model" and {"tune", "real", "needle"} & set(parts):
            kind = "bfloat16" if device == "cuda" else "float16"
            model = loaded(functools.partial(Activations, chosen.model, device, kind, layers))
        if "tune" in parts:
            tune.warm(max(1, min(14, (os.cpu_count() or 2) - 2)))
        real = []
        for tokens in lengths if {"tune", "real", "needle"} & set(parts) else []:
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
                flex = longest and one.layer == layers[0] and not chosen.no_flex and device == "cuda"
                real.append(measure(one, about, chosen.repeats, flex))
                record.add(real[-1])
            if longest and "needle" in parts:
                for one in some[1::2]:
                    record.add(*(needles(one, about, run) for run in (1, 16, 128)))
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
