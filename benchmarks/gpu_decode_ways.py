"""Candidates of the decode benchmark: dense kernels, and how candidates are run and timed beside each other."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_focus_prefill import clock, graphed
from focus_core.benchmark.prefill import rotated, spread

TORCH = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "fa2": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
Step = Callable[[], Any]


def by(kernel: SDPBackend, q: Any, k: Any, v: Any, packed: bool = False, scale: float | None = None) -> Any:
    """Dense attention of new tokens that see every key; ``packed`` gives the heads of a key head as queries."""
    with sdpa_kernel(kernel):
        if packed:
            rows = q.view(q.shape[0], k.shape[1], -1, q.shape[3])
            return F.scaled_dot_product_attention(rows, k, v).view(*q.shape[:3], -1)
        return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def dense_kernels(shared: bool) -> dict[str, Callable[[Any, Any, Any], Any]]:
    """Dense attention of one new token by everything that is here; ``shared`` if query heads share key heads."""
    found: dict[str, Callable[[Any, Any, Any], Any]] = {
        "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=shared)
    }
    for name in ("cudnn", "fa2"):
        found[name] = lambda q, k, v, name=name: by(TORCH[name], q, k, v)
        if shared:
            found[f"{name}_packed"] = lambda q, k, v, name=name: by(TORCH[name], q, k, v, True)
    try:
        from flash_attn.cute import flash_attn_func
    except ImportError:
        return found

    def fa4(q: Any, k: Any, v: Any) -> Any:
        out = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), num_splits=32)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return found | {"fa4": fa4}


def by_prefill(name: str, q: Any, k: Any, v: Any) -> Any:
    """Causal dense attention of a prompt by cuDNN, FlashAttention-2 or flash-attn-4."""
    if name != "fa4":
        with sdpa_kernel(TORCH[name]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    from flash_attn.cute import flash_attn_func

    out = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
    return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)


class Race:
    """Candidates over some caches in turn, eager and as one CUDA graph each."""

    def __init__(self) -> None:
        self.runs: dict[str, Step] = {}
        self.caches: dict[str, int] = {}
        self.refused: dict[str, str] = {}

    def add(self, name: str, steps: list[Step], eager: bool = True, graph: bool = True) -> bool:
        """Enter a candidate, a step a cache; one that cannot run is kept in ``refused`` with its reason."""

        def run() -> list[Any]:
            return [step() for step in steps]

        try:
            run()
            torch.cuda.synchronize()
            if graph:
                self.runs[f"{name}_graph"] = graphed(run)
                self.runs[f"{name}_graph"]()
                torch.cuda.synchronize()
        except Exception as problem:
            # One way that cannot run must not hide the others.
            self.refused[name] = f"{type(problem).__name__}: {problem}"[:300]
            self.runs.pop(f"{name}_graph", None)
            torch.cuda.synchronize()
            return False
        if eager:
            self.runs[name] = run
        self.caches[name] = len(steps)
        return True

    def times(self, repeats: int) -> dict[str, list[float]]:
        """Milliseconds of a step; every repeat runs each candidate once, in an order that rotates."""
        found: dict[str, list[float]] = {name: [] for name in self.runs}
        for repeat in range(repeats):
            for name in rotated(list(self.runs), repeat):
                found[name].append(clock(self.runs[name]) / self.caches[name.removesuffix("_graph")])
        return found


def compared(times: dict[str, list[float]], mine: str, dense: list[str]) -> dict[str, Any]:
    """Times of one candidate and of dense kernels, and the ratio to the fastest of them, eager and as graphs."""
    row: dict[str, Any] = {}
    for suffix in ("", "_graph"):
        row[f"ms{suffix}"] = spread(times[mine + suffix])
        row |= {f"{name}{suffix}_ms": spread(times[name + suffix]) for name in dense}
        if dense:
            best = min(dense, key=lambda name: statistics.median(times[name + suffix]))
            pairs = zip(times[best + suffix], times[mine + suffix], strict=True)
            row |= {f"baseline{suffix}": best, f"speedup{suffix}": statistics.median(a / b for a, b in pairs)}
    return row


def rate(size: int, milliseconds: dict[str, float]) -> float:
    """Gigabytes a second."""
    return size / milliseconds["median"] / 1e6


def relative(out: Any, wanted: Any) -> float:
    """Relative error."""
    return float((out.double() - wanted).norm() / wanted.norm())
