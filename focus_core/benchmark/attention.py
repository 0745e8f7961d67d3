"""Time, memory and error of attention kernels, interleaved with the strongest dense baseline in one run.

From the command line (writes one JSON document)::

    python -m focus_core bench --variants focus,window --lengths 1024,4096,8192 --json bench.json

From Python::

    rows = bench([make("focus"), make("window")], [1024, 4096, 8192], repeats=11)

Every repeat runs the baseline and each variant once, in an order that rotates, so that a busy machine slows all of
them alike: read the ratios (``speedup``) and their spread before the milliseconds.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from focus_core.benchmark.entries import grouped_choice
from focus_core.benchmark.inputs import PHASES, Inputs, call_of, model_inputs, random_inputs
from focus_core.benchmark.prefill import peak_bytes, rotated, spread
from focus_core.errors import Cancelled, InvalidInput, TooLarge, Unsupported
from focus_core.models.memory import free_memory

if TYPE_CHECKING:
    import torch

    from focus_core.variants.base import AttentionCall, Variant

_CHECKED_QUERIES = 16
_REFERENCE_LIMIT = 4096


def bench(
    variants: Sequence[Variant],
    lengths: Sequence[int],
    *,
    batch: int = 1,
    heads: int = 9,
    kv_heads: int = 3,
    head_dim: int = 64,
    dtype: str = "float32",
    device: str = "cpu",
    backend: str = "auto",
    repeats: int = 7,
    activations: str = "random",
    text: str | None = None,
    phase: str = "prefill",
    on_row: Callable[[dict[str, Any]], None] | None = None,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> list[dict[str, Any]]:
    """Time each variant at each length beside dense attention.

    Args:
        variants: what to time; those that learn their groups get balanced random ones.
        lengths: tokens.
        batch: sequences.
        heads: query heads.
        kv_heads: key heads.
        head_dim: numbers a head.
        dtype: torch's name of the type.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        backend: what computes the variants that offer a choice.
        repeats: timed runs of each.
        activations: ``random``, or a model's name: its middle layer's q, k, v on ``text`` (heads, head size and batch
            then come from the model).
        text: what the model reads; *Persuasion* when None.
        phase: ``prefill``, or ``decode`` (one new token over ``length`` keys).
        on_row: gets each row as soon as it is measured.
        progress: gets the fraction done and a short sentence.
        cancel: asked between runs; True stops.

    Returns:
        One row a variant and length, in milliseconds, MiB and shares of the causal pairs:
        ``{variant, config, backend, backend_reason, dtype, device, length, phase, ms, ms_p10, ms_p90, select_ms,
        baseline, baseline_ms, speedup, speedup_p10, speedup_p90, kept_pairs, pair_limit, peak_mb, max_error,
        baseline_peak_mb, repeats, batch, heads, kv_heads, head_dim, activations}``. ``select_ms`` is the part of
        ``ms`` spent on choosing (tokens by group, blocks); ``pair_limit`` the speed-up if time went with kept pairs;
        ``max_error`` the largest difference to a double-precision computation of some queries.

    Raises:
        InvalidInput: for a variant that is not a served mask, or wrong arguments.
        TooLarge: for the reference backend on long sequences, and for random inputs that do not fit in free memory.
        Cancelled: when ``cancel`` said so; rows already measured went to ``on_row``.
    """
    import torch

    if phase not in PHASES:
        raise InvalidInput(f"There is no phase {phase!r}.", f"It can be {' or '.join(PHASES)}.")
    if repeats < 1 or not lengths or min(lengths) < 1:
        raise InvalidInput(f"bench got lengths {list(lengths)} and {repeats} repeats.", "Each is at least 1.")
    if backend == "reference" and max(lengths) > _REFERENCE_LIMIT:
        raise TooLarge(
            f"The reference holds all {max(lengths)} x {max(lengths)} scores.",
            f"It can take {_REFERENCE_LIMIT} tokens.",
        )
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise InvalidInput(f"There is no float type {dtype!r}.", "It can be float32, bfloat16 or float16.")
    if backend != "auto" and variants and not any(hasattr(v, "backend") for v in variants):
        names = ", ".join(v.name for v in variants)
        raise InvalidInput(f"{names} has no choice of backend, and {backend!r} was asked for.", "It can be auto.")
    chosen = [_with_backend(v, backend) for v in variants]
    if activations == "random":
        _check_room(batch * head_dim * 2 * (heads + kv_heads) * kind.itemsize, max(lengths), device)
    rows = []
    for at, length in enumerate(lengths):
        if activations == "random":
            inputs = random_inputs(batch, heads, kv_heads, head_dim, length, kind, device)
        else:
            inputs = model_inputs(activations, _text(text), length, device, kind)

        def report(share: float, sentence: str, at: int = at) -> None:
            if cancel is not None and cancel():
                raise Cancelled
            if progress is not None:
                progress((at + share) / len(lengths), sentence)

        with torch.no_grad():
            for row in _one_length(chosen, inputs, phase, repeats, report):
                row |= {"activations": activations}
                rows.append(row)
                if on_row is not None:
                    on_row(row)
    return rows


def _text(text: str | None) -> str:
    if text is not None:
        return text
    from focus_core.assets import load_text

    return load_text("persuasion").text


def _check_room(token_bytes: int, length: int, device: str) -> None:
    """Refuse a length whose query, key, value and output alone do not fit.

    Args:
        token_bytes: bytes of them a token, of all heads and sequences.
        length: tokens.
        device: where they would be.
    """
    free = free_memory(device)
    if token_bytes * length > free:
        raise TooLarge(
            f"Query, key, value and output of {length:,} tokens take {token_bytes * length / 1e9:,.3g} GB, and "
            f"{free / 1e9:,.3g} GB are free on {device}.",
            f"Up to {free // token_bytes:,} tokens fit.",
        )


def _with_backend(variant: Variant, backend: str) -> Variant:
    if backend == "auto" or not hasattr(variant, "backend"):
        return variant
    return dataclasses.replace(variant, backend=backend)


def _one_length(variants: list[Variant], inputs: Inputs, phase: str, repeats: int, report: Callable) -> list[dict]:
    length = inputs.key.shape[2]
    for variant in variants:
        _check_shape(variant, inputs)
    calls = [call_of(v, inputs, phase) for v in variants]
    clock = _Clock(inputs.key.device)
    report(0.0, f"Warming up at {length} tokens")
    baseline, dense = _strongest_dense(inputs, phase, clock)
    runs = [dense] + [_attend(v, c) for v, c in zip(variants, calls, strict=True)]
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    for repeat in range(repeats):
        report(0.1 + 0.7 * repeat / repeats, f"{length} tokens, repeat {repeat + 1} of {repeats}")
        for n in rotated(range(len(runs)), repeat):
            times[n].append(clock(runs[n]))
    device = str(inputs.key.device)
    dense_peak = peak_bytes(dense, device) / 2**20
    base, rows = spread(times[0]), []
    for n, (variant, call) in enumerate(zip(variants, calls, strict=True), start=1):
        report(0.8 + 0.2 * n / len(runs), f"{length} tokens, checking {variant.name}")
        took = spread(times[n])
        ratios = spread([a / b for a, b in zip(times[0], times[n], strict=True)])
        pattern = variant.pattern(call)
        kept = pattern.density()
        name, reason = _backend_of(variant, call, baseline)
        rows.append(
            {
                "variant": variant.name,
                "config": variant.to_dict(),
                "backend": name,
                "backend_reason": reason,
                "dtype": str(call.query.dtype).removeprefix("torch."),
                "device": device,
                "length": length,
                "phase": phase,
                "ms": took["median"],
                "ms_p10": took["p10"],
                "ms_p90": took["p90"],
                "select_ms": _selection_ms(variant, call, name, clock),
                "baseline": baseline,
                "baseline_ms": base["median"],
                "speedup": ratios["median"],
                "speedup_p10": ratios["p10"],
                "speedup_p90": ratios["p90"],
                "kept_pairs": kept,
                "pair_limit": 1 / kept,
                "peak_mb": peak_bytes(runs[n], device) / 2**20,
                "baseline_peak_mb": dense_peak,
                "max_error": max_error(variant.plain_call(call), pattern, runs[n]()),
                "repeats": repeats,
                "batch": call.query.shape[0],
                "heads": call.query.shape[1],
                "kv_heads": call.key.shape[1],
                "head_dim": call.query.shape[3],
            }
        )
    return rows


def _check_shape(variant: Variant, inputs: Inputs) -> None:
    """Refuse a variant that no model of this shape could serve, in its own words."""
    from focus_core.models.facts import ModelFacts

    (_, heads, _, dim), kv_heads = inputs.query.shape, inputs.key.shape[1]
    hidden = inputs.hidden.shape[-1] if inputs.hidden.shape[-1] > 1 else heads * dim
    dtype = str(inputs.key.dtype).removeprefix("torch.")
    facts = ModelFacts(
        *("bench", "", inputs.layer + 1, heads, kv_heads, dim, hidden, inputs.key.shape[2], 0),
        native=(None,) * (inputs.layer + 1),
        softcap=None,
        qk_norm=False,
        scale=dim**-0.5,
        dtype=dtype,
        revision="",
        note="",
        rotary=dim,
    )
    support = variant.supports(facts)
    if not support.ok:
        raise Unsupported(
            f"{variant.name} cannot be timed on attention of this shape: {support.reason}",
            "--heads, --kv-heads and --head-dim set the shape.",
        )


class _Clock:
    """Milliseconds of one run, from an idle device to an idle device; by events on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def __call__(self, run: Callable[[], Any]) -> float:
        if not self.cuda:
            start = time.perf_counter()
            run()
            return (time.perf_counter() - start) * 1e3
        import torch

        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop)


def _attend(variant: Variant, call: AttentionCall) -> Callable[[], Any]:
    return lambda: variant.attend(call)


def _strongest_dense(inputs: Inputs, phase: str, clock: _Clock) -> tuple[str, Callable[[], Any]]:
    """The fastest dense attention here: torch's own choice on a CPU, the best of torch's kernels on a GPU."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    decode = phase == "decode"
    q = inputs.query[:, :, -1:] if decode else inputs.query

    def sdpa() -> Any:
        return F.scaled_dot_product_attention(q, inputs.key, inputs.value, is_causal=not decode, enable_gqa=True)

    if not clock.cuda:
        return "sdpa", sdpa

    def by(kernel: SDPBackend) -> Callable[[], Any]:
        def run() -> Any:
            with sdpa_kernel(kernel):
                return sdpa()

        return run

    found = {}
    kernels = {"sdpa": sdpa, "cudnn": by(SDPBackend.CUDNN_ATTENTION), "fa2": by(SDPBackend.FLASH_ATTENTION)}
    for name, run in kernels.items():
        try:
            run()
        except RuntimeError:
            # This kernel does not take the type or shape; torch's own choice always runs.
            continue
        found[name] = min(clock(run) for _ in range(5))
    best = min(found, key=found.__getitem__)
    return best, kernels[best]


def _backend_of(variant: Variant, call: AttentionCall, baseline: str) -> tuple[str, str]:
    named = getattr(variant, "backend", "auto")
    if named != "auto":
        return named, "As asked for."
    if variant.name == "dense":
        return "sdpa", "Dense attention is torch's own."
    choice = grouped_choice(variant, call)
    if choice is None:
        return "auto", "The variant has one form."
    return choice.backend, choice.reason


def _selection_ms(variant: Variant, call: AttentionCall, backend: str, clock: _Clock) -> float:
    """Median milliseconds to choose blocks, or of the cpu backend to sort tokens by group; 0 for all else."""
    from focus_core.kernels.focus.segments import key_segments, query_blocks, without_lowest
    from focus_core.variants.xattention import XAttention

    if isinstance(variant, XAttention):
        return spread([clock(lambda: variant.block_mask(call)) for _ in range(3)])["median"]
    if backend != "cpu" or call.cached is None or call.query.shape[2] == 1:
        return 0.0

    def plan() -> None:
        segments, left = key_segments(call.cached, None, variant.sinks), call.fresh
        while bool((left != 0).any()):
            query_blocks(left, segments, variant.window)
            left = without_lowest(left)

    return spread([clock(plan) for _ in range(3)])["median"]


def max_error(call: AttentionCall, pattern: Any, out: torch.Tensor) -> float:
    """Largest difference of some queries to attention over the pattern's pairs in double precision.

    Args:
        call: what was computed.
        pattern: the pairs that it keeps.
        out: (B, Hq, Nq, D), the result to judge.
    """
    import torch

    batch, heads, queries, _ = call.query.shape
    share = heads // call.key.shape[1]
    rows = sorted({round(x) for x in torch.linspace(0, queries - 1, min(queries, _CHECKED_QUERIES)).tolist()})
    worst = 0.0
    for b in range(batch):
        for h in range(heads):
            k, v = call.key[b, h // share].double(), call.value[b, h // share].double()
            tiles = [pattern.tile(b, h, slice(n, n + 1), slice(0, len(k))) for n in rows]
            mask = torch.from_numpy(_stack(tiles)).to(k.device)
            scores = call.query[b, h, rows].double() @ k.T * call.scale
            wanted = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v
            worst = max(worst, float((out[b, h, rows].double() - wanted).abs().max()))
    return worst


def _stack(tiles: list) -> Any:
    import numpy as np

    return np.concatenate(tiles)
