"""Whether the soft kernels can serve a call, and the reason where they cannot."""

from __future__ import annotations

import torch

from focus_core.kernels.focus.triton.applies import machine_refusal

_DIMS = 256
_GROUPS = 64
_ROWS = 65_535


def soft_refusal(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_membership: torch.Tensor,
    key_membership: torch.Tensor,
) -> str | None:
    """Why the soft Triton kernels do not serve a call: one sentence, or None where they do.

    Args:
        q: (B, Hq, Nq, D).
        k: (B, Hkv, Nk, D).
        v: (B, Hkv, Nk, Dv).
        query_membership: (B, R, Nq, K), R = 1 or Hkv.
        key_membership: (B, R, Nk, K).
    """
    machine = machine_refusal(q.device)
    if machine is not None:
        return machine
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"The soft Triton kernels compute in float16, bfloat16 and float32, not {q.dtype}."
    if not q.dtype == k.dtype == v.dtype:
        return f"The soft Triton kernels take one type of numbers, not {q.dtype}, {k.dtype} and {v.dtype}."
    widest = max(q.shape[3], v.shape[3])
    if widest > _DIMS:
        return f"The soft Triton kernels serve heads of up to {_DIMS} numbers; these have {widest}."
    if q.shape[0] * q.shape[1] > _ROWS:
        return f"The soft Triton kernels serve {_ROWS} heads of all sequences together, not {q.shape[0] * q.shape[1]}."
    if key_membership.shape[3] > _GROUPS:
        return f"The soft Triton kernels serve {_GROUPS} groups, not {key_membership.shape[3]}."
    batch, heads, keys = k.shape[:3]
    routers = key_membership.shape[1]
    wanted = (batch, routers, q.shape[2], key_membership.shape[3])
    fits = query_membership.shape == wanted and key_membership.shape[:3] == (batch, routers, keys)
    if not fits or routers not in (1, heads):
        return (
            f"The soft Triton kernels take memberships (batch, 1 or key heads, tokens, groups): query "
            f"{tuple(query_membership.shape)} and key {tuple(key_membership.shape)} do not fit {batch} sequences of "
            f"{q.shape[2]} queries and {keys} keys in {heads} key heads."
        )
    return None
