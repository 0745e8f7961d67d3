"""Euclidean projection onto the simplex (arXiv 2503.10632, Algorithm 1)."""

from __future__ import annotations

import torch


def project(values: torch.Tensor) -> torch.Tensor:
    """The nearest vector of weights that are not negative and sum to 1, along the last axis; same shape.

    Gradients flow to the entries that stay positive.
    """
    exact = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    ordered = exact.sort(-1, descending=True).values
    above = ordered.cumsum(-1) - 1
    count = torch.arange(1, exact.shape[-1] + 1, device=exact.device, dtype=exact.dtype)
    last = (ordered * count > above).sum(-1, keepdim=True).clamp_min(1)
    level = above.gather(-1, last - 1) / last
    return (exact - level).clamp_min(0).to(values.dtype)
