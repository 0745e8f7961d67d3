"""How far a next-token distribution is from the dense model's, as a loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

_ROWS = 2048


def divergence(dense: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL(dense || other) in nats a token, from logits.

    Args:
        dense: (B, N, V), without gradient.
        logits: (B, N, V), what the gradient goes to.

    Returns:
        A scalar in fp32, the mean over tokens. Rows are computed again in the backward pass, so that the
        distributions of a long text never lie side by side in memory.
    """
    dense, logits = dense.flatten(0, 1), logits.flatten(0, 1)

    def part(start: int) -> torch.Tensor:
        wanted = F.log_softmax(dense[start : start + _ROWS].float(), -1)
        given = F.log_softmax(logits[start : start + _ROWS].float(), -1)
        return F.kl_div(given, wanted, reduction="sum", log_target=True)

    total = sum(checkpoint(part, start, use_reentrant=False) for start in range(0, len(logits), _ROWS))
    return torch.as_tensor(total) / len(logits)
