"""The ways of XAttention's attention that were tried on a GPU, and the dense kernels beside them."""

from __future__ import annotations

import functools
import inspect
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention

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


def graphed(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same work as one CUDA graph, as servers run it: no time goes to starting kernels one by one."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay() -> Any:
        graph.replay()
        return kept

    return replay


def interleaved(
    runs: dict[str, Callable[[], Any]], repeats: int, device: str, graphs: bool = False
) -> tuple[dict, dict[str, str]]:
    """Times of every run that works, with ``graphs`` as CUDA graphs too; and the reasons of those that do not."""
    failed, kept = {}, {}
    for name, run in runs.items():
        way = name
        try:
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            kept[name] = run
            if graphs and device == "cuda":
                way = f"{name}_graph"
                kept[way] = graphed(run)
                kept[way]()
                torch.cuda.synchronize()
        except Exception as problem:
            failed[way] = f"{type(problem).__name__}: {problem}"[-400:]
            kept.pop(way, None)
    times: dict[str, list[float]] = {name: [] for name in kept}
    for repeat in range(repeats):
        for name in rotated(list(kept), repeat):
            times[name].append(milliseconds(kept[name], device))
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


def flash_causal(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """flash-attn-4 told that the call is causal: it starts the longest rows first, and masks every kept block."""
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
    from flash_attn.cute.interface import flash_attn_func

    lists = list_blocks(mask, q.shape[2], k.shape[2], BLOCK, True, None)
    sparse = BlockSparseTensorsTorch(
        mask_block_cnt=lists.edges,
        mask_block_idx=lists.places[..., None],
        full_block_cnt=lists.counts,
        full_block_idx=lists.columns[..., : mask.shape[3]],
        block_size=(BLOCK, BLOCK),
    )
    turned = (x.transpose(1, 2) for x in (q, k, v))
    return flash_attn_func(*turned, causal=True, pack_gqa=False, block_sparse_tensors=sparse)[0].transpose(1, 2)


def score_alone(q: Any, k: Any, choose: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    """A choice of blocks that stops after the sums: what is left is the product and its softmax."""
    from focus_core.kernels.xattention.triton import run as scoring

    def run() -> None:
        usual = scoring.choose_blocks
        scoring.choose_blocks = lambda *args, **settings: None
        try:
            choose(q, k)
        finally:
            scoring.choose_blocks = usual

    return run


class Flex:
    """FlexAttention over the same blocks, compiled at first use for each shape."""

    def __init__(self, backend: str) -> None:
        self.options = {"BACKEND": backend}
        self.compiled = torch.compile(flex_attention, dynamic=False)

    def __call__(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        """Attention over the blocks of a mask."""
        options = {"block_mask": self._blocks(q, k, mask), "enable_gqa": True, "kernel_options": self.options}
        return self.compiled(q, k, v, **options)

    def _blocks(self, q: Any, k: Any, mask: Any) -> Any:
        lists = list_blocks(mask, q.shape[2], k.shape[2], BLOCK, True, None)
        own = torch.zeros_like(lists.columns[..., : mask.shape[3]])
        own[..., 0] = lists.places
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
            **({"compute_q_blocks": False} if _BACKWARD_APART else {}),
        )


_BACKWARD_APART = "compute_q_blocks" in inspect.signature(BlockMask.from_kv_blocks).parameters
"""Whether the lists that only a backward needs can be left out."""


def _causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return key <= query


def sparse_ways(tried: bool) -> dict[str, Callable[..., Any]]:
    """Functions of q, k, v and a block mask, by name; with ``tried`` also those that are timed for the record alone."""
    ways: dict[str, Callable[..., Any]] = {
        "flash": functools.partial(block_sparse_attention, backend="flash"),
        "triton": functools.partial(block_sparse_attention, backend="triton"),
    }
    return ways | ({"flash_causal": flash_causal} if tried else {})


def flex_ways() -> dict[str, Callable[..., Any]]:
    """FlexAttention by each of its backends."""
    return {"flex": Flex("TRITON"), "flex_flash": Flex("FLASH")}
