"""The groups' part and the near pass's into one softmax, where both were made side by side."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.launch import ready
from focus_core.kernels.focus.triton.near_pass import SortedPart
from focus_core.kernels.focus.triton.tiles import cover, padded

_ROWS = 64


@ready
@triton.jit(do_not_specialize=["queries", "keys", "heads", "routers", "rows"])
def _merge(
    OUT, LSE, PART, PART_LSE, SPOT, GROUP, OVER, queries, keys, heads, routers, rows,
    DV: tl.constexpr, DVP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = n < queries
    d = tl.arange(0, DVP)[None, :]
    per = heads // routers
    line = b * routers + h // per
    some = tl.load(GROUP + line * keys + n + keys - queries, mask=real, other=-2) >= 0
    spot = tl.load(SPOT + line * queries + n, mask=some, other=0).to(tl.int64)
    theirs = tl.load(PART_LSE + (h % per) * rows + spot, mask=some, other=float("-inf"))
    part = tl.load(PART + (spot * per + h % per)[:, None] * DV + d, mask=some[:, None] & (d < DV), other=0.0)
    to = tl.program_id(1).to(tl.int64) * queries + n
    mine = tl.load(LSE + to, mask=real, other=float("-inf"))
    at = OUT + to[:, None] * DV + d
    out = tl.load(at, mask=real[:, None] & (d < DV), other=0.0)
    most = tl.maximum(mine, theirs)
    none = most == float("-inf")
    most = tl.where(none, 0.0, most)
    near, far = tl.exp(mine - most), tl.exp(theirs - most)
    whole = tl.where(none, 1.0, near + far)
    # A token in more groups than was said: no number at all rather than a wrong one.
    whole = tl.where(tl.load(OVER + line) != 0, float("nan"), whole)
    merged = (out.to(tl.float32) * near[:, None] + part.to(tl.float32) * far[:, None]) / whole[:, None]
    tl.store(at, merged.to(OUT.dtype.element_ty), mask=real[:, None] & (d < DV))
    tl.store(LSE + to, tl.where(none, float("-inf"), most + tl.log(whole)), mask=real)


def merge_parts(out: torch.Tensor, lse: torch.Tensor, parts: SortedPart) -> None:
    """Add the groups' parts to what the near pass left, in place.

    Args:
        out: (B, Hq, Nq, Dv), contiguous: a softmax over the near pairs that share no group.
        lse: (B, Hq, Nq) its natural-log log-sum-exp, -inf where it has no pair.
        parts: a softmax over the pairs of the query's group.
    """
    batch, heads, queries, wide = out.shape
    lines, keys = parts.group.shape
    _merge[(cover(queries, _ROWS), batch * heads)](
        out, lse, parts.out, parts.lse, parts.spot, parts.group, parts.over, queries, keys, heads, lines // batch,
        parts.lse.shape[1], DV=wide, DVP=padded(wide), ROWS=_ROWS, num_warps=4,
    )  # fmt: skip
