"""Slim attention, plain: keys and values are made, then a masked softmax. The specification."""

from __future__ import annotations

import torch

from focus_core.kernels.checks import wide
from focus_core.kernels.slim.operands import Operands


def slim_reference(operands: Operands, *, scale: float, softcap: float | None):
    """(output, LSE) of ``slim_attention``; holds every score."""
    q = operands.q
    work = wide(q.dtype)
    scores = q.to(work) @ operands.keys().to(work).transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~operands.kept(0, q.shape[2]), float("-inf"))
    lse = torch.logsumexp(scores, -1, keepdim=True)
    weights = torch.exp(scores - lse.masked_fill(lse.isneginf(), 0))
    return (weights @ operands.values().to(work)).to(q.dtype), lse.squeeze(-1)
