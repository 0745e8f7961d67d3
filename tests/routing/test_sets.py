"""Group sets: 64 of them, bit 63 included, and draws that are frozen, causal and even."""

import numpy as np
import pytest
import torch

from focus_core.routing.sets import MAX_GROUPS, members, random_groups, top_groups


def as_flags(sets: torch.Tensor, groups: int) -> np.ndarray:
    """The sets as bools, through numpy's unsigned integers."""
    bits = sets.numpy().view(np.uint64)
    return (bits[..., None] >> np.arange(groups, dtype=np.uint64) & np.uint64(1)).astype(bool)


def positions(length: int, start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + length)[None]


@pytest.mark.parametrize("groups, k", [(1, 1), (4, 1), (16, 4), (64, 1), (64, 7), (64, 63), (64, 64), (5, 9)])
def test_the_sets_of_the_largest_logits(groups, k):
    logits = torch.randn(2, 3, 40, groups, generator=torch.Generator().manual_seed(0))
    order = np.argsort(-logits.numpy(), -1)[..., :k]
    wanted = np.zeros(logits.shape, bool)
    np.put_along_axis(wanted, order, True, -1)
    sets = top_groups(logits, k)
    assert sets.dtype == torch.int64
    assert np.array_equal(as_flags(sets, groups), wanted)
    assert np.array_equal(members(sets, groups).numpy(), wanted)


def test_bit_63_is_a_group_like_any_other():
    logits = torch.zeros(1, MAX_GROUPS)
    logits[0, 63] = 1
    sets = top_groups(logits, 1)
    assert sets.item() == -(1 << 63)
    assert members(sets, MAX_GROUPS).nonzero().tolist() == [[0, 63]]
    everything = top_groups(logits, MAX_GROUPS)
    assert everything.item() == -1
    assert members(everything, MAX_GROUPS).all()


@pytest.mark.parametrize("groups, k", [(4, 1), (16, 1), (16, 4), (64, 2), (3, 3)])
def test_random_groups_are_even(groups, k):
    """A group of n draws holds a binomial share: all stay within five standard deviations."""
    n = 8192
    chosen = members(random_groups(positions(n), 3, 0, groups, k, 7), groups)[0].numpy()
    assert (chosen.sum(1) == k).all()
    share = k / groups
    assert np.abs(chosen.sum(0) - n * share).max() <= 5 * np.sqrt(n * share * (1 - share))


def test_random_groups_of_far_tokens_are_independent():
    """Kept pairs follow the product of the shares at every distance that a window leaves over."""
    chosen = members(random_groups(positions(4096), 0, 0, 8, 1, 0), 8)[0].float()
    for distance in (1, 2, 3, 64, 128, 1000):
        same = (chosen[distance:] * chosen[:-distance]).sum(1).mean().item()
        assert abs(same - 1 / 8) < 5 * (1 / 8 * 7 / 8 / (4096 - distance)) ** 0.5


@pytest.mark.parametrize("change", [{"seed": 1}, {"layer": 1}, {"router": 1}, {"seed": 5, "layer": 29, "router": 8}])
def test_another_seed_layer_or_router_is_another_draw(change):
    given = {"layer": 0, "router": 0, "groups": 16, "k": 1, "seed": 0}
    a = random_groups(positions(4096), **given)
    b = random_groups(positions(4096), **(given | change))
    same = (a == b).double().mean().item()
    assert abs(same - 1 / 16) < 5 * (1 / 16 * 15 / 16 / 4096) ** 0.5
    assert torch.equal(a, random_groups(positions(4096), **given))


def test_a_draw_depends_on_its_own_position_alone():
    whole = random_groups(positions(300), 2, 0, 16, 2, 0)
    assert torch.equal(random_groups(positions(100), 2, 0, 16, 2, 0), whole[:, :100])
    assert torch.equal(random_groups(positions(40, 260), 2, 0, 16, 2, 0), whole[:, 260:])
    padded = torch.stack([torch.arange(300), torch.arange(300) - 37])
    rows = random_groups(padded, 2, 0, 16, 2, 0)
    assert torch.equal(rows[1, 37:], whole[0, :263])


def test_large_seeds_and_positions_stay_in_range():
    sets = random_groups(positions(1000, 1_000_000), 99, 31, 64, 64, 2**31 - 1)
    assert (sets == -1).all()
    one = members(random_groups(positions(4096, 1_000_000), 99, 31, 4, 1, 2**31 - 1), 4)[0].float().mean(0)
    assert (one - 0.25).abs().max() < 0.04


def test_a_wider_draw_holds_the_narrower():
    """Queries and keys share one draw, so a query that looks into more groups still looks into its own."""
    narrow, wide = (random_groups(positions(500), 0, 0, 16, k, 0) for k in (1, 4))
    assert torch.equal(narrow & wide, narrow)
