"""The rotation of cached keys as tables of angles, which a kernel can apply while it reads them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from focus_core.errors import InvalidInput


@dataclass(frozen=True)
class Turned:
    """``finish`` of ``slim_attention`` where all that is left to do is a rotation by halves: pairs (u, u + D/2).

    Attributes:
        cos, sin: (B or 1, Nk, D/2) in fp32.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __post_init__(self) -> None:
        """Check the shapes."""
        if self.cos.dim() != 3 or self.cos.shape != self.sin.shape:
            raise InvalidInput(
                f"Angles need (rows, tokens, D/2) cosines and sines: {tuple(self.cos.shape)}, {tuple(self.sin.shape)}."
            )

    def __call__(self, keys: torch.Tensor, rows: slice, tokens: slice) -> torch.Tensor:
        """Rotated keys (R, H, n, D) of some rows and tokens."""
        cos, sin = (x[slice(None) if x.shape[0] == 1 else rows, tokens][:, None] for x in (self.cos, self.sin))
        first, second = keys.to(cos.dtype).chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(keys.dtype)
