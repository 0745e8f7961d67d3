"""Factors that turn a model's keys and values into a latent attention (arXiv 2502.14837 and 2405.04434).

Every token's cache entry becomes ``c = x W_down`` (r numbers for all heads together) and, where the model rotates keys,
the few rotated numbers of each KV head that are kept as they are. What rotates cannot pass through the latent: a
rotation that depends on the position would stand between W_down and the weights that absorption folds together.
Each KV head keeps rotated numbers of its own, as its keys have always had: one shared rotated key, as in models that
were trained with it, would have to stand for keys that differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from focus_core.adapter import Adapter
from focus_core.errors import InvalidInput


@dataclass(frozen=True)
class LatentSettings:
    """Sizes of the factors.

    Attributes:
        layers, heads, kv_heads, head_dim, hidden_size: of the model's attention.
        rank: r.
        rotary: numbers of each KV head's key that stay rotated.
        rotated: numbers of a head that the model rotates; 0 where it rotates none.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    rank: int
    rotary: int = 0
    rotated: int = 0

    def __post_init__(self) -> None:
        """Check the sizes."""
        if not 1 <= self.rank <= full_rank(self.hidden_size, self.kv_heads, self.head_dim, self.rotary):
            limit = full_rank(self.hidden_size, self.kv_heads, self.head_dim, self.rotary)
            raise InvalidInput(f"The latent's rank is {self.rank}.", f"It can be 1 to {limit}, which loses nothing.")
        if self.rotary % 2 or not 0 <= self.rotary <= self.rotated <= self.head_dim:
            raise InvalidInput(
                f"{self.rotary} numbers of each head's key are to stay rotated.",
                f"It can be an even number up to {self.rotated}."
                if self.rotated
                else "The model rotates none, so it is 0.",
            )


def full_rank(hidden_size: int, kv_heads: int, head_dim: int, rotary: int) -> int:
    """The rank that loses nothing: no latent needs more than the hidden state, or than what is made of it."""
    return min(hidden_size, kv_heads * (2 * head_dim - rotary))


class LatentFactors(Adapter):
    """W_down (L, d, r), W_UK (L, Hkv, D - rotary, r), W_UV (L, Hkv, D, r), biases of keys and values.

    ``kept`` (L, Hkv, rotary) says which numbers of a head's key stay rotated, ``others`` (L, Hkv, D - rotary) which
    come from the latent; both in rising order.
    """

    kind = "latent"
    config_class = LatentSettings

    def __init__(self, config: LatentSettings) -> None:
        super().__init__(config)
        layers, kv_heads, nope = config.layers, config.kv_heads, config.head_dim - config.rotary
        self.down = nn.Parameter(torch.zeros(layers, config.hidden_size, config.rank))
        self.up_k = nn.Parameter(torch.zeros(layers, kv_heads, nope, config.rank))
        self.up_v = nn.Parameter(torch.zeros(layers, kv_heads, config.head_dim, config.rank))
        self.bias_k = nn.Parameter(torch.zeros(layers, kv_heads, nope))
        self.bias_v = nn.Parameter(torch.zeros(layers, kv_heads, config.head_dim))
        order = torch.arange(config.head_dim).repeat(layers, kv_heads, 1)
        self.register_buffer("kept", order[..., : config.rotary].clone())
        self.register_buffer("others", order[..., config.rotary :].clone())

    @property
    def drops_rotation(self) -> bool:
        """Whether numbers that the model rotates are no longer rotated: exact at no rank."""
        return self.config.rotary < self.config.rotated

    def latent(self, hidden: torch.Tensor, layer: int) -> torch.Tensor:
        """(B, 1, N, r) of hidden states (B, N, d)."""
        return (hidden @ self.down[layer].to(hidden.dtype))[:, None]

    def rotated_part(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """The numbers that stay rotated of queries or keys (B, H, N, D): (B, H, N, rotary)."""
        return _take(x, self.kept[layer])

    def other_part(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """The others: (B, H, N, D - rotary)."""
        return _take(x, self.others[layer])

    def weights(self, layer: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """``up_k``, ``up_v``, ``bias_k`` and ``bias_v`` of a layer, as ``mla_attention`` takes them."""
        return {name: getattr(self, name)[layer].to(dtype) for name in ("up_k", "up_v", "bias_k", "bias_v")}


def _take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """(B, H, N, n) of (B, H, N, D) by an index (Hkv, n) that the query heads of a KV head share."""
    batch, heads, tokens, _ = x.shape
    index = index.repeat_interleave(heads // index.shape[0], 0)
    return x.gather(-1, index[None, :, None].expand(batch, -1, tokens, -1))
