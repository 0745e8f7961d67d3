"""Decoding of whole models with one CUDA graph a token, dense and Focus alike, for ``benchmarks.gpu_models``.

The cache of the eager run goes on in a cache with room. Dense attention is run by every kernel that reads how many
tokens there are on the device, and by FlashAttention-2 and cuDNN over one fixed length, which no generation could use
twice: the strongest of them is the baseline. What attention takes is the difference to the same graph without any
attention.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_model_lines import Line
from focus_core import compat
from focus_core.benchmark.prefill import spread
from focus_core.cache import owner_of
from focus_core.graphs import GraphDecoding, graph_decoding
from focus_core.retrofit import retrofit
from focus_core.variants.dense import Dense

PHASE = "decode as a graph"
OWN = "Triton, length read on the device"
WARM = 3
"""Steps that are not counted: the first runs launch by launch, the second captures."""
AS_DENSE = 3.0
"""How far from generation without graphs it may be, in units of the distance of two dense kernels."""
PROMPT, PADDED, NEW = 512, 100, 12
"""Of the check: tokens of the two rows, how many of the second are padding, new tokens."""


@dataclass(frozen=True)
class DenseBy(Dense):
    """Dense attention whose step is computed by a given kernel."""

    name = ""
    kernel: str = OWN

    def attend(self, call: Any) -> Any:
        """See Variant.attend."""
        if call.steps is None or self.kernel == OWN:
            return super().attend(call)
        return STEPS[self.kernel](call)


@dataclass(frozen=True)
class Without(Dense):
    """No attention at all: what the rest of a step takes."""

    name = ""

    def attend(self, call: Any) -> Any:
        """The queries themselves."""
        return call.query


def _fa2(call: Any) -> Any:
    """FlashAttention-2's kernel for sequences of several lengths, told on the device how many keys there are."""
    steps, (q, k, v) = call.steps, (x.transpose(1, 2)[0] for x in (call.query, call.key, call.value))
    if "fa2" not in steps.scratch:
        cuts = ([0, 1], [0, steps.room])
        steps.scratch["fa2"] = tuple(torch.tensor(x, dtype=torch.int32, device=q.device) for x in cuts)
    cut_q, cut_k = steps.scratch["fa2"]
    out = torch.ops.aten._flash_attention_forward(
        q, k, v, cut_q, cut_k, 1, steps.room, 0.0, False, False, scale=call.scale, seqused_k=steps.tokens.int()
    )
    return out[0][None].transpose(1, 2)


def _fixed(backend: SDPBackend) -> Callable[[Any], Any]:
    """One of torch's kernels over as many keys as there are at capture: right for that one step."""

    def run(call: Any) -> Any:
        stop = call.steps.count + 1
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                call.query, call.key[:, :, :stop], call.value[:, :, :stop], scale=call.scale, enable_gqa=True
            )

    return run


STEPS = {
    "FlashAttention-2, length read on the device": _fa2,
    "FlashAttention-2, one fixed length": _fixed(SDPBackend.FLASH_ATTENTION),
    "cuDNN, one fixed length": _fixed(SDPBackend.CUDNN_ATTENTION),
}
DENSE = (OWN, *STEPS)


@contextmanager
def decoding(model: Any, variant: Any, adapter: Any, cache: Any, room: int) -> Iterator[GraphDecoding]:
    """The model decoding with a variant that goes on with whatever attention began the cache."""
    for layer in cache.layers:
        if getattr(layer, "owner", None) is not None:
            layer.owner = owner_of(variant, adapter)
    with retrofit(model, variant, adapter) as active, graph_decoding(active, room) as found:
        yield found


def graph_runs(model: Any, ids: Any, line: Line, cache: Any, steps: int, wait: Any) -> dict[str, Any]:
    """Milliseconds of every step of a line from its cache on; of dense by kernel, and without attention.

    Args:
        model: the model, as it is.
        ids: (1, N) tokens; as many as the cache has were read.
        line: what began the cache.
        cache: goes on; it has room afterwards.
        steps: steps that are counted.
        wait: waits for the device and gives the time in seconds.
    """
    at, each = cache.get_seq_length(), steps + WARM
    kinds = {"": line.variant} if line.variant is not None else {name: DenseBy(kernel=name) for name in DENSE}
    if line.variant is None:
        kinds["without"] = Without()
    room = at + each * len(kinds)
    if room > ids.shape[1]:
        raise ValueError(f"{ids.shape[1]} tokens are given, and {room} are read.")
    found: dict[str, Any] = {"by": {}, "refused": {}}
    for name, variant in kinds.items():
        try:
            with decoding(model, variant, line.adapter, cache, room) as graphs, torch.no_grad():
                times = []
                for n in range(at, at + each):
                    begun = wait()
                    model(
                        input_ids=ids[:, n : n + 1], use_cache=True, logits_to_keep=1,
                        **{compat.cache_keyword(model): cache},
                    )  # fmt: skip
                    times.append((wait() - begun) * 1e3)
                at += each
            found["by"][name] = times[WARM:]
            found["graph"] = graphs.replayed > 0
        except Exception as problem:
            # A kernel that is not here, or that no graph can hold.
            found["refused"][name] = f"{type(problem).__name__}: {problem}"[:200]
            at = cache.get_seq_length()
    return found


def graph_rows(
    times: dict[Line, list[dict[str, Any]]], shared: dict[str, Any], counted: dict[str, Any]
) -> list[dict[str, Any]]:
    """The rows of the lines that ran so: times against the strongest dense kernel's in the same repeat."""
    done = {line: [one["graph"] for one in found] for line, found in times.items() if "graph" in found[0]}
    done = {line: found for line, found in done.items() if found[0]["by"]}
    dense = next((found for line, found in done.items() if line.variant is None), None)
    if dense is None:
        return []
    kernels = [name for name in dense[0]["by"] if name != "without"]
    best = min(kernels, key=lambda name: statistics.median(_middles(dense, name)))
    base, rest = _middles(dense, best), _middles(dense, "without")
    base_inside = [a - b for a, b in zip(base, rest, strict=True)]
    rows = []
    for line, found in done.items():
        name = best if line.variant is None else ""
        ms = _middles(found, name)
        inside = [a - b for a, b in zip(ms, rest, strict=True)]
        row = {**shared, "phase": PHASE, "line": line.name, **line.about, **counted.get(line.name, {})}
        row |= {"baseline": best, "repeats": len(found), "cuda_graph": found[0]["graph"]}
        row |= {"ms": spread([x for one in found for x in one["by"][name]]), "attention_ms": spread(inside)}
        row |= {
            "dense_ms": spread(base),
            "dense_attention_ms": spread(base_inside),
            "without_attention_ms": spread(rest),
        }
        row["attention_share"] = statistics.median(a / b for a, b in zip(inside, ms, strict=True))
        row["speedup"] = statistics.median(b / a for a, b in zip(ms, base, strict=True))
        row["attention_speedup"] = statistics.median(b / a for a, b in zip(inside, base_inside, strict=True))
        if line.variant is None:
            row["kernel"] = best
            row["kernels_ms"] = {kernel: spread(_middles(found, kernel)) for kernel in kernels}
        if found[0]["refused"]:
            row["refused"] = found[0]["refused"]
        rows.append(row)
    return rows


def _middles(found: list[dict[str, Any]], name: str) -> list[float]:
    """One number a repeat."""
    return [statistics.median(one["by"][name]) for one in found]


def graph_checks(model: Any, ids: Any, lines: list[Line], name: str, rounding: float) -> list[dict[str, Any]]:
    """``generate()`` of two rows, one padded, greedy: with graphs, step by step in a cache with room, and without both.

    Whether replays give the steps' logits to the last bit is said. Beside those without, the logits up to the first
    other token, where there is one, are as near as those of two dense kernels, whose distance is ``rounding``.
    """
    prompt = min(PROMPT, ids.shape[1] - 64)
    texts = torch.cat([ids[:, :prompt], ids[:, 64 : 64 + prompt]])
    mask = torch.ones_like(texts)
    mask[1, :PADDED] = 0

    def generated() -> tuple[Any, Any]:
        out = model.generate(
            texts, attention_mask=mask, max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=None,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        return out.sequences[:, prompt:], torch.stack(out.logits, 1).float()

    rows = []
    for line in lines:
        variant = DenseBy() if line.variant is None else line.variant
        if not variant.serves_graphs:
            continue
        begun = time.perf_counter()
        with retrofit(model, variant, line.adapter) as active, torch.no_grad():
            wanted, logits = generated()
            with graph_decoding(active, prompt + NEW) as graphs:
                tokens, replayed = generated()
                graphs.captures = False
                stepped = generated()[1]
        other = (tokens != wanted).any(0).nonzero()
        first = int(other[0]) if len(other) else NEW
        # From the first other token on, the texts differ.
        x, y = replayed[:, : first + 1], logits[:, : first + 1]
        error = float((x - y).norm() / y.norm())
        same = torch.equal(replayed, stepped)
        row = {"what": "generate() with graphs beside without", "model": name, "line": line.name, "new_tokens": NEW}
        row |= {"first_other_token": first, "replays_are_the_steps": same, "error": error}
        row |= {"two_dense_kernels": rounding, "replayed": graphs.replayed, "seconds": time.perf_counter() - begun}
        on_gpu = ids.is_cuda
        near = error <= AS_DENSE * rounding + 1e-5
        rows.append(row | {"good": near and (graphs.replayed == NEW - 2) == on_gpu})
    return rows
