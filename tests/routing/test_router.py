"""The router's logits, its relaxed memberships, and the paper's assignment with its leak."""

import math

import pytest
import torch

from focus_core.errors import InvalidInput
from focus_core.routing.router import (
    Router,
    RouterConfig,
    sinkhorn_over_sequence,
    soft_members,
    straight_through_members,
)
from focus_core.routing.sets import members, top_groups


def router(**given) -> Router:
    made = Router(RouterConfig(**({"layers": 2, "hidden_size": 24, "groups": 6, "dim": 4, "routers": 3} | given)))
    with torch.no_grad():
        made.bias.copy_(torch.randn(made.bias.shape, generator=torch.Generator().manual_seed(1)) / 5)
        if made.query_projection is not None:
            made.query_projection.add_(
                torch.randn(made.query_projection.shape, generator=torch.Generator().manual_seed(2))
            )
    return made


def hidden(batch: int = 2, length: int = 30, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, length, 24, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("form", ["directed", "shared", "paper"])
def test_logits_are_what_they_say(form):
    """One token, router and group at a time, in double precision."""
    made, h = router(form=form), hidden()
    keys, queries = made.logits(1, h)
    for side, got in (("key", keys), ("query", queries)):
        weights = made.query_projection if side == "query" and form == "directed" else made.key_projection
        for b, r, n, c in ((0, 0, 0, 0), (1, 2, 17, 5), (0, 1, 29, 3)):
            point, centroid = h[b, n].double() @ weights[1, r].double(), made.centroids[1, r, c].double()
            if form != "paper":
                point, centroid = point / point.norm(), centroid / centroid.norm()
            assert got[b, r, n, c].item() == pytest.approx((point @ centroid + made.bias[1, r, c]).item(), abs=1e-5)
    assert keys.shape == (2, 3, 30, 6)
    assert torch.equal(keys, queries) == (form != "directed")


def test_a_new_directed_router_asks_for_what_it_holds():
    made = Router(RouterConfig(2, 24, groups=6, dim=4))
    keys, queries = made.logits(0, hidden())
    assert torch.equal(keys, queries)
    assert made.query_projection is not made.key_projection
    assert not torch.equal(Router(RouterConfig(2, 24, groups=6, dim=4, seed=1)).centroids, made.centroids)


@pytest.mark.parametrize("form", ["directed", "shared", "paper"])
def test_a_tokens_logits_depend_on_that_token_alone(form):
    made, h = router(form=form), hidden()
    whole = made.logits(0, h)
    changed = h.clone()
    changed[:, 20:] = hidden(seed=3)[:, 20:] * 10
    for a, b in zip(whole, made.logits(0, changed), strict=True):
        assert torch.equal(a[:, :, :20], b[:, :, :20])
        assert not torch.equal(a[:, :, 20:], b[:, :, 20:])
    for a, b in zip(whole, made.logits(0, h[:, 11:12]), strict=True):
        torch.testing.assert_close(a[:, :, 11:12], b, rtol=0, atol=1e-6)


def test_routing_is_fp32_under_autocast_and_for_bf16_states():
    made, h = router(), hidden().bfloat16()
    wanted = made.logits(0, h.float())
    with torch.autocast("cpu", torch.bfloat16):
        for a, b in zip(made.logits(0, h), wanted, strict=True):
            assert a.dtype == torch.float32
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"groups": 65}, "65 groups"),
        ({"groups": 0}, "0 groups"),
        ({"form": "soft"}, "'soft'"),
        ({"dim": 0}, "positive sizes"),
        ({"routers": 0}, "positive sizes"),
    ],
)
def test_impossible_routers_are_refused(wrong, says):
    with pytest.raises(InvalidInput, match=says):
        router(**wrong)


@pytest.mark.parametrize("groups, k", [(8, 1), (8, 3), (16, 4), (64, 2), (5, 5), (5, 7)])
def test_soft_members_harden_to_the_served_sets(groups, k):
    logits = torch.randn(2, 1, 200, groups, generator=torch.Generator().manual_seed(0))
    served = members(top_groups(logits, k), groups)
    hard = soft_members(logits, k, 1e-6)
    # A token whose k-th and next logit nearly tie is not decided at any temperature.
    assert ((hard - served.float()).abs() < 1e-3).float().mean() > 0.999
    for temperature in (0.02, 0.1, 0.3):
        soft = soft_members(logits, k, temperature)
        assert (soft >= 0).all()
        assert (soft <= 1).all()
        # Whatever the temperature, the order is the served one.
        assert torch.equal(top_groups(soft, k), top_groups(logits, k)) or temperature < 0.1
    spread = soft_members(logits, k, 0.02).sum(-1)
    assert spread.mean().item() == pytest.approx(min(k, groups), rel=0.02)


def test_soft_members_by_hand():
    logits = torch.tensor([3.0, 1.0, 0.0, -2.0])
    torch.testing.assert_close(soft_members(logits, 1, 2.0), torch.softmax(logits / 2, 0))
    torch.testing.assert_close(soft_members(logits, 2, 0.5), torch.sigmoid((logits - 0.5) / 0.5))
    assert (soft_members(logits, 4, 0.5) == 1).all()


@pytest.mark.parametrize("groups, k", [(8, 1), (16, 4), (64, 2), (5, 5)])
def test_straight_through_is_the_served_membership_with_the_soft_gradient(groups, k):
    logits = torch.randn(2, 3, 300, groups, generator=torch.Generator().manual_seed(0)).requires_grad_()
    pull = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    straight = straight_through_members(logits, k, 0.3)
    # To the last bit: a membership of 1 + 1e-7 would be clamped by the gate, and lose its gradient.
    assert torch.equal(straight, members(top_groups(logits, k), groups).float())
    soft = soft_members(logits, k, 0.3)
    if k >= groups:
        assert not soft.requires_grad
        return
    (given,) = torch.autograd.grad((straight * pull).sum(), logits)
    (wanted,) = torch.autograd.grad((soft * pull).sum(), logits)
    assert torch.equal(given, wanted)
    assert given.abs().max() > 0.01


def plain_sinkhorn(logits: torch.Tensor, iterations: int = 10) -> torch.Tensor:
    """Notes, section 1: columns, then rows, in double precision; for one sequence without pads."""
    q = logits.double().exp()
    for _ in range(iterations):
        q = q / q.sum(0, keepdim=True)
        q = q / q.sum(1, keepdim=True)
    return q


def test_sinkhorn_is_the_papers():
    logits = 2 * torch.randn(2, 3, 50, 8, generator=torch.Generator().manual_seed(0))
    got = sinkhorn_over_sequence(logits, None)
    for b in range(2):
        for r in range(3):
            torch.testing.assert_close(got[b, r].double(), plain_sinkhorn(logits[b, r]), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(got.sum(-1), torch.ones(2, 3, 50))
    assert (got.sum(2) * 8 / 50 - 1).abs().max() < 0.1
    assert (logits.softmax(-1).sum(2) * 8 / 50 - 1).abs().max() > 0.2


def test_sinkhorn_survives_the_papers_temperature():
    logits = torch.randn(1, 1, 64, 8, generator=torch.Generator().manual_seed(0)) / 0.1 * 5
    got = sinkhorn_over_sequence(logits, None)
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got.sum(-1), torch.ones(1, 1, 64))


def test_pads_take_no_part_in_sinkhorn():
    logits = 2 * torch.randn(2, 1, 50, 8, generator=torch.Generator().manual_seed(0))
    logits[1, :, :20] += 30 * torch.eye(8)[0]
    got = sinkhorn_over_sequence(logits, torch.tensor([0, 20]))
    torch.testing.assert_close(got[1, 0, 20:].double(), plain_sinkhorn(logits[1, 0, 20:]), rtol=1e-4, atol=1e-6)
    assert (got[1, 0, :20] == 0).all()


def test_sinkhorn_leaks():
    """The fault that the form is labelled with: earlier tokens move when only later ones change."""
    logits = torch.randn(1, 1, 64, 8, generator=torch.Generator().manual_seed(0)) * 3
    later = logits.clone()
    later[:, :, 32:, 0] += 5
    a, b = (sinkhorn_over_sequence(x, None)[:, :, :32] for x in (logits, later))
    assert (a - b).abs().max() > 0.1
    assert (a.argmax(-1) != b.argmax(-1)).any()


def test_the_papers_sharpness_starts_where_the_notes_say():
    made = router(form="paper")
    assert made.sharpness.tolist() == [5.0, 5.0]
    assert router().sharpness is None
    assert math.isclose(torch.sigmoid(made.sharpness[0]).item(), 0.9933, abs_tol=1e-4)
