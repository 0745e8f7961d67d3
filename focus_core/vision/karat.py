"""KArAt's operator: learned functions of the scores in place of softmax (arXiv 2503.10632v3, section 3).

For one head and one row a of N scores: z_p = sum over q of phi_pq(a_q), p = 1..r, and the weights of the values are
W z. Weights may be negative, and a row need not sum to 1. The order is W after the learned functions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from focus_core.errors import Unsupported
from focus_core.vision.bases import features
from focus_core.vision.config import AttentionConfig
from focus_core.vision.simplex import project


class Operator(nn.Module):
    """The operators of one layer's heads.

    Attributes:
        coefficients: [heads, r, F, N], the weights of the basis functions; r is N for the full operator.
        scale: [heads, r, N], multiplies an edge's learned curve.
        base: [heads, r, N], multiplies the base function; without effect where that is zero.
        mix: [heads, N, r], W; None for the full operator.
    """

    def __init__(self, config: AttentionConfig, heads: int, tokens: int) -> None:
        super().__init__()
        self.config, self.heads, self.tokens = config, heads, tokens
        rank = config.rank or tokens
        full = config.rank is None
        # A row of weights starts with a length near 1, as softmax's has at most: z of order 1, each weight 1/sqrt(N).
        spread = (tokens * config.features / 2) ** -0.5 * (tokens**-0.5 if full else 1.0)
        self.coefficients = nn.Parameter(torch.randn(heads, rank, config.features, tokens) * spread)
        self.scale = nn.Parameter(torch.ones(heads, rank, tokens))
        self.base = nn.Parameter(torch.zeros(heads, rank, tokens))
        self.mix = None if full else nn.Parameter(torch.randn(heads, tokens, rank) * (rank * tokens) ** -0.5)

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        """The weights of the values.

        Args:
            scores: [batch, heads, N, N], Q K^T over the root of the head's width.

        Returns:
            [batch, heads, N, N]; signed unless the row is projected.

        Raises:
            Unsupported: the number of tokens or heads is another than the operator was made for.
        """
        self.check(scores.shape[1], scores.shape[2], scores.shape[3])
        values = features(scores, self.config.basis, self.config.grid).flatten(-2)
        weights = (self.coefficients * self.scale.unsqueeze(2)).flatten(2)
        z = values @ weights.transpose(1, 2)
        if self.config.base_function == "silu":
            z = z + F.silu(scores) @ self.base.transpose(1, 2)
        if self.config.projection == "rank":
            z = project(z)
        out = z if self.mix is None else z @ self.mix.transpose(1, 2)
        return project(out) if self.config.projection == "row" else out

    def check(self, heads: int, queries: int, keys: int) -> None:
        """Refuse what the operator is not defined for, with the reason."""
        if queries != keys:
            raise Unsupported(
                f"KArAt has no cross-attention and no cache: {queries} queries and {keys} keys.",
                "Its learned functions belong to the positions of one fixed sequence; use softmax.",
            )
        if keys != self.tokens or heads != self.heads:
            raise Unsupported(
                f"This KArAt operator was made for {self.heads} heads and {self.tokens} tokens, and got {heads} heads "
                f"and {keys} tokens: every position has functions of its own, so neither the length nor the "
                f"image's resolution can change.",
                "Resize the image, or train an operator for this number of tokens.",
            )


def refuse_masks(mask: torch.Tensor | None, causal: bool, kind: str) -> None:
    """Refuse masks and causal use.

    Raises:
        Unsupported: a mask was given, or the attention is to be causal.
    """
    if causal:
        raise Unsupported(
            f"{kind} on images sees all tokens: causal use is not defined.",
            "A KArAt row adds up functions of all N scores, so that later tokens could not be left out.",
        )
    if mask is not None:
        raise Unsupported(
            f"{kind} on images takes no mask: every row is over all tokens.",
            "Give images of one size without padding.",
        )
