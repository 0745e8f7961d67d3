"""The k-means control: its logits rank centroids by distance, and fitting finds clusters of the hidden states."""

import pytest
import torch

from focus_core.adapter import load_adapter
from focus_core.errors import Cancelled
from focus_core.retrofit import retrofit
from focus_core.routing.kmeans import KMeansCentroids, KMeansConfig, fit_kmeans
from focus_core.variants import make
from tests.tiny import VOCAB, tiny_model


class States:
    def __init__(self) -> None:
        self.seen = {}

    def record(self, call, variant) -> None:
        self.seen[call.layer] = call.hidden


def test_logits_rank_by_distance():
    made = KMeansCentroids(KMeansConfig(1, 8, groups=5))
    made.centroids.copy_(torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0)) * 2)
    hidden = torch.randn(2, 30, 8, generator=torch.Generator().manual_seed(1))
    got = made.logits(0, hidden)
    assert got.shape == (2, 1, 30, 5)
    distance = torch.cdist(hidden, made.centroids[0].float().expand(2, -1, -1)).square()
    token = hidden.square().sum(-1, keepdim=True)
    torch.testing.assert_close(got[:, 0], (token - distance) / 2, rtol=1e-4, atol=1e-4)


def test_fitting_finds_clusters_and_the_adapter_serves(tmp_path):
    model = tiny_model(layers=2)
    # Four tokens: four clusters in the first layer, and scattered ones in the second.
    windows = torch.randint(1, 5, (3, 64), generator=torch.Generator().manual_seed(0))
    seen = []
    adapter = fit_kmeans(model, windows, groups=4, seed=1, progress=lambda f, _: seen.append(f))
    assert seen == [0.0, 0.5]
    states = States()
    with torch.no_grad(), retrofit(model, make("dense"), recorder=states):
        model(input_ids=windows, use_cache=False)
    for layer, spread in ((0, 0.001), (1, 0.7)):
        points = states.seen[layer].flatten(0, 1)
        near = torch.cdist(points, adapter.centroids[layer].float()).min(-1).values.square().mean()
        assert near < spread * (points - points.mean(0)).square().sum(-1).mean()
    adapter.save_pretrained(tmp_path, model)
    again = load_adapter(tmp_path, model)
    assert torch.equal(again.centroids, adapter.centroids)
    variant = make("kmeans", {"groups": 4, "window": 4, **{k: v for k, v in again.serve.items() if k == "sinks"}})
    with torch.no_grad(), retrofit(model, variant, adapter=again):
        assert torch.isfinite(model(input_ids=windows).logits).all()


def test_fitting_can_be_cancelled():
    windows = torch.randint(1, VOCAB, (1, 64))
    with pytest.raises(Cancelled):
        fit_kmeans(tiny_model(layers=2), windows, groups=4, cancel=lambda: True)
