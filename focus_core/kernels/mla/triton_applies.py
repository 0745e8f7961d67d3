"""Whether MLA's Triton kernel can serve a call, and the reason where it cannot."""

from __future__ import annotations

import torch

from focus_core.kernels.focus.triton import machine_refusal

DECODE_QUERIES = 8
_RANK, _ROPE = 512, 128


def mla_triton_refusal(q: torch.Tensor, latent: torch.Tensor, k_rope: torch.Tensor, *others) -> str | None:
    """Why the Triton kernel does not serve a call: one sentence, or None where it does.

    Args:
        q: (B, H, Nq, Dn + Dr).
        latent: (B, 1, Nk, r).
        k_rope: (B, Hr, Nk, Dr).
        others: weights and biases.
    """
    reason = machine_refusal(q.device)
    if reason is not None:
        return reason
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"MLA's Triton kernel computes in float16, bfloat16 and float32, not {q.dtype}."
    if q.shape[2] > DECODE_QUERIES:
        return f"MLA's Triton kernel serves up to {DECODE_QUERIES} queries, not {q.shape[2]}: prompts make their keys."
    if latent.shape[3] > _RANK or k_rope.shape[3] > _ROPE:
        return (
            f"MLA's Triton kernel serves latents of up to {_RANK} numbers with {_ROPE} rotated ones; these have "
            f"{latent.shape[3]} and {k_rope.shape[3]}."
        )
    tensors = (q, latent, k_rope, *others)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        return "MLA's Triton kernel has no backward."
    return None
