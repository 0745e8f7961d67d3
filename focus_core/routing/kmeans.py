"""Control: groups from k-means of the hidden states, with no training through the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from focus_core.adapter import Adapter
from focus_core.errors import Cancelled


@dataclass(frozen=True)
class KMeansConfig:
    """Shape of the centroids: ``layers`` x ``groups`` x ``hidden_size``."""

    layers: int
    hidden_size: int
    groups: int = 16
    seed: int = 0


class KMeansCentroids(Adapter):
    """Centroids (L, K, d) of each layer's attention input."""

    kind = "kmeans"
    config_class = KMeansConfig

    def __init__(self, config: KMeansConfig) -> None:
        super().__init__(config)
        shape = (config.layers, config.groups, config.hidden_size)
        self.centroids = nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16), requires_grad=False)

    def logits(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """(B, 1, N, K): minus half the squared distance to each centroid, up to a constant of the token."""
        centroids = self.centroids[layer].float()
        with torch.autocast(hidden.device.type, enabled=False):
            return (hidden.float() @ centroids.T - centroids.square().sum(-1) / 2)[:, None]


class _HiddenSampler:
    """Recorder that keeps the hidden states of every layer."""

    def __init__(self) -> None:
        self.states: dict[int, list[torch.Tensor]] = {}

    def record(self, call, variant) -> None:
        self.states.setdefault(call.layer, []).append(call.hidden.detach().to("cpu", torch.bfloat16).flatten(0, 1))


def fit_kmeans(
    model: nn.Module,
    windows: torch.Tensor,
    *,
    groups: int = 16,
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> KMeansCentroids:
    """Fit k-means on every layer's attention input.

    Args:
        model: the pretrained model.
        windows: (W, N) token ids; W x N tokens are clustered.
        groups: K.
        seed: of k-means.
        progress: told the fraction done.
        cancel: asked between layers.

    Returns:
        The adapter of the variant ``kmeans``.
    """
    from sklearn.cluster import MiniBatchKMeans

    from focus_core.models.facts import facts_of
    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    facts = facts_of(model)
    sampler = _HiddenSampler()
    with torch.no_grad(), retrofit(model, make("dense"), recorder=sampler):
        for window in windows:
            model(input_ids=window[None].to(next(model.parameters()).device), use_cache=False)
    adapter = KMeansCentroids(KMeansConfig(facts.layers, facts.hidden_size, groups, seed))
    for done, (layer, states) in enumerate(sorted(sampler.states.items())):
        if cancel is not None and cancel():
            raise Cancelled()
        if progress is not None:
            progress(done / facts.layers, f"Clustering layer {layer + 1} of {facts.layers}")
        points = torch.cat(states).float().numpy()
        fitted = MiniBatchKMeans(groups, random_state=seed, n_init=3, batch_size=4096).fit(points)
        adapter.centroids[layer].copy_(torch.from_numpy(fitted.cluster_centers_))
    adapter.record = {"method": "k-means of the attention input", "tokens": windows.numel(), "seed": seed}
    adapter.serve = {"query_topk": 1, "key_topk": 1, "window": 128, "sinks": 4}
    return adapter
