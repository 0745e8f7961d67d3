"""Maps of queries and keys before their features are chosen: trained, or fitted so that few features say most.

The paper adapts the whole model and puts an extra linear transformation after the rotation (arXiv 2603.22300, whose
shape is not given). Here the model stays frozen, and one square map a layer and head is what is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from focus_core.adapter import Adapter
from focus_core.errors import InvalidInput

if TYPE_CHECKING:
    from focus_core.variants.base import AttentionCall, Variant

_FLOOR = 1e-4
"""Least variance of a direction, as a share of the largest: what never varies would be scaled without bound."""


@dataclass(frozen=True)
class FeatureMapsConfig:
    """Sizes of the model's attention: ``layers``, query ``heads``, ``kv_heads`` and ``head_dim``."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        """Check the sizes."""
        if min(self.layers, self.heads, self.kv_heads, self.head_dim) < 1 or self.heads % self.kv_heads:
            raise InvalidInput(f"Feature maps need positive sizes and heads that share evenly, not {self}.")


class FeatureMaps(Adapter):
    """``query_map`` (L, Hq, D, D) and ``key_map`` (L, Hkv, D, D) that rows are multiplied by; the identity at first."""

    kind = "sfa"
    config_class = FeatureMapsConfig

    def __init__(self, config: FeatureMapsConfig) -> None:
        super().__init__(config)
        one = torch.eye(config.head_dim)
        self.query_map = nn.Parameter(one.repeat(config.layers, config.heads, 1, 1))
        self.key_map = nn.Parameter(one.repeat(config.layers, config.kv_heads, 1, 1))

    def apply_map(self, x: torch.Tensor, side: str, layer: int) -> torch.Tensor:
        """Rotated queries or keys (B, H, N, D) after their head's map; ``side`` is query_map or key_map."""
        weight = getattr(self, side)[layer]
        # In bf16 a product is rounded otherwise from one batch shape to another, and a near tie would be decided so.
        with torch.autocast(x.device.type, enabled=False):
            work = torch.promote_types(x.dtype, torch.float32)
            return (x.to(work) @ weight.to(work)).to(x.dtype)


def fit_feature_maps(
    model: nn.Module, windows: torch.Tensor, *, progress: Callable[[float, str], None] | None = None
) -> FeatureMaps:
    """Maps whose first m features are the best m-wide short embedding of each head on these texts.

    With Cq and Ck the second moments of a head's queries (of all query heads that share it) and keys, and
    ``Cq^1/2 Ck^1/2 = U S V'``, queries go through ``Cq^-1/2 U S^1/2`` and keys through ``Cq^1/2 U S^-1/2``. All scores
    stay what they were; both sides have the variances S, in falling order; and the first m of them lose least of the
    scores' mean square (Eckart and Young), so no linear projection to m dimensions is better.

    Args:
        model: a transformers causal language model; it runs dense.
        windows: (W, N) token ids.
        progress: told the fraction done.

    Returns:
        The maps, in eval mode, for the served settings ``select=features`` or ``first``.
    """
    from focus_core.models.facts import facts_of

    facts = facts_of(model)
    adapter = FeatureMaps(FeatureMapsConfig(facts.layers, facts.heads, facts.kv_heads, facts.head_dim))
    moments = head_moments(model, windows, progress=progress)
    share = facts.heads // facts.kv_heads
    with torch.no_grad():
        for layer, (queries, keys) in moments.items():
            query_map, key_map = balanced_maps(queries, keys)
            adapter.query_map[layer] = query_map.repeat_interleave(share, 0)
            adapter.key_map[layer] = key_map
    return adapter.requires_grad_(False).to(model.device).eval()


def head_moments(
    model: nn.Module, windows: torch.Tensor, *, progress: Callable[[float, str], None] | None = None
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Second moments (Hkv, D, D) in fp64 of the queries (of all query heads that share a KV head) and of the keys.

    Args:
        model: a transformers causal language model; it runs dense.
        windows: (W, N) token ids.
        progress: told the fraction done.

    Returns:
        By layer; layers with their own window are left out.
    """
    from focus_core.models.facts import facts_of
    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    moments = _Moments(facts_of(model).kv_heads)
    for number, window in enumerate(windows):
        with torch.no_grad(), retrofit(model, make("dense"), recorder=moments):
            model(input_ids=window[None].to(model.device), use_cache=False)
        if progress is not None:
            progress((number + 1) / len(windows), f"Window {number + 1} of {len(windows)}")
    return {layer: (queries, keys) for layer, (queries, keys) in moments.sums.items()}


def balanced_maps(queries: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key maps (H, D, D) from second moments (H, D, D); see ``fit_feature_maps``."""
    root, inverse = _roots(queries.double())
    u, s, _ = torch.linalg.svd(root @ _roots(keys.double())[0])
    s = s.clamp_min(_FLOOR * s[:, :1])[:, None].sqrt()
    return inverse @ u * s, root @ u / s


def _roots(moment: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Square root and inverse square root of symmetric matrices."""
    values, vectors = torch.linalg.eigh(moment)
    values = values.clamp_min(_FLOOR * values[:, -1:].clamp_min(1e-12))[:, None].sqrt()
    return vectors * values @ vectors.mT, vectors / values @ vectors.mT


class _Moments:
    """Second moments of every full layer's queries and keys, by KV head."""

    def __init__(self, kv_heads: int) -> None:
        self.kv_heads = kv_heads
        self.sums: dict[int, list[Any]] = {}

    def record(self, call: AttentionCall, variant: Variant) -> None:
        if call.sliding_window is not None:
            return
        dim = call.query.shape[-1]
        for side, x in enumerate((call.query, call.key)):
            rows = x.transpose(0, 1).reshape(self.kv_heads, -1, dim).double()
            found = self.sums.setdefault(call.layer, [0.0, 0.0])
            found[side] = found[side] + rows.mT @ rows / rows.shape[1]
