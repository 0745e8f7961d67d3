"""Whether SFA's Triton kernel can serve a call, and the reason where it cannot."""

from __future__ import annotations

import torch

from focus_core.kernels.focus.triton import machine_refusal
from focus_core.kernels.sfa.codes import Codes
from focus_core.kernels.sfa.cpu import DECODE_QUERIES

_ROWS = 64


def sfa_triton_refusal(q: torch.Tensor, k: torch.Tensor | Codes, v: torch.Tensor, select: str) -> str | None:
    """Why the Triton kernel does not serve a call: one sentence, or None where it does.

    Args:
        q: (B, Hq, Nq, D).
        k: (B, Hkv, Nk, D), or codes.
        v: (B, Hkv, Nk, Dv).
        select: how features were chosen.
    """
    reason = machine_refusal(q.device)
    if reason is not None:
        return reason
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"SFA's Triton kernel computes in float16, bfloat16 and float32, not {q.dtype}."
    rows = q.shape[1] // v.shape[1] * q.shape[2]
    if q.shape[2] > DECODE_QUERIES or rows > _ROWS:
        return (
            f"SFA's Triton kernel serves up to {DECODE_QUERIES} queries and {_ROWS} rows of a key head, not "
            f"{q.shape[2]} and {rows}: for prompts, the scatter backend does the same by dense tiles."
        )
    if v.shape[3] > 256:
        return f"SFA's Triton kernel serves values of up to 256 numbers; these have {v.shape[3]}."
    if select == "first":
        return "The first features of every token are a short dense key, and need no code to be read."
    held = k.values if isinstance(k, Codes) else k
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, held, v)):
        return "SFA's Triton kernel has no backward."
    return None
