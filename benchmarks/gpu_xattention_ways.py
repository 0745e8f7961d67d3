"""The ways of XAttention's attention that were tried on a GPU, and the dense kernels beside them."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_focus_prefill import graphed
from focus_core.benchmark.prefill import rotated
from focus_core.kernels.block_sparse import block_sparse_attention
from focus_core.kernels.block_sparse.triton_lists import list_blocks

BLOCK = 128


def milliseconds(run: Callable[[], Any], device: str) -> float:
    """Of one run, from an idle device to an idle device."""
    if device == "cpu":
        began = time.perf_counter()
        run()
        return (time.perf_counter() - began) * 1e3
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop)


def interleaved(
    runs: dict[str, Callable[[], Any]], repeats: int, device: str, graphs: tuple[str, ...] = ()
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Times of every run that works, and the reasons of those that do not; those in ``graphs`` as CUDA graphs too."""
    failed = {}
    for name in list(runs):
        try:
            runs[name]()
            if device == "cuda":
                torch.cuda.synchronize()
                if name in graphs:
                    runs[f"{name}_graph"] = graphed(runs[name])
        except Exception as problem:
            failed[name] = f"{type(problem).__name__}: {problem}"[-400:]
            del runs[name]
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name in rotated(list(runs), repeat):
            times[name].append(milliseconds(runs[name], device))
    return times, failed


def ratio(above: list[float], below: list[float]) -> float:
    """Median of the ratios of neighbouring runs."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def dense_runs(q: Any, k: Any, v: Any) -> dict[str, Callable[[], Any]]:
    """Every causal dense kernel of this machine, by name."""

    def torch_kernel(kernel: SDPBackend) -> Callable[[], Any]:
        def run() -> Any:
            with sdpa_kernel(kernel):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        return run

    if not q.is_cuda:
        return {"sdpa": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)}
    runs = {"cudnn": torch_kernel(SDPBackend.CUDNN_ATTENTION), "fa2": torch_kernel(SDPBackend.FLASH_ATTENTION)}
    try:
        from flash_attn.cute.interface import flash_attn_func
    except ImportError:
        return runs
    turned = tuple(x.transpose(1, 2) for x in (q, k, v))
    return {"fa4": lambda: flash_attn_func(*turned, causal=True)[0].transpose(1, 2)} | runs


class Flex:
    """FlexAttention over the same blocks, compiled at first use for each shape; the mask's own form is made once."""

    def __init__(self, backend: str) -> None:
        from torch.nn.attention.flex_attention import flex_attention

        self.options = {"BACKEND": backend}
        self.compiled = torch.compile(flex_attention, dynamic=False)
        self.known: tuple[Any, Any] = (None, None)

    def __call__(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        """Attention over the blocks of a mask."""
        if self.known[0] is not mask:
            self.known = mask, self._blocks(q, k, mask)
        options = {"block_mask": self.known[1], "enable_gqa": True, "kernel_options": self.options}
        return self.compiled(q, k, v, **options)

    def _blocks(self, q: Any, k: Any, mask: Any) -> Any:
        from torch.nn.attention.flex_attention import BlockMask

        lists = list_blocks(mask, q.shape[2], k.shape[2], BLOCK, True, None)
        own = torch.zeros_like(lists.columns[..., : mask.shape[3]])
        own[..., :1] = lists.own(q.shape[2], k.shape[2], BLOCK)
        columns = lists.columns[..., : mask.shape[3]].contiguous()
        # What is past a row's count was never written, and may be no column at all.
        there = torch.arange(mask.shape[3], device=q.device) < lists.counts[..., None]
        return BlockMask.from_kv_blocks(
            lists.edges,
            own,
            lists.counts,
            torch.where(there, columns, 0),
            BLOCK_SIZE=BLOCK,
            mask_mod=_causal,
            seq_lengths=(q.shape[2], k.shape[2]),
        )


def _causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return key <= query


def sparse_ways(flex: bool) -> dict[str, Callable[..., Any]]:
    """Functions of q, k, v and a block mask, by name."""
    ways: dict[str, Callable[..., Any]] = {
        "triton": functools.partial(block_sparse_attention, backend="triton"),
        "flash": functools.partial(block_sparse_attention, backend="flash"),
    }
    return ways | ({"flex": Flex("TRITON"), "flex_flash": Flex("FLASH")} if flex else {})
