"""Keys and values in the order of the plan, so that the group pass reads them in a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from focus_core.kernels.focus.triton.launch import ready
from focus_core.kernels.focus.triton.plan import Plan
from focus_core.kernels.focus.triton.tiles import cover, padded

_ROWS = 64


@ready
@triton.jit(do_not_specialize=["room"])
def _gather(
    K, V, KEYS, VALUES, KEY_AT, KEY_TOTAL, kb, kh, kt, vb, vh, vt, room, routers,
    D: tl.constexpr, DV: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    heads = tl.num_programs(1)
    row = b * routers + h // (heads // routers)
    e = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    used = e < tl.load(KEY_TOTAL + row)
    at = tl.load(KEY_AT + row * room + e, mask=used, other=0).to(tl.int64)
    to = ((b * heads + h) * room + e)[:, None]
    d = tl.arange(0, DP)[None, :]
    k = tl.load(K + b * kb + h * kh + at[:, None] * kt + d, mask=used[:, None] & (d < D), other=0.0)
    # Rows past the last key are 0, so that whatever reads a full block finds numbers there.
    tl.store(KEYS + to * D + d, k, mask=(e < room)[:, None] & (d < D))
    d = tl.arange(0, DVP)[None, :]
    v = tl.load(V + b * vb + h * vh + at[:, None] * vt + d, mask=used[:, None] & (d < DV), other=0.0)
    tl.store(VALUES + to * DV + d, v, mask=(e < room)[:, None] & (d < DV))


def gather_keys(k: torch.Tensor, v: torch.Tensor, plan: Plan, routers: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies (B, Hkv, key_room, D) and (B, Hkv, key_room, Dv) of keys and values, by group and time."""
    batch, heads = k.shape[:2]
    room = plan.key_at.shape[1]
    keys = k.new_empty(batch, heads, room, k.shape[3])
    values = v.new_empty(batch, heads, room, v.shape[3])
    dims = {"D": k.shape[3], "DV": v.shape[3], "DP": padded(k.shape[3]), "DVP": padded(v.shape[3])}
    _gather[(cover(room, _ROWS), heads, batch)](
        k, v, keys, values, plan.key_at, plan.key_total, *k.stride()[:3], *v.stride()[:3], room, routers,
        **dims, ROWS=_ROWS, num_warps=4,
    )  # fmt: skip
    return keys, values
