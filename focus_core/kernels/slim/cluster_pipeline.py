"""Slim attention's decode step by clusters of blocks with several tiles in flight (``pipeline.cu``)."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from focus_core.errors import NotAvailable
from focus_core.kernels.cuda import Kernel, kernel, tensor_map
from focus_core.kernels.focus.triton.tiles import cover, padded, scores_of
from focus_core.kernels.slim.cluster_decode import aligned
from focus_core.kernels.slim.operands import Operands
from focus_core.kernels.slim.turned import Turned
from focus_core.kernels.split_merge import Parts

_SOURCE = Path(__file__).with_name("pipeline.cu")
_NAME = "slim_pipeline"


@dataclass(frozen=True)
class PipelinePlan:
    """Sizes of the kernel.

    Attributes:
        tile: tokens that a block scores at a time: 32, 48 or 64.
        stages: tiles in shared memory, from their copies' start until they are weighted.
        columns: of the states, that one block owns: 512, or 1024 where heads have 128 numbers.
        box: tokens that one copy brings: 8, or a whole tile.
    """

    tile: int = 32
    stages: int = 6
    columns: int = 512
    box: int = 8

    @property
    def threads(self) -> int:
        """Of a block: warps that score, warps that weight, and one that copies."""
        return 32 * (self.tile // 8 + self.columns // 64 + 1)

    def shared(self, heads: int, dim: int) -> int:
        """Bytes of shared memory of a block."""
        lines = 32 if heads > 16 else 16
        slot = lines * (self.tile * 2 + 16 + 4) + 8
        tops = 3 * self.columns // dim * self.tile // 8 * 4
        return 1024 + self.stages * (self.tile * self.columns * 2 + 16) + 2 * self.stages * slot + tops


USUAL = PipelinePlan()
"""The sizes that are used where none are given."""
_TRIED: dict[tuple[Any, ...], str | None] = {}


def shares(batch: int, past: int, clusters: int, tile: int) -> tuple[int, int, int, int]:
    """How the tiles of all sequences are shared evenly, one after the other.

    Args:
        batch: sequences.
        past: tokens of each.
        clusters: those that run at once.
        tile: tokens of a tile.

    Returns:
        All tiles, those of a cluster, the clusters, and the most clusters that share a sequence.
    """
    each = cover(past, tile)
    every = batch * each
    per = cover(every, max(1, clusters))
    splits = max(((b + 1) * each - 1) // per - b * each // per + 1 for b in range(batch))
    return every, per, cover(every, per), splits


def compiled(o: Operands, capped: bool, plan: PipelinePlan) -> Kernel:
    """The kernel for a call."""
    return kernel(*_wanted(o, capped, plan))


def build_refusal(o: Operands, scale: float, softcap: float | None, plan: PipelinePlan | None = None) -> str | None:
    """Why the kernel for a call cannot be compiled, loaded or placed on its GPU; None where it can. Tried once."""
    plan = plan or USUAL
    wanted = _wanted(o, scores_of(scale, softcap).capped, plan)
    if wanted not in _TRIED:
        if torch.cuda.is_current_stream_capturing():
            return "Slim attention's cluster kernel is not loaded while a CUDA graph is captured: call it once before."
        blocks = o.q.shape[1] * o.q.shape[3] // plan.columns
        try:
            fits = kernel(*wanted).clusters(blocks) > 0
            _TRIED[wanted] = None if fits else f"No cluster of {blocks} blocks fits on this GPU at once."
        except (NotAvailable, RuntimeError) as problem:
            _TRIED[wanted] = f"Slim attention's cluster kernel cannot be built here: {problem}"
    return _TRIED[wanted]


def _wanted(o: Operands, capped: bool, plan: PipelinePlan) -> tuple[Any, ...]:
    heads, dim = o.q.shape[1], o.q.shape[3]
    constants = {
        "HEADS": heads, "DIM": dim, "CLUSTER": heads * dim // plan.columns, "WIDTH": padded(heads * dim),
        "TILE": plan.tile, "STAGES": plan.stages, "COLS": plan.columns, "BOX": plan.box,
        "TURNED": int(o.finish is not None), "CAPPED": int(capped), "PADDED": int(o.first_key is not None),
        "BF16": int(o.q.dtype == torch.bfloat16),
    }  # fmt: skip
    return _SOURCE, _NAME, tuple(constants.items()), plan.threads, plan.shared(heads, dim), o.q.device


@functools.lru_cache
def _at_once(found: Kernel, size: int) -> int:
    return max(1, found.clusters(size))


def cluster_states(o: Operands, past: int, scale: float, softcap: float | None, plan: PipelinePlan | None = None):
    """(B, H, w) sums of the past states by each head's weights, and (B, H, 1) log-sum-exp."""
    plan = plan or USUAL
    batch, heads, _, dim = o.q.shape
    width, device, blocks = heads * dim, o.q.device, heads * dim // plan.columns
    scores = scores_of(scale, softcap)
    found = compiled(o, scores.capped, plan)
    every, per, clusters, splits = shares(batch, past, _at_once(found, blocks), plan.tile)
    parts = Parts(batch, heads, padded(heads), splits, width, device)
    rows, tokens = (2 * step for step in o.state.stride()[:2])
    states = tensor_map(
        o.state.data_ptr(), (64, past, width // 64, batch), (tokens, 128, rows if batch > 1 else past * tokens),
        (64, plan.box, plan.columns // 64, 1),
    )  # fmt: skip
    q = aligned(o.q)
    cos = sin = first = q
    step = 0
    if isinstance(o.finish, Turned):
        cos, sin = (aligned(x.to(device, torch.float32)) for x in (o.finish.cos, o.finish.sin))
        step = 0 if cos.shape[0] == 1 else cos.stride(0)
    if o.first_key is not None:
        first = o.first_key.to(device, torch.int32)
    tensors = q, cos, sin, first, parts.part, parts.most, parts.total
    arguments = [
        states, *(ctypes.c_void_p(x.data_ptr()) for x in tensors), ctypes.c_longlong(step),
        *map(ctypes.c_float, (scores.unit, scores.cap_in, scores.cap_out)),
        # The signs of two numbers in 16 bits.
        ctypes.c_uint(0x8000_8000 if scores.negative else 0),
        *map(ctypes.c_int, (past, every, per, splits)),
    ]  # fmt: skip
    found.launch((blocks * clusters, 1, 1), arguments)
    sums = q.new_empty(batch, heads, width)
    lse = torch.empty(batch, heads, 1, dtype=torch.float32, device=device)
    parts.merge(sums, lse)
    return sums, lse
