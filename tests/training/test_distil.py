"""Distillation to the dense model: the right divergence and gradient, and nothing where nothing is dropped."""

import pytest
import torch
import torch.nn.functional as F

from focus_core.errors import InvalidInput
from focus_core.training import distil
from focus_core.training.trainer import RoutedModel, new_adapter, train
from tests.training.small import ids, loaded, settings


def test_the_divergence_and_its_gradient_are_those_of_the_plain_formula(monkeypatch):
    monkeypatch.setattr(distil, "_ROWS", 3)
    dense, logits = torch.randn(2, 4, 7), torch.randn(2, 4, 7, requires_grad=True)
    p, log_q = dense.softmax(-1), logits.log_softmax(-1)
    plain = (p * (p.log() - log_q)).sum(-1).mean()
    found = distil.divergence(dense, logits)
    torch.testing.assert_close(found, plain)
    (wanted,) = torch.autograd.grad(plain, logits)
    torch.testing.assert_close(torch.autograd.grad(found, logits)[0], wanted)


def test_where_all_is_near_nothing_is_to_be_learned_and_elsewhere_the_router_gets_a_gradient():
    base, text = loaded(), ids(48)[None]
    chosen = settings(distil=1.0)
    adapter = new_adapter(base.facts, chosen, base.model)
    for parameter in base.model.parameters():
        parameter.requires_grad_(False)
    for variant, least in ((settings(window=40, distil=1.0).variant_at(0), 0), (chosen.variant_at(0), 1e-7)):
        loss, _ = RoutedModel(base.model, adapter, 1.0)(text[:, :40], variant)
        assert loss.item() >= least - 1e-6
        adapter.zero_grad()
        loss.backward()
        moved = adapter.key_projection.grad.abs().max().item()
        assert moved > 1e-9 if least else moved < 1e-7


def test_a_share_mixes_both_losses():
    base, text = loaded(), ids(48)[None]
    chosen = settings()
    adapter = new_adapter(base.facts, chosen, base.model)
    losses = [RoutedModel(base.model, adapter, s)(text, chosen.variant_at(0))[0].item() for s in (0.0, 0.25, 1.0)]
    assert losses[1] == pytest.approx(0.75 * losses[0] + 0.25 * losses[2], rel=1e-5)
    with torch.no_grad():
        assert F.relu(torch.tensor(losses[2])) > 1e-6
    with pytest.raises(InvalidInput, match="distil"):
        settings(distil=1.5)


def test_frozen_centroids_stay_and_the_rest_learns(tmp_path):
    base = loaded()
    start = new_adapter(base.facts, settings()).state_dict()
    end = train(base, ids(), ids(200, seed=1), settings(freeze_centroids=True, steps=4), tmp_path).state_dict()
    assert torch.equal(start["centroids"], end["centroids"])
    assert not torch.equal(start["key_projection"], end["key_projection"])
