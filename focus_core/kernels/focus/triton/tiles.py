"""What the attention kernels share: one block of scores, and the sizes that suit a head."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

LOG2_E = 1 / math.log(2)


@triton.jit
def block_step(
    q, k, v, keep, m, l, acc, unit, cap_in, cap_out, MASKED: tl.constexpr, CAPPED: tl.constexpr, DOT: tl.constexpr
):
    """One block of keys into the running softmax: maximum m (base 2), sum l and output acc of each row.

    A row that has seen no key has the maximum -1e30: finite, so that no difference of two infinities arises.
    """
    x = tl.dot(q, tl.trans(k), input_precision=DOT)
    if CAPPED:
        x = cap_out * (1.0 - 2.0 / (tl.exp2(x * cap_in) + 1.0))
    if MASKED:
        x = tl.where(keep, x, float("-inf"))
    new = tl.maximum(m, tl.max(x, 1) * unit)
    p = tl.exp2(x * unit - new[:, None])
    shrink = tl.exp2(m - new)
    l = l * shrink + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=DOT)
    return new, l, acc


@dataclass(frozen=True)
class Scores:
    """Factors that turn a dot product into a score in base 2.

    Attributes:
        unit: factor of the (capped) dot product.
        cap_in: factor inside the soft cap's tanh, as an exponent of 2; 0 without one.
        cap_out: factor of the tanh.
        capped: there is a soft cap.
        negative: the queries change sign, because ``unit`` must be above 0.
    """

    unit: float
    cap_in: float
    cap_out: float
    capped: bool
    negative: bool


def scores_of(scale: float, softcap: float | None) -> Scores:
    """Factors of a scale and a soft cap."""
    # A factor of 0 would meet the -inf of masked scores; so small a one leaves every kept score 0.
    size = max(abs(scale), 1e-30)
    if softcap is None:
        return Scores(size * LOG2_E, 0.0, 0.0, False, scale < 0)
    return Scores(1.0, 2 * size / softcap * LOG2_E, softcap * LOG2_E, True, scale < 0)


@dataclass(frozen=True)
class Tile:
    """Rows and keys of a block, warps, pipeline stages, and whether the copy engine brings the sorted keys."""

    rows: int
    keys: int
    warps: int
    stages: int
    copies: bool = False


def padded(dim: int) -> int:
    """The power of two, at least 16, that holds ``dim`` numbers."""
    # Triton's own functions for this and the next take 10 us a call.
    return max(16, 1 << (dim - 1).bit_length())


def cover(whole: int, part: int) -> int:
    """How many parts cover the whole."""
    return -(-whole // part)


def dot_precision(dtype: torch.dtype) -> str:
    """How products are taken: fp32 exactly, the 16-bit types by the tensor cores (the name then has no effect)."""
    return "ieee" if dtype == torch.float32 else "tf32"


def group_tile(dtype: torch.dtype, widest: int) -> Tile:
    """Sizes of the group pass: the fastest on an H200 of those in data/results/bench-focus-h200.json."""
    if dtype == torch.float32:
        return Tile(64, 32, 4, 2) if widest <= 64 else Tile(32, 32, 4, 1)
    if widest <= 64:
        return Tile(64, 64, 4, 3, copies=True)
    return Tile(128, 64, 8, 3, copies=True) if widest <= 128 else Tile(128, 32, 8, 2)


def begun_tile(dtype: torch.dtype, widest: int) -> Tile:
    """Sizes of that pass where flash-attn-4 begins it: its own tiles have 128 rows and more."""
    return Tile(128, 64, 8, 3) if widest <= 64 else group_tile(dtype, widest)


def near_tile(dtype: torch.dtype, widest: int) -> Tile:
    """Sizes of the pass over window and sinks; chosen likewise."""
    if dtype == torch.float32:
        return Tile(64, 32, 4, 2) if widest <= 64 else Tile(32, 32, 4, 1)
    if widest <= 64:
        return Tile(64, 32, 4, 3)
    return Tile(64, 64, 4, 3) if widest <= 128 else Tile(64, 32, 4, 2)


def fitted(tile: Tile, dtype: torch.dtype, widest: int, room: float) -> Tile:
    """The tile with as many pipeline stages as ``room`` bytes of shared memory hold, at least one."""
    line = padded(widest) * dtype.itemsize
    while tile.stages > 1 and (tile.rows + 2 * tile.keys * tile.stages) * line > room:
        tile = replace(tile, stages=tile.stages - 1)
    return tile


@functools.lru_cache
def shared_memory(device: torch.device) -> float:
    """Bytes of shared memory that one block may use."""
    if device.type != "cuda":
        return math.inf
    index = torch.cuda.current_device() if device.index is None else device.index
    return triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
