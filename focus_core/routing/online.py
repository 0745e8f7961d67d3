"""Online k-means of each head's queries and keys: the centroids of a Routing Transformer, with no gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from focus_core.adapter import Adapter
from focus_core.errors import Cancelled, InvalidInput
from focus_core.routing.sets import MAX_GROUPS

DECAY = 0.999


@dataclass(frozen=True)
class RoutingConfig:
    """Shape of the centroids: ``layers`` x ``kv_heads`` x ``groups`` x ``head_dim``."""

    layers: int
    kv_heads: int
    head_dim: int
    groups: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 1 <= self.groups <= MAX_GROUPS:
            raise InvalidInput(f"{self.groups} clusters cannot be served.", f"1 to {MAX_GROUPS} can.")


class RoutingCentroids(Adapter):
    """Unit centroids (L, Hkv, K, D) that queries and keys share, and the mean (L, Hkv, D) of each.

    A query head is routed by the centroids of the key head that it reads.
    """

    kind = "routing"
    config_class = RoutingConfig

    def __init__(self, config: RoutingConfig) -> None:
        super().__init__(config)
        lead = (config.layers, config.kv_heads)
        generator = torch.Generator().manual_seed(config.seed)
        drawn = F.normalize(torch.randn(*lead, config.groups, config.head_dim, generator=generator), dim=-1)
        self.centroids = nn.Parameter(drawn, requires_grad=False)
        self.register_buffer("key_mean", torch.zeros(*lead, config.head_dim))
        self.register_buffer("query_mean", torch.zeros(*lead, config.head_dim))

    def points(self, layer: int, vectors: torch.Tensor, side: str) -> torch.Tensor:
        """Unit vectors (B, Hkv, G, N, D) of ``keys`` (G = 1) or ``queries`` (G heads a key head), in fp32.

        The paper's norm without gain or bias, then the sphere; fp64 stays fp64.
        """
        x = vectors.unflatten(1, (self.config.kv_heads, -1))
        x = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        x = F.layer_norm(x, x.shape[-1:])
        mean = (self.key_mean if side == "keys" else self.query_mean)[layer]
        return F.normalize(x - mean[:, None, None].to(x), dim=-1)

    def logits(self, layer: int, vectors: torch.Tensor, side: str) -> torch.Tensor:
        """(B, Hkv * G, N, K) cosines with the centroids; a token's depend on that token alone."""
        with torch.autocast(vectors.device.type, enabled=False):
            x = self.points(layer, vectors, side)
            return (x @ self.centroids[layer][:, None].to(x).transpose(-1, -2)).flatten(1, 2)


def nearest_share(logits: torch.Tensor, first_real: torch.Tensor | None) -> torch.Tensor:
    """The published clusters: each takes the ceil(n / K) tokens nearest to it, of the whole text.

    A token can be in several clusters or in none, and whether it is depends on later tokens.

    Args:
        logits: (B, H, N, K).
        first_real: (B,) first real token of a left-padded row; None when no row is padded.

    Returns:
        (B, H, N) int64 sets.
    """
    _, _, tokens, groups = logits.shape
    first = torch.zeros(len(logits), dtype=torch.long) if first_real is None else first_real
    sets = torch.zeros_like(logits[..., 0], dtype=torch.long)
    for row, start in enumerate(first.tolist()):
        width = -(-(tokens - start) // groups)
        if not width:
            continue
        chosen = logits[row, :, start:].topk(width, dim=1).indices
        inside = torch.zeros_like(logits[row, :, start:], dtype=torch.long).scatter_(1, chosen, 1)
        sets[row, :, start:] = (inside << torch.arange(groups, device=inside.device)).sum(-1)
    return sets


class _Learner:
    """A recorder that moves each layer's centroids by the window that it sees."""

    def __init__(self, adapter: RoutingCentroids, decay: float) -> None:
        self.adapter, self.decay, self.seen = adapter, decay, 0
        self.centring = True

    def record(self, call: Any, variant: Any) -> None:
        adapter, layer = self.adapter, call.layer
        # An average over what was seen at first, which turns into the published moving average.
        kept = min(self.decay, self.seen / (self.seen + 1))
        sides = {"keys": call.key.detach().float(), "queries": call.query.detach().float()}
        if self.centring:
            for side, mean in (("keys", adapter.key_mean), ("queries", adapter.query_mean)):
                x = F.layer_norm(sides[side], sides[side].shape[-1:]).unflatten(1, (adapter.config.kv_heads, -1))
                mean[layer] = kept * mean[layer] + (1 - kept) * x.mean((0, 2, 3)).to(mean)
            return
        points = torch.cat([adapter.points(layer, x, side).movedim(1, 0).flatten(1, 3) for side, x in sides.items()], 1)
        centroids = adapter.centroids[layer]
        nearest = F.one_hot((points @ centroids.transpose(-1, -2)).argmax(-1), adapter.config.groups).float()
        count = nearest.sum(1)[..., None]
        mean = nearest.transpose(-1, -2) @ points / count.clamp_min(1)
        moved = F.normalize(kept * centroids + (1 - kept) * mean, dim=-1)
        centroids.copy_(torch.where(count > 0, moved, centroids))

    def start_from(self, layer_points: dict[int, torch.Tensor]) -> None:
        """Begin with points of the text, which no cluster then lacks."""
        for layer, points in layer_points.items():
            self.adapter.centroids[layer].copy_(points)


class _Sampler:
    """A recorder that draws each head's first centroids among its points."""

    def __init__(self, adapter: RoutingCentroids) -> None:
        self.adapter = adapter
        self.generator = torch.Generator().manual_seed(adapter.config.seed)
        self.drawn: dict[int, torch.Tensor] = {}

    def record(self, call: Any, variant: Any) -> None:
        config = self.adapter.config
        sides = {"keys": call.key.float(), "queries": call.query.float()}
        each = [self.adapter.points(call.layer, x, s).movedim(1, 0).flatten(1, 3) for s, x in sides.items()]
        points = torch.cat(each, 1)
        picked = torch.randint(0, points.shape[1], (config.kv_heads, config.groups), generator=self.generator)
        self.drawn[call.layer] = points.gather(1, picked[..., None].to(points.device).expand(-1, -1, config.head_dim))


@torch.no_grad()
def fit_routing(
    model: nn.Module,
    windows: torch.Tensor,
    *,
    groups: int = 16,
    seed: int = 0,
    decay: float = DECAY,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> RoutingCentroids:
    """Fit the clusters of every head by one pass for the means and one of online k-means.

    Args:
        model: the pretrained model, which runs dense and is not changed.
        windows: (W, N) token ids, one window a step.
        groups: K.
        seed: of the first centroids.
        decay: of the centroids' moving average, once enough was seen.
        progress: told the fraction done.
        cancel: asked before every window.

    Returns:
        The adapter of the variant ``routing``.

    Raises:
        Cancelled: on request.
    """
    from focus_core.models.facts import facts_of
    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    facts = facts_of(model)
    device = next(model.parameters()).device
    adapter = RoutingCentroids(RoutingConfig(facts.layers, facts.kv_heads, facts.head_dim, groups, seed)).to(device)
    learner, sampler = _Learner(adapter, decay), _Sampler(adapter)
    passes = [(learner, windows), (sampler, windows[:1]), (learner, windows)]
    total, done = 2 * len(windows) + 1, 0
    for number, (recorder, texts) in enumerate(passes):
        learner.seen, learner.centring = 0, number == 0
        for window in texts:
            if cancel is not None and cancel():
                raise Cancelled()
            if progress is not None:
                progress(done / total, f"Window {done + 1} of {total}")
            with retrofit(model, make("dense"), recorder=recorder):
                model(input_ids=window[None].to(device), use_cache=False)
            learner.seen += 1
            done += 1
        if recorder is sampler:
            learner.start_from(sampler.drawn)
    adapter.record = {"method": "online k-means of queries and keys", "tokens": windows.numel(), "seed": seed}
    adapter.serve = {"query_topk": 1, "key_topk": 1, "window": 128, "sinks": 4}
    return adapter
