"""What is Focus's own: its gates meet in the served mask, and it refuses adapters and caches that do not fit."""

import pytest
import torch

from focus_core.errors import InvalidInput, Unsupported
from focus_core.models.facts import facts_of
from focus_core.retrofit import retrofit
from focus_core.routing.sets import members, random_groups
from focus_core.variants import make
from tests.retrofit.helpers import far, step, tokens
from tests.tiny import tiny_model
from tests.variants.cases import adapter_for, small

MASKS = [{}, {"query_topk": 2}, {"query_topk": 2, "key_topk": 2}]


def run(variant, adapter=None, length=40):
    model = tiny_model()
    adapter = adapter_for(variant, facts_of(model)) if adapter is None else adapter
    with torch.no_grad(), retrofit(model, variant, adapter):
        return model(tokens(2, length), use_cache=False).logits


@pytest.mark.parametrize("mask", MASKS)
def test_straight_through_computes_the_served_mask(mask):
    """All but the floor of 1e-6, which is what training sees of the other pairs."""
    served = run(small("focus", mask))
    assert far(run(small("focus", mask | {"gate": "straight_through", "temperature": 0.3})), served) < 2e-3
    assert far(run(small("focus", mask | {"gate": "soft", "temperature": 0.3})), served) > 0.1


@pytest.mark.parametrize("mask", MASKS)
def test_the_soft_gate_hardens_to_the_served_mask(mask):
    served = run(small("focus", mask))
    soft = [run(small("focus", mask | {"gate": "soft", "temperature": t})) for t in (1.0, 1e-4)]
    # In the mean: a token whose two next groups nearly tie hardens later than any other.
    away = [(x - served).abs().mean().item() for x in soft]
    assert away[1] < away[0] / 20


def test_a_warm_soft_gate_is_not_a_mask_at_all():
    """Every pair agrees alike as the memberships even out: the far scores move by one constant."""
    flat = run(small("focus", {"gate": "soft", "temperature": 10.0}))
    assert torch.isfinite(flat).all()
    assert far(flat, run(small("focus"))) > 0.1


def test_training_gradients_reach_every_part_of_the_router():
    model = tiny_model()
    for gate in ("soft", "straight_through", "paper"):
        variant = small("focus", {"gate": gate, "temperature": 0.3})
        adapter = adapter_for(variant, facts_of(model)).requires_grad_(True)
        with retrofit(model, variant, adapter):
            model(tokens(1, 40), use_cache=False).logits.square().mean().backward()
        for name, parameter in adapter.named_parameters():
            by_layer = parameter.grad.flatten(1).abs().amax(-1) if parameter.dim() > 1 else parameter.grad.abs()
            assert by_layer.gt(0).all(), (gate, name)


@pytest.mark.parametrize("name", ["focus", "kmeans"])
def test_groups_that_are_not_the_adapters_are_refused(name):
    adapter = adapter_for(small(name), facts_of(tiny_model()))
    with pytest.raises(InvalidInput, match=r"has 4 .* setting groups is 8.*Set groups to 4"):
        run(make(name, {"groups": 8}), adapter)


def test_the_papers_gate_refuses_a_router_without_sharpness():
    adapter = adapter_for(small("focus"), facts_of(tiny_model()))
    with pytest.raises(Unsupported, match="needs an adapter trained in the paper's form"):
        run(small("focus", {"gate": "paper"}), adapter)


def test_the_papers_gate_cannot_decode():
    model, variant = tiny_model(), small("focus", {"gate": "paper"})
    with torch.no_grad(), retrofit(model, variant, adapter_for(variant, facts_of(model))):
        _, cache = step(model, tokens(1, 20))
        with pytest.raises(Unsupported, match="cannot decode with a cache"):
            step(model, tokens(1, 1), cache)


def test_random_groups_follow_the_seed_and_not_the_text():
    variant = small("random", {"seed": 1})
    positions = torch.arange(50).expand(2, -1)
    a = variant.prepare(torch.zeros(2, 50, 8), 2, positions, None, None)
    b = variant.prepare(torch.ones(2, 50, 8), 2, positions, None, None)
    assert torch.equal(a.cached, b.cached)
    assert torch.equal(a.cached[0], a.cached[1])
    assert not torch.equal(small("random").prepare(torch.zeros(2, 50, 8), 2, positions, None, None).cached, a.cached)
    assert far(run(variant), run(small("random"))) > 0.01


@pytest.mark.parametrize("groups, wanted, held", [(4, 1, 1), (8, 2, 1), (16, 4, 1), (8, 2, 3), (4, 3, 2), (1, 1, 1)])
def test_the_share_of_far_pairs_is_what_even_draws_share(groups, wanted, held):
    variant = make("focus", {"groups": groups, "query_topk": wanted, "key_topk": held})
    position = torch.arange(2000)[None]
    query = members(random_groups(position, 0, 0, groups, wanted, 0), groups)[0].float()
    key = members(random_groups(position, 1, 0, groups, held, 0), groups)[0].float()
    assert ((query @ key.T) > 0).float().mean().item() == pytest.approx(variant.share_of_far_pairs(), abs=0.005)
