"""The vision transformer: pre-norm, class token, learned positions; its attention is a variant."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from focus_core.errors import InvalidInput
from focus_core.vision.config import AttentionConfig, ViTConfig
from focus_core.vision.karat import Operator, refuse_masks
from focus_core.vision.xattention import kept_pairs

Watch = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Called once a layer with its number, the weights of the values [batch, heads, N, N], the scores and the values."""


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    config: AttentionConfig,
    layer: int,
    operator: Operator | None = None,
    scale: float | None = None,
    watch: Watch | None = None,
    counts: list[float] | None = None,
) -> torch.Tensor:
    """Attention of all heads of one layer.

    Args:
        query: [batch, heads, N, d].
        key: [batch, heads, N, d].
        value: [batch, heads, N, d].
        config: the variant.
        layer: its number, from 0.
        operator: KArAt's operator.
        scale: factor of the scores; 1 / sqrt(d) by default.
        watch: sees the weights; the softmax then leaves its fused kernel.
        counts: takes the share of pairs that this layer kept (XAttention).

    Returns:
        [batch, heads, N, d].
    """
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    mask = None
    if config.kind == "xattention":
        if layer >= config.warm_up:
            mask = kept_pairs(query, key, config, factor)
        if counts is not None:
            counts.append(1.0 if mask is None else mask.float().mean().item())
    if operator is None and watch is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=factor)
    if operator is not None:
        operator.check(query.shape[1], query.shape[2], key.shape[2])
    scores = query @ key.transpose(2, 3) * factor
    if operator is not None:
        weights = operator(scores)
    else:
        weights = (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1)
    if watch is not None:
        watch(layer, weights, scores, value)
    return weights.to(value.dtype) @ value


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: ViTConfig, layer: int, operator: Operator | None) -> None:
        super().__init__()
        w, hidden = config.width, config.width * config.mlp_ratio
        self.config, self.layer = config, layer
        self.norm1, self.norm2 = nn.LayerNorm(w, eps=1e-6), nn.LayerNorm(w, eps=1e-6)
        self.qkv, self.out = nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.up, self.down = nn.Linear(w, hidden), nn.Linear(hidden, w)
        self.operator = operator

    def forward(
        self,
        x: torch.Tensor,
        operator: Operator | None = None,
        watch: Watch | None = None,
        counts: list[float] | None = None,
        attention: AttentionConfig | None = None,
    ) -> torch.Tensor:
        """[batch, N, width] to the same; ``operator`` is KArAt's."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.config.heads, -1)).permute(2, 0, 3, 1, 4)
        used = attention or self.config.attention
        mixed = attend(q, k, v, used, self.layer, operator, watch=watch, counts=counts)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """A vision transformer for classification.

    Args:
        config: shape and attention. Under ``scope="universal"`` all layers hold the same operator.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        attention = config.attention
        self.embed = nn.Conv2d(config.channels, config.width, config.patch, config.patch)
        self.cls = nn.Parameter(torch.randn(1, 1, config.width) * 0.02)
        # As large as the patches' vectors: from 0.02, softmax found the positions late and lost 7 points on digits.
        self.positions = nn.Parameter(torch.randn(1, config.tokens, config.width) * 0.3)
        karat, shared = attention.kind == "karat", attention.scope == "universal"
        self.shared = Operator(attention, config.heads, config.tokens) if karat and shared else None
        own = karat and not shared
        self.blocks = nn.ModuleList(
            Block(config, i, Operator(attention, config.heads, config.tokens) if own else None)
            for i in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width, eps=1e-6)
        self.head = nn.Linear(config.width, config.classes)

    def operator(self, layer: int) -> Operator | None:
        """The operator that a layer uses."""
        return self.shared if self.shared is not None else self.blocks[layer].operator

    def forward(
        self,
        images: torch.Tensor,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        watch: Watch | None = None,
        counts: list[float] | None = None,
        attention: AttentionConfig | None = None,
    ) -> torch.Tensor:
        """Logits.

        Args:
            images: [batch, channels, side, side], about zero mean and unit spread.
            mask: refused.
            causal: refused.
            watch: sees every layer's weights.
            counts: takes the share of pairs that every layer kept (XAttention).
            attention: a trained softmax under XAttention; None: as trained.

        Returns:
            [batch, classes].

        Raises:
            Unsupported: a mask, causal use.
            InvalidInput: images of another size, or an attention that the weights were not trained with.
        """
        c = self.config
        refuse_masks(mask, causal, c.attention.kind)
        if tuple(images.shape[1:]) != (c.channels, c.image, c.image):
            raise InvalidInput(
                f"The images are {tuple(images.shape[1:])}; this model takes {(c.channels, c.image, c.image)}.",
                "Its positions, and KArAt's operators, belong to one resolution: resize the images.",
            )
        if attention is not None and (c.attention.kind == "karat" or attention.kind == "karat"):
            raise InvalidInput("A KArAt model cannot change its attention: the operators are part of its weights.")
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1).to(x.dtype), x], 1) + self.positions
        for block in self.blocks:
            x = block(x, self.operator(block.layer), watch, counts, attention)
        return self.head(self.norm(x[:, 0]))
