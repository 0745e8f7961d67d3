"""Slim attention's decode step by clusters of blocks, which read the states once (``decode.cu``)."""

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
from focus_core.kernels.slim.cluster_applies import COLUMNS
from focus_core.kernels.slim.operands import Operands
from focus_core.kernels.slim.turned import Turned
from focus_core.kernels.split_merge import Parts

_SOURCE = Path(__file__).with_name("decode.cu")
_BOX = 8
"""Tokens that one copy brings."""


@dataclass(frozen=True)
class ClusterPlan:
    """Sizes of the kernel.

    Attributes:
        tile: tokens that a block scores at a time: 32, 48 or 64.
        stages: tiles in shared memory, from their copies' start until they are weighted.
        teams: of warps, which share a block's heads: 1, 2 or 4.
    """

    tile: int = 32
    stages: int = 4
    teams: int = 1

    @property
    def threads(self) -> int:
        """Of a block: warps that score, warps that weight, and one that copies."""
        return 32 * (self.tile // 8 * self.teams + COLUMNS // 64 + 1)

    def shared(self, heads: int, dim: int, turned: bool) -> int:
        """Bytes of shared memory of a block."""
        lines = 32 if heads > 16 else 16
        slot = lines * (self.tile * 2 + 16 + 4) + 8
        angles = self.tile * dim * 4 if turned else 0
        tops = 3 * COLUMNS // dim * self.tile // 8 * 4
        return 1024 + self.stages * (self.tile * COLUMNS * 2 + angles + 16) + 2 * self.stages * slot + tops


# To rotate keys takes the scoring warps longer than tiles come, so there are more of them.
USUAL = {False: ClusterPlan(), True: ClusterPlan(teams=2)}
"""The sizes that are used where none are given, by whether keys are rotated when they are read."""
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


def plan_for(o: Operands) -> ClusterPlan:
    """The usual sizes for a call."""
    return USUAL[o.finish is not None]


def compiled(o: Operands, capped: bool, plan: ClusterPlan) -> Kernel:
    """The kernel for a call."""
    return kernel(*_wanted(o, capped, plan))


def build_refusal(o: Operands, scale: float, softcap: float | None, plan: ClusterPlan | None = None) -> str | None:
    """Why the kernel for a call cannot be compiled, loaded or placed on its GPU; None where it can. Tried once."""
    wanted = _wanted(o, scores_of(scale, softcap).capped, plan or plan_for(o))
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
    heads, dim, turned = o.q.shape[1], o.q.shape[3], o.finish is not None
    constants = {
        "HEADS": heads, "DIM": dim, "CLUSTER": heads * dim // COLUMNS, "WIDTH": padded(heads * dim),
        "TILE": plan.tile, "STAGES": plan.stages, "TEAMS": plan.teams, "TURNED": int(turned), "CAPPED": int(capped),
        "PADDED": int(o.first_key is not None), "BF16": int(o.q.dtype == torch.bfloat16),
    }  # fmt: skip
    return _SOURCE, "slim_decode", tuple(constants.items()), plan.threads, plan.shared(heads, dim, turned), o.q.device


@functools.lru_cache
def _at_once(found: Kernel, size: int) -> int:
    return max(1, found.clusters(size))


def cluster_states(o: Operands, past: int, scale: float, softcap: float | None, plan: ClusterPlan | None = None):
    """(B, H, w) sums of the past states by each head's weights, and (B, H, 1) log-sum-exp."""
    plan = plan or plan_for(o)
    batch, heads, _, dim = o.q.shape
    width, device, blocks = heads * dim, o.q.device, heads * dim // COLUMNS
    scores = scores_of(scale, softcap)
    found = compiled(o, scores.capped, plan)
    every, per, clusters, splits = shares(batch, past, _at_once(found, blocks), plan.tile)
    parts = Parts(batch, heads, padded(heads), splits, width, device)
    states = _map(o.state, past, COLUMNS // 64)
    q, rows = _aligned(o.q), 1
    # Without a rotation the kernel does not look at these, nor at the first keys where there are none.
    first, maps = q, (states, states)
    if isinstance(o.finish, Turned):
        cos, sin = (_aligned(x.to(device, torch.float32)) for x in (o.finish.cos, o.finish.sin))
        # The copy engine moves the angles' bytes, as those of twice as many numbers of 16 bits.
        maps, rows = tuple(_map(x.view(torch.int16), past, 1) for x in (cos, sin)), cos.shape[0]
    if o.first_key is not None:
        first = o.first_key.to(device, torch.int32)
    tensors = q, first, parts.part, parts.most, parts.total
    arguments = [
        states, *maps, *(ctypes.c_void_p(x.data_ptr()) for x in tensors),
        *map(ctypes.c_float, (scores.unit, scores.cap_in, scores.cap_out)),
        # The signs of two numbers in 16 bits.
        ctypes.c_uint(0x8000_8000 if scores.negative else 0),
        *map(ctypes.c_int, (past, every, per, splits, rows)),
    ]  # fmt: skip
    found.launch((blocks * clusters, 1, 1), arguments)
    sums = q.new_empty(batch, heads, width)
    lse = torch.empty(batch, heads, 1, dtype=torch.float32, device=device)
    parts.merge(sums, lse)
    return sums, lse


def _map(x: torch.Tensor, tokens: int, pieces: int) -> Any:
    """Of (B, Nk, w) numbers of 16 bits, by boxes of tokens and pieces of 64 numbers."""
    rows, width = x.shape[0], x.shape[2]
    row_step, token_step = (2 * step for step in x.stride()[:2])
    steps = token_step, 128, row_step if rows > 1 else tokens * token_step
    return tensor_map(x.data_ptr(), (64, tokens, width // 64, rows), steps, (64, _BOX, pieces, 1))


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """One block of memory that starts where 16 bytes divide: it is copied, and read several numbers at once."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()
