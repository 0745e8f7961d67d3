"""Rows without all but their largest numbers, on a GPU: what ``sparsify`` gives, read once and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.tiles import cover, padded
from focus_core.kernels.ready import launch

_LOWEST_BIT = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}
"""The lowest bit that a magnitude of the type can have as fp32."""


@triton.jit(do_not_specialize=["rows"])
def _thin(
    X, OUT, heads, tokens, xb, xh, xt, rows,
    D: tl.constexpr, DP: tl.constexpr, FEATURES: tl.constexpr, LOWEST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, DP)
    there = (row < rows)[:, None] & (d < D)[None, :]
    at = row // tokens // heads * xb + row // tokens % heads * xh + row % tokens * xt
    x = tl.load(X + at[:, None] + d[None, :], mask=there, other=0.0)
    # Magnitudes are in the order of their bits. The smallest that is kept, from its highest bit on.
    size = tl.abs(x.to(tl.float32)).to(tl.int32, bitcast=True)
    size = tl.where(there, size, -1)
    edge = tl.zeros([ROWS], tl.int32)
    for n in tl.static_range(31 - LOWEST):
        higher = edge | (1 << (30 - n))
        many = tl.sum((size >= higher[:, None]).to(tl.int32), 1) >= FEATURES
        edge = tl.where(many, higher, edge)
    above, equal = size > edge[:, None], (size == edge[:, None]).to(tl.int32)
    # Of equal magnitudes, those of the lowest dimensions.
    room = FEATURES - tl.sum(above.to(tl.int32), 1)
    kept = above | ((equal > 0) & (tl.cumsum(equal, 1) <= room[:, None]))
    tl.store(OUT + row[:, None] * D + d[None, :], tl.where(kept, x, 0.0), mask=there)


def thin(x: torch.Tensor, features: int) -> torch.Tensor:
    """``sparsify(x, features)`` of (B, H, N, D) in 16 or 32 bits, without a gradient; contiguous."""
    x = x if x.stride(3) == 1 else x.contiguous()
    batch, heads, tokens, dim = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = batch * heads * tokens
    rows = max(1, 4096 // padded(dim))
    constants = {"D": dim, "DP": padded(dim), "FEATURES": features, "LOWEST": _LOWEST_BIT[x.dtype], "ROWS": rows}
    fixed = heads, tokens, *x.stride()[:3]
    if total:
        launch(_thin, (cover(total, rows),), (x, out), fixed, (total,), constants, num_warps=4)
    return out
