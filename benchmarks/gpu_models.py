"""Whole models on a GPU: prefill and decode with dense attention and with the variants, and attention's share of it.

``python -m benchmarks.gpu_models --json FILE`` checks that Focus with every pair kept is dense attention, then times.
Each repeat runs every line once, in an order that rotates: one prefill (logits of the last token alone), then tokens
one at a time from its cache, each waited for as ``generate`` does; eager, no CUDA graph. The cache is transformers'
own, which copies all keys and values for each token. Attention's time is taken by events around it in the same runs,
the variants' routing, plan and merge included. Ratios of kernels are not ratios of serving: every row has both.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers.cache_utils import DynamicLayer

from benchmarks.gpu_focus_prefill import flash_there
from benchmarks.gpu_model_lines import GROUPS, SINKS, WINDOW, Line, Subject, llama_shape, smollm2
from benchmarks.gpu_record import Recording
from focus_core import compat
from focus_core.benchmark.prefill import Stopwatch, cache_bytes, prefill, rotated, spread
from focus_core.errors import FocusError
from focus_core.evaluation.recorders import PairCounter
from focus_core.evaluation.sources import ROOT
from focus_core.kernels.focus import focus_attention
from focus_core.pattern import GroupPattern
from focus_core.variants.base import Prepared
from focus_core.variants.focus import Focus

LENGTHS = (32768, 131072)
CHECKED, WARM = 640, 4096
STEPS, FIRST = 14, 2
"""Tokens that are decoded after each prefill, and how many of them are not counted."""
COUNTED_LAYERS = 6
AS_DENSE = 2.0
"""How far from a dense kernel Focus with every pair kept may be, in units of the distance of two dense kernels."""
GB = 1e9
SHOWN = ("model", "tokens", "phase", "line", "kernel", "ms", "attention_ms", "attention_share", "append_ms", "speedup")
SHOWN += ("attention_speedup", "pair_limit", "peak_gb", "left_out")


class Runner:
    """Runs the lines of one model."""

    def __init__(self, subject: Subject, steps: int) -> None:
        self.subject, self.steps = subject, steps
        self.device = subject.ids.device
        self.watch, self.copies = (Stopwatch(str(self.device)) for _ in range(2))

    def run(self, line: Line, tokens: int) -> dict[str, Any]:
        """One prefill and some decoded tokens: milliseconds of each, of its attention, and peaks of memory."""
        model, ids = self.subject.model, self.subject.ids
        with line.inside(model, self.watch), torch.no_grad():
            found: dict[str, Any] = {}
            self._reset()
            begun = self._wait()
            out = prefill(model, ids[:, :tokens])
            found["prefill"] = {"ms": (self._wait() - begun) * 1e3, "attention_ms": self.watch.take(), **self._peak()}
            if not line.decodes:
                return found
            cache, steps = compat.cache_of(out), []
            del out
            self._reset()
            with self._watched_cache():
                for at in range(tokens, tokens + self.steps):
                    begun = self._wait()
                    self._next(cache, ids[:, at : at + 1])
                    ms = (self._wait() - begun) * 1e3
                    steps.append((ms, self.watch.take(), self.copies.take()))
            counted = steps[min(FIRST, self.steps - 1) :]
            names = ("ms", "attention_ms", "append_ms")
            found["decode"] = {name: [step[i] for step in counted] for i, name in enumerate(names)} | self._peak()
            found["decode"]["cache_gb"] = cache_bytes(cache) / GB
        return found

    def logits(self, line: Line, ids: Any, decoded: int = 0) -> Any:
        """(N, V) logits in fp32, the last ``decoded`` tokens one at a time from the cache."""
        model, whole = self.subject.model, ids.shape[1] - decoded
        with line.inside(model, self.watch), torch.no_grad():
            out = model(input_ids=ids[:, :whole], use_cache=decoded > 0)
            parts = [out.logits[0].float()]
            for at in range(whole, ids.shape[1]):
                parts.append(self._next(compat.cache_of(out), ids[:, at : at + 1]).logits[0].float())
        self.watch.take()
        return torch.cat(parts)

    def kept_pairs(self, line: Line, tokens: int) -> tuple[float, list[int]]:
        """Share of the causal pairs that a line keeps, and the layers that were counted."""
        if line.variant is None:
            return 1.0, []
        if not self.subject.reads:
            positions = torch.arange(tokens, device=self.device)[None]
            sets = line.variant.sets(positions)
            bits = (x.cpu().numpy() for x in (sets.fresh, sets.cached))
            pattern = GroupPattern(*bits, self.subject.shape["heads"], line.variant.window, line.variant.sinks)
            return pattern.density(0), [0]
        layers = self.subject.shape["layers"]
        counter = _Some(range(0, layers, max(1, layers // COUNTED_LAYERS)))
        with line.inside(self.subject.model, self.watch, counter):
            prefill(self.subject.model, self.subject.ids[:, :tokens])
        self.watch.take()
        return statistics.fmean(counter.kept(0)), sorted(counter.layers)

    def _next(self, cache: Any, ids: Any) -> Any:
        model = self.subject.model
        return model(input_ids=ids, use_cache=True, logits_to_keep=1, **{compat.cache_keyword(model): cache})

    def _watched_cache(self) -> Any:
        """Time what appending to the cache takes, whichever class a layer has become."""
        return patch.object(DynamicLayer, "update", self.copies.wrap(DynamicLayer.update))

    def _wait(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def _peak(self) -> dict[str, float]:
        return {"peak_gb": torch.cuda.max_memory_allocated() / GB} if self.device.type == "cuda" else {}


class _Some(PairCounter):
    """Counts the pairs of some layers."""

    def __init__(self, chosen: Sequence[int]) -> None:
        super().__init__()
        self._chosen = chosen

    def record(self, call: Any, variant: Any) -> None:
        if call.layer in self._chosen:
            super().record(call, variant)


def checks(runner: Runner, kernels: tuple[str, str]) -> list[dict[str, Any]]:
    """Focus with every pair kept beside dense attention: its distance in units of that of two dense kernels.

    All tokens are in one group, the window is short, and the second half is read with the cache: the kernels compute.
    """
    subject = runner.subject
    ids = subject.ids[:, : min(CHECKED, subject.ids.shape[1])]
    focus = next(line for line in subject.lines if isinstance(line.variant, Focus))
    whole = Line("every pair kept", variant=_OneGroup(1, 1, 1, 16, 0), adapter=focus.adapter)
    dense = runner.logits(Line("dense", kernels=kernels), ids)
    rounding = _distance(runner.logits(Line("dense", kernels=("math", "math")), ids), dense)
    rows = []
    for decoded in (0, 4):
        found = _distance(runner.logits(whole, ids, decoded), dense)
        rows.append(
            {
                "what": "Focus with every pair kept beside dense",
                "model": subject.name,
                "tokens": ids.shape[1],
                "decoded": decoded,
                "error": found,
                "two_dense_kernels": rounding,
                "good": found <= AS_DENSE * rounding + 1e-5,
            }
        )
    return rows


class _OneGroup(Focus):
    """Focus with all tokens in the one group that there is."""

    def prepare(self, hidden, layer, positions, adapter, first_key):
        sets = torch.ones(hidden.shape[0], 1, hidden.shape[1], dtype=torch.int64, device=hidden.device)
        return Prepared(sets, sets)


def _distance(x: Any, y: Any) -> float:
    return float((x - y).norm() / y.norm())


def measure(runner: Runner, tokens: int, repeats: int) -> list[dict[str, Any]]:
    """Rows of one length: each line's prefill and decode; a line that cannot run has one that says why."""
    subject = runner.subject
    shared = {"method": "model", "model": subject.name, **subject.shape, **subject.about}
    shared |= {"tokens": tokens, "batch": 1, "positions": subject.stretch(subject.model, tokens)}
    lines, rows, counted = [], [], {}
    for line in subject.lines:
        try:
            kept, layers = runner.kept_pairs(line, tokens)
            runner.run(line, min(WARM, tokens // 2))
        except (FocusError, torch.OutOfMemoryError) as error:
            rows.append({**shared, "line": line.name, **line.about, "left_out": str(error).partition("\n")[0]})
            continue
        lines.append(line)
        if line.variant is not None:
            counted[line.name] = {"kept_pairs": kept, "pair_limit": 1 / kept, "counted_layers": layers}
    times: dict[Line, list[dict[str, Any]]] = {line: [] for line in lines}
    for repeat in range(repeats):
        for line in rotated(lines, repeat):
            times[line].append(runner.run(line, tokens))
    for phase in ("prefill", "decode"):
        done = {line: found for line, found in times.items() if phase in found[0]}
        dense = [line for line in done if line.variant is None]
        best = min(dense, key=lambda line: statistics.median(_each(times[line], phase, "ms")))
        for line in done:
            row = {**shared, "phase": phase, "line": line.name, **line.about, **counted.get(line.name, {})}
            row["baseline"] = best.kernels[phase == "decode"]
            if line.variant is None:
                row["kernel"] = line.kernels[phase == "decode"]
            rows.append(row | {"repeats": repeats} | _row(times[line], times[best], phase))
    return rows


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


def dense_kernels(device: str) -> list[tuple[str, str]]:
    """The dense kernels, the strongest first: of prefill, and of decode, where cuDNN would plan at every length."""
    if device == "cpu":
        return [("torch", "torch")]
    return [("fa4", "fa2"), ("cudnn", "")] if flash_there() else [("cudnn", "fa2")]


def sources() -> list[str]:
    """The files and folders of the kernels that run on a GPU."""
    found: list[Path] = []
    for name in ("focus", "block_sparse", "xattention"):
        folder = ROOT / "focus_core" / "kernels" / name
        found += [*folder.glob("triton*"), *folder.glob("flash*")]
    return [str(path.relative_to(ROOT)) for path in sorted(found) if path.suffix in ("", ".py")]


def compile_kernels(case: tuple[int, int, int, int]) -> None:
    """Run Focus once as a model of this shape (heads, KV heads, size of a head, looks) does, so that it is compiled."""
    heads, kv, dim, looks = case
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    k = torch.randn(1, kv, WARM, dim, **kind)
    sets = torch.ones(1, kv, WARM, dtype=torch.int64, device="cuda") << torch.arange(WARM, device="cuda") % GROUPS
    for queries in (WARM, 1):
        q = torch.randn(1, heads, queries, dim, **kind)
        fresh = sets.roll(1, -1)[..., WARM - queries :]
        focus_attention(q, k, k, fresh, sets, window=WINDOW, sinks=SINKS, members=(looks, 1))
    torch.cuda.synchronize()


def main() -> None:
    """Check, time and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--models", default="smollm2,llama")
    parser.add_argument("--model", default="smollm2", help="where SmolLM2 is, as load_model takes it")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS, help="tokens that are decoded after each prefill")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, help="layers of the random model, where not all are wanted")
    chosen = parser.parse_args()
    lengths = [int(n) for n in chosen.lengths.split(",")]
    about = (
        "Whole models with dense attention and with the variants, prefill and decode of one sequence, eager. "
        "attention_ms is by events around attention in the same runs (routing, plan and merge included); append_ms is "
        "what appending a token to transformers' cache takes, which copies all of it. speedup is the whole model's, "
        "attention_speedup attention's alone."
    )
    record = Recording(chosen.json, about, sources(), chosen.device)
    kernels = dense_kernels(chosen.device)
    sizes = {"num_hidden_layers": chosen.layers} if chosen.layers else None
    makers = {"smollm2": lambda: smollm2(chosen.model, lengths, chosen.device, kernels)}
    # Half a minute of the slower kernel would tell nothing new.
    makers["llama"] = lambda: llama_shape(lengths, chosen.device, kernels[:1], sizes)
    if chosen.device == "cuda":
        # What flash-attn-4 compiles is kept on disk for the other processes.
        os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
        cases = [(*shape, looks) for shape in ((9, 3, 64), (32, 8, 128)) for looks in (4, 1)]
        with multiprocessing.get_context("spawn").Pool(len(cases)) as pool:
            pool.map(compile_kernels, cases, chunksize=1)
    for name in chosen.models.split(","):
        runner = Runner(makers[name](), chosen.steps)
        record.check(*checks(runner, kernels[0]))
        for tokens in lengths:
            record.add(*measure(runner, tokens, chosen.repeats), shown=SHOWN)
        del runner
        gc.collect()
        if chosen.device == "cuda":
            torch.cuda.empty_cache()
    sys.exit(record.failed())


if __name__ == "__main__":
    main()
