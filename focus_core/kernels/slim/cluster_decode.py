"""Slim attention's decode step by clusters of blocks, which read the states once (``decode.cu``)."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from focus_core.errors import NotAvailable
from focus_core.kernels.cuda import Kernel, kernel
from focus_core.kernels.focus.triton.tiles import cover, padded, scores_of
from focus_core.kernels.slim.cluster_applies import COLUMNS
from focus_core.kernels.slim.operands import Operands
from focus_core.kernels.slim.turned import Turned
from focus_core.kernels.split_merge import Parts

_SOURCE = Path(__file__).with_name("decode.cu")
_THREADS, _SLOTS = 544, 3
_START, _PART = 128, 10
"""What it costs a cluster to begin, and all of them to merge one part, in tokens that are read meanwhile."""


@dataclass(frozen=True)
class ClusterPlan:
    """Sizes of the kernel.

    Attributes:
        tile: tokens that a block scores at a time, 32 or 64.
        stages: tiles in shared memory, those that are being copied included.
        splits: clusters that share a sequence's tokens; None for as many as keep all multiprocessors busy.
    """

    tile: int = 64
    stages: int = 3
    splits: int | None = None

    def shared(self, heads: int, dim: int) -> int:
        """Bytes of shared memory of a block."""
        lines = 32 if heads > 16 else 16
        stage, weights = self.tile * (COLUMNS * 2 + 16), lines * (self.tile * 2 + 16)
        scores = COLUMNS // dim * self.tile * 4
        return self.stages * (stage + 16) + _SLOTS * (weights + lines * 4) + scores


USUAL = ClusterPlan()
"""The sizes that are used where none are given."""
_TRIED: dict[tuple[Any, ...], str | None] = {}


def shares(batch: int, past: int, clusters: int, tile: int, splits: int | None = None) -> tuple[int, int]:
    """How many clusters share a sequence's tokens, and the tokens of each.

    Args:
        batch: sequences.
        past: tokens of each.
        clusters: those that run at once.
        tile: tokens of a tile; a cluster has whole ones.
        splits: about how many; None for those that are done soonest.
    """

    def per(count: int) -> int:
        return cover(cover(past, count), tile) * tile

    def cost(count: int) -> int:
        real = cover(past, per(count))
        return cover(batch * real, clusters) * (per(count) + _START) + _PART * batch * real

    most = max(1, min(4 * clusters, cover(past, 4 * tile)))
    best = min(range(1, most + 1), key=cost) if splits is None else max(1, min(splits, cover(past, tile)))
    return cover(past, per(best)), per(best)


def compiled(o: Operands, capped: bool, plan: ClusterPlan) -> Kernel:
    """The kernel for a call."""
    return kernel(*_wanted(o, capped, plan))


def build_refusal(o: Operands, scale: float, softcap: float | None, plan: ClusterPlan = USUAL) -> str | None:
    """Why the kernel for a call cannot be compiled, loaded or placed on its GPU; None where it can. Tried once."""
    wanted = _wanted(o, scores_of(scale, softcap).capped, plan)
    if wanted not in _TRIED:
        if torch.cuda.is_current_stream_capturing():
            return "Slim attention's cluster kernel is not loaded while a CUDA graph is captured: call it once before."
        blocks = o.q.shape[1] * o.q.shape[3] // COLUMNS
        try:
            fits = kernel(*wanted).clusters(blocks) > 0
            _TRIED[wanted] = None if fits else f"No cluster of {blocks} blocks fits on this GPU at once."
        except (NotAvailable, RuntimeError) as problem:
            _TRIED[wanted] = f"Slim attention's cluster kernel cannot be built here: {problem}"
    return _TRIED[wanted]


def _wanted(o: Operands, capped: bool, plan: ClusterPlan) -> tuple[Any, ...]:
    heads, dim = o.q.shape[1], o.q.shape[3]
    constants = {
        "HEADS": heads, "DIM": dim, "CLUSTER": heads * dim // COLUMNS, "WIDTH": padded(heads * dim), "TILE": plan.tile,
        "STAGES": plan.stages, "TURNED": int(o.finish is not None), "CAPPED": int(capped),
        "PADDED": int(o.first_key is not None), "BF16": int(o.q.dtype == torch.bfloat16),
    }  # fmt: skip
    return _SOURCE, "slim_decode", tuple(constants.items()), _THREADS, plan.shared(heads, dim), o.q.device


@functools.lru_cache
def _at_once(found: Kernel, size: int) -> int:
    return max(1, found.clusters(size))


def cluster_states(o: Operands, past: int, scale: float, softcap: float | None, plan: ClusterPlan | None = None):
    """(B, H, w) sums of the past states by each head's weights, and (B, H, 1) log-sum-exp."""
    plan = plan or USUAL
    batch, heads, _, dim = o.q.shape
    width, device, blocks = heads * dim, o.q.device, heads * dim // COLUMNS
    scores = scores_of(scale, softcap)
    found = compiled(o, scores.capped, plan)
    splits, per = shares(batch, past, _at_once(found, blocks), plan.tile, plan.splits)
    parts = Parts(batch, heads, padded(heads), splits, width, device)
    q = aligned(o.q)
    cos = sin = first = q
    step = 0
    if isinstance(o.finish, Turned):
        cos, sin = (aligned(x.to(device, torch.float32)) for x in (o.finish.cos, o.finish.sin))
        step = 0 if cos.shape[0] == 1 else cos.stride(0)
    if o.first_key is not None:
        first = o.first_key.to(device, torch.int32)
    tensors = q, o.state, cos, sin, first, parts.part, parts.most, parts.total
    steps = *o.state.stride()[:2], step
    factors = scores.unit, scores.cap_in, scores.cap_out, -1.0 if scores.negative else 1.0
    arguments = [
        *(ctypes.c_void_p(x.data_ptr()) for x in tensors), *map(ctypes.c_longlong, steps),
        *map(ctypes.c_float, factors), ctypes.c_int(past), ctypes.c_int(per),
    ]  # fmt: skip
    found.launch((blocks * splits, batch, 1), arguments)
    sums = q.new_empty(batch, heads, width)
    lse = torch.empty(batch, heads, 1, dtype=torch.float32, device=device)
    parts.merge(sums, lse)
    return sums, lse


def aligned(x: torch.Tensor) -> torch.Tensor:
    """One block of memory that starts where 16 bytes divide: the kernel loads several numbers at once."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()
