"""The soft gates' attention as one function with a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from focus_core.kernels.focus.triton.tiles import Tile, cover, padded, shared_memory
from focus_core.kernels.focus.triton_soft.backward_keys import by_keys
from focus_core.kernels.focus.triton_soft.backward_queries import by_queries
from focus_core.kernels.focus.triton_soft.call import Call, Settings, packed
from focus_core.kernels.focus.triton_soft.forward import forward
from focus_core.kernels.focus.triton_soft.gate import rows

_DELTA_ROWS = 64
_LARGE = 160 * 1024


@dataclass(frozen=True)
class Plan:
    """Sizes of the three passes.

    Attributes:
        forward: of the forward pass.
        keys: of the backward pass that holds keys.
        queries: of the one that holds queries.
    """

    forward: Tile
    keys: Tile
    queries: Tile


def plan_of(dtype: torch.dtype, widest: int, room: float, product: bool = False) -> Plan:
    """Sizes of a call: for 16-bit heads up to 64 the fastest tried on an H200, else what its registers hold.

    Args:
        dtype: of the heads.
        widest: numbers of a head.
        room: bytes of shared memory that a block may use.
        product: whether agreement is a product over groups.
    """
    if dtype == torch.float32:
        small = Tile(32 if widest <= 64 else 16, 32, 8, 1)
        return Plan(small, small, small)
    if widest > 128:
        if room < _LARGE:
            small = Tile(32, 32, 8, 1)
            return Plan(small, small, small)
        return Plan(Tile(64, 32, 8, 1), Tile(32, 64, 8, 1), Tile(64, 32, 8, 1))
    if product or room < _LARGE:
        return Plan(Tile(64, 32, 4, 1), Tile(32, 64, 4, 1), Tile(64, 32, 4, 1))
    if widest > 64:
        return Plan(Tile(128, 64, 8, 2), Tile(32, 128, 8, 2), Tile(64, 64, 8, 1))
    return Plan(Tile(64, 64, 4, 3), Tile(64, 64, 4, 2), Tile(64, 64, 4, 3))


@triton.jit(do_not_specialize=["queries", "heads"])
def _delta(
    OUT, G, DELTA, ob, oh, ot, gb, gh, gt, queries, heads,
    DV: tl.constexpr, DVP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out = rows(OUT + b * ob + h * oh, n, ot, queries, DV, DVP, True)
    g = rows(G + b * gb + h * gh, n, gt, queries, DV, DVP, True)
    product = tl.sum(out.to(tl.float32) * g.to(tl.float32), 1)
    tl.store(DELTA + tl.program_id(1).to(tl.int64) * queries + n, product, mask=n < queries)


def delta_of(out: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """(B, Hq, Nq) fp32 products of the output's rows and their gradients."""
    batch, heads, queries, wide = out.shape
    delta = torch.empty(batch, heads, queries, dtype=torch.float32, device=out.device)
    _delta[(cover(queries, _DELTA_ROWS), batch * heads)](
        out, grad, delta, *out.stride()[:3], *grad.stride()[:3], queries, heads,
        DV=wide, DVP=padded(wide), ROWS=_DELTA_ROWS, num_warps=4,
    )  # fmt: skip
    return delta


class _Soft(torch.autograd.Function):
    """Saves inputs, output and one number a query and head."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        query_membership: torch.Tensor,
        key_membership: torch.Tensor,
        first: torch.Tensor | None,
        settings: Settings,
        plan: Plan,
    ) -> torch.Tensor:
        xq, xk = (packed(x, settings.key_topk, q.dtype) for x in (query_membership, key_membership))
        call = Call(q, k, v, xq, xk, first, key_membership.shape[3], settings)
        out, lse = forward(call, plan.forward)
        ctx.save_for_backward(q, k, v, xq, xk, first, out, lse)
        ctx.settings, ctx.plan = settings, plan
        ctx.groups = key_membership.shape[3]
        ctx.kinds = query_membership.dtype, key_membership.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, xq, xk, first, out, lse = ctx.saved_tensors
        heads, gate = any(ctx.needs_input_grad[:3]), any(ctx.needs_input_grad[3:5])
        call, plan = Call(q, k, v, xq, xk, first, ctx.groups, ctx.settings), ctx.plan
        grad = grad if grad.stride(3) == 1 else grad.contiguous()
        delta = delta_of(out, grad)
        dk, dv, dxk = by_keys(call, grad, lse, delta, heads, gate, plan.keys)
        dq, dxq = by_queries(call, grad, lse, delta, heads, gate, plan.queries)
        dk, dv = (None if x is None else x.sum(2).to(q.dtype) if x.shape[2] > 1 else x[:, :, 0] for x in (dk, dv))
        dxq, dxk = (
            None if x is None else _of_routers(x, xk.shape[1], ctx.groups).to(kind)
            for x, kind in zip((dxq, dxk), ctx.kinds, strict=True)
        )
        return dq, dk, dv, dxq, dxk, None, None, None


def _of_routers(parts: torch.Tensor, routers: int, groups: int) -> torch.Tensor:
    """(B, R, N, K) sums of the parts (B, heads, N, KP) that each router serves."""
    batch, heads, tokens, width = parts.shape
    return parts.view(batch, routers, heads // routers, tokens, width)[..., :groups].sum(2)


def soft_triton(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_membership: torch.Tensor,
    key_membership: torch.Tensor,
    *,
    key_topk: int,
    floor: float,
    window: int,
    sinks: int,
    first_key: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attention whose far scores are shifted by ``log(floor + (1 - floor) P(share a group))``, with its gradient.

    Args:
        q: (B, Hq, Nq, D); the last Nq of the Nk positions.
        k: (B, Hkv, Nk, D).
        v: (B, Hkv, Nk, Dv).
        query_membership: (B, R, Nq, K) in [0, 1], R = 1 or Hkv.
        key_membership: (B, R, Nk, K) in [0, 1]; with one group a key it sums to at most 1.
        key_topk: groups a key belongs to: agreement is a sum with one, else ``1 - prod_c (1 - q_c k_c)``.
        floor: chance that an ungrouped pair keeps.
        window: keys nearest to the query without a gate, itself included.
        sinks: first real keys without a gate.
        first_key: (B,) first real key of each left-padded row, or None.
        scale: factor of the scores.
        softcap: soft cap of the scores, before the gate, or None.

    Returns:
        (B, Hq, Nq, Dv); a padded query returns 0. Memory grows with tokens, not with pairs, in both directions.
    """
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    first = None if first_key is None else first_key.to(q.device, torch.int32)
    settings = Settings(key_topk, floor, window, sinks, scale, softcap)
    plan = plan_of(q.dtype, max(q.shape[3], v.shape[3]), shared_memory(q.device), key_topk > 1)
    return _Soft.apply(q, k, v, query_membership, key_membership, first, settings, plan)
