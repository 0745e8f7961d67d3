"""One token's keys and values into a cache with room, where the device says how many tokens there are: one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.launch import ready


@ready
@triton.jit
def _put(
    KEYS, VALUES, K, V, TOKENS, kb, kh, vb, vh, heads, room, D: tl.constexpr, DP: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, h = row // heads, row % heads
    d = tl.arange(0, DP)
    to = (row * room + tl.load(TOKENS) - 1) * D + d
    tl.store(KEYS + to, tl.load(K + b * kb + h * kh + d, mask=d < D), mask=d < D)
    tl.store(VALUES + to, tl.load(V + b * vb + h * vh + d, mask=d < D), mask=d < D)


def put_rows(keys: torch.Tensor, values: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tokens: torch.Tensor) -> None:
    """Write (B, H, 1, D) ``k`` and ``v`` to place ``tokens - 1`` of (B, H, room, D) ``keys`` and ``values``.

    ``tokens`` is (1,) int64 on the device; ``keys`` and ``values`` are contiguous.
    """
    batch, heads, room, dim = keys.shape
    k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (k, v))
    _put[(batch * heads,)](
        keys, values, k, v, tokens, *k.stride()[:2], *v.stride()[:2], heads, room,
        D=dim, DP=triton.next_power_of_2(dim), num_warps=1,
    )  # fmt: skip
