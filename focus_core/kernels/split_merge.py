"""What the decode kernels share: how a cache is split over programs, and how the parts are put together."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.tiles import cover, padded
from focus_core.kernels.ready import launch

_WIDE = 512


@triton.jit(do_not_specialize=["splits", "width"])
def _merge(
    PART, MOST, SUM, OUT, LSE, splits, width,
    TILE: tl.constexpr, REAL: tl.constexpr, TILES: tl.constexpr, WP: tl.constexpr, COLS: tl.constexpr,
    SUMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, group, slice = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    first = (group * TILES + row // TILE) * splits
    d = slice * COLS + tl.arange(0, COLS)
    m = tl.full([BLOCK], -1e30, tl.float32)
    l = tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK, COLS], tl.float32)
    for start in range(0, splits, BLOCK):
        c = start + tl.arange(0, BLOCK)
        at = (first + c) * TILE + row % TILE
        part_l = tl.load(SUM + at, mask=c < splits, other=0.0)
        some = part_l > 0
        part_m = tl.load(MOST + at, mask=some, other=-1e30)
        part = tl.load(PART + at[:, None] * WP + d[None, :], mask=some[:, None] & (d < width)[None, :], other=0.0)
        new = tl.maximum(m, part_m)
        old, fresh = tl.exp2(m - new), tl.exp2(part_m - new)
        acc = acc * old[:, None] + part * fresh[:, None]
        l = l * old + part_l * fresh
        m = new
    top = tl.max(m, 0)
    weight = tl.exp2(m - top)
    whole = tl.sum(l * weight, 0)
    safe = tl.where(whole > 0, whole, 1.0)
    to = group * REAL + row
    tl.store(OUT + to * width + d, (tl.sum(acc * weight[:, None], 0) / safe).to(OUT.dtype.element_ty), mask=d < width)
    if SUMS:
        tl.store(
            LSE + to, tl.where(whole > 0, (top + tl.log2(safe)) * 0.6931471805599453, float("-inf")), mask=slice == 0
        )


class Parts:
    """Room for the parts of an attention whose keys are split: for each group of rows, tile of them and split.

    Args:
        groups: sets of rows that look at one cache.
        rows: rows of a group.
        tile: rows that one program takes.
        splits: programs that share the keys.
        width: numbers of a row's output.
        device: where.

    Attributes:
        part, most, total: fp32 sums (groups, tiles, splits, tile, padded width), and for each row the largest score in
            base 2 and the sum of its weights. A part is read only where the sum of its weights is above 0.
    """

    def __init__(self, groups: int, rows: int, tile: int, splits: int, width: int, device: torch.device) -> None:
        self.groups, self.rows, self.tile, self.splits, self.width = groups, rows, tile, splits, width
        lines = groups * cover(rows, tile) * splits * tile
        self.stride = padded(width)
        room = torch.empty(lines * (self.stride + 2), dtype=torch.float32, device=device)
        self.part, self.most, self.total = room.split([lines * self.stride, lines, lines])

    def merge(self, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        """Put the parts together.

        Args:
            out: contiguous (groups, rows, width), any float type.
            lse: contiguous fp32 (groups, rows) for the natural-log log-sum-exp, or None.
        """
        cols = min(self.stride, _WIDE)
        block = min(padded(self.splits), max(16, 8192 // cols))
        constants = {
            "TILE": self.tile, "REAL": self.rows, "TILES": cover(self.rows, self.tile), "WP": self.stride, "COLS": cols,
            "SUMS": lse is not None, "BLOCK": block,
        }  # fmt: skip
        tensors = self.part, self.most, self.total, out, out if lse is None else lse
        grid = self.rows, self.groups, cover(self.stride, cols)
        launch(_merge, grid, tensors, (), (self.splits, self.width), constants, num_warps=4)


def split_keys(keys: int, groups: int, programs: int, block: int) -> tuple[int, int]:
    """How many programs share the keys of a group so that there are about ``programs``, and the keys of each.

    A program has at least two blocks of keys, and whole ones.
    """
    splits = max(1, min(programs // max(1, groups), cover(keys, 2 * block)))
    per = cover(cover(keys, splits), block) * block
    return cover(keys, per), per


@functools.lru_cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 for a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
