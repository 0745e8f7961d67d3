"""Shapes of a vision transformer and of its attention, and how many parameters they have; needs no torch.

KArAt (arXiv 2503.10632v3) replaces softmax by learned functions of the scores. One operator serves one head: N tokens,
rank r, ``features`` functions a learned curve. The published sizes are matched exactly by N * r * (2G + 3) an operator,
two numbers an edge more than the formula's 2G + 1; the authors' code is not public. Here the two are ``scale``, which
multiplies an edge's learned curve, and ``base``, which multiplies a base function; the published choice of base
function is zero, so ``base`` is then stored and counted, and has no effect.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from focus_core.errors import InvalidInput

KINDS = ("softmax", "karat", "xattention")
BASES = ("fourier", "bspline", "wavelet", "fractal")
SCOPES = ("block", "universal")
PROJECTIONS = ("none", "row", "rank")
BASE_FUNCTIONS = ("zero", "silu")


@dataclass(frozen=True)
class AttentionConfig:
    """What turns scores into the weights of the values.

    Attributes:
        kind: softmax, karat, or xattention (softmax over chosen blocks; only for a trained softmax).
        basis: the functions that a learned curve is a sum of.
        grid: G, how many of them: 2G functions (B-splines: G + 3).
        rank: r of the low-rank projection; None for the full operator, N by N.
        scope: an own operator a layer (``block``), or the same operators in all layers (``universal``).
        projection: projection onto the simplex: none, of the row of N weights, or of the r numbers before the mixing.
        base_function: what ``base`` multiplies; zero in all published main results.
        stride: XAttention's stride along the antidiagonals, in tokens.
        block: XAttention's block, in tokens; a multiple of the stride.
        threshold: the share of the estimated attention mass that the kept blocks of a row reach, in (0, 1].
        warm_up: how many first layers stay dense under XAttention.
    """

    kind: str = "softmax"
    basis: str = "fourier"
    grid: int = 3
    rank: int | None = 12
    scope: str = "block"
    projection: str = "none"
    base_function: str = "zero"
    stride: int = 4
    block: int = 16
    threshold: float = 0.9
    warm_up: int = 0

    def __post_init__(self) -> None:
        named = (
            ("kind", KINDS),
            ("basis", BASES),
            ("scope", SCOPES),
            ("projection", PROJECTIONS),
            ("base_function", BASE_FUNCTIONS),
        )
        for name, allowed in named:
            if getattr(self, name) not in allowed:
                raise InvalidInput(f"{name} is {getattr(self, name)!r}.", f"It can be {', '.join(allowed)}.")
        if self.grid < 1 or (self.rank is not None and self.rank < 1):
            raise InvalidInput(f"grid is {self.grid} and rank is {self.rank}.", "Both are 1 or more.")
        if self.projection == "rank" and self.rank is None:
            raise InvalidInput("The full operator has no rank vector to project.", "Use projection='row'.")
        if self.stride < 1 or self.block < self.stride or self.block % self.stride:
            raise InvalidInput(
                f"block is {self.block} and stride is {self.stride}.", "The block is a multiple of the stride."
            )
        if not 0.0 < self.threshold <= 1.0 or self.warm_up < 0:
            raise InvalidInput(
                f"threshold is {self.threshold} and warm_up is {self.warm_up}.",
                "The threshold is in (0, 1], the warm-up 0 or more layers.",
            )

    @property
    def features(self) -> int:
        """How many functions one learned curve is a sum of."""
        return self.grid + 3 if self.basis == "bspline" else 2 * self.grid


@dataclass(frozen=True)
class ViTConfig:
    """A pre-norm vision transformer with a class token and learned positions.

    Attributes:
        image: side of the square image, pixels.
        channels: 1 or 3.
        patch: side of a patch, pixels; divides the image's.
        width: of a token's vector.
        depth: layers.
        heads: attention heads; divides the width.
        mlp_ratio: hidden width of the MLP over the width.
        classes: how many.
        attention: what turns scores into weights.
    """

    image: int = 28
    channels: int = 1
    patch: int = 4
    width: int = 48
    depth: int = 4
    heads: int = 3
    mlp_ratio: int = 2
    classes: int = 10
    attention: AttentionConfig = field(default_factory=AttentionConfig)

    def __post_init__(self) -> None:
        if self.image % self.patch or self.width % self.heads:
            raise InvalidInput(
                f"A {self.image} pixel image in patches of {self.patch}, or a width of {self.width} in {self.heads} "
                f"heads, leaves a rest.",
                "The patch divides the image, and the heads divide the width.",
            )

    @property
    def tokens(self) -> int:
        """N: the patches and the class token."""
        return (self.image // self.patch) ** 2 + 1

    def with_attention(self, **changes: Any) -> ViTConfig:
        """The same shape with other attention settings."""
        return dataclasses.replace(self, attention=dataclasses.replace(self.attention, **changes))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> ViTConfig:
        """What ``as_dict`` wrote."""
        return cls(**{**given, "attention": AttentionConfig(**given["attention"])})


PRESETS: dict[str, ViTConfig] = {
    "tiny": ViTConfig(),
    "small": ViTConfig(width=112, heads=7),
    "digits": ViTConfig(image=8, patch=2),
    "long": ViTConfig(image=56),
    "vit-tiny": ViTConfig(224, 3, 16, 192, 12, 3, 4),
    "vit-small": ViTConfig(224, 3, 16, 384, 12, 6, 4),
    "vit-base": ViTConfig(224, 3, 16, 768, 12, 12, 4),
}
"""Ours (trained here) and the published shapes (for counting). The paper's totals of ViT-Tiny and ViT-Base are with
10 classes, that of ViT-Small with 1,000."""


def operator_count(config: ViTConfig) -> int:
    """The parameters of all KArAt operators: 0 for softmax and XAttention, which have none."""
    a, n = config.attention, config.tokens
    if a.kind != "karat":
        return 0
    one = n * n * (a.features + 2) if a.rank is None else n * a.rank * (a.features + 3)
    return one * config.heads * (1 if a.scope == "universal" else config.depth)


def parameter_count(config: ViTConfig) -> int:
    """All parameters of the model; the operators' are ``operator_count``."""
    w, hidden = config.width, config.width * config.mlp_ratio
    layer = 4 * w + (3 * w * w + 3 * w) + (w * w + w) + (w * hidden + hidden) + (hidden * w + w)
    embed = config.channels * config.patch**2 * w + w + w + config.tokens * w
    return embed + config.depth * layer + 2 * w + (w * config.classes + config.classes) + operator_count(config)
