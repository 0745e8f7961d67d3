"""The knapsack on convex hulls, against every choice there is."""

import itertools

import numpy as np
import pytest

from focus_core.errors import InvalidInput
from focus_core.routing.allocation import allocate, hull


def curves(units: int, seed: int, convex: bool = True):
    """Pairs that rise, and losses that fall by less and less; or anything."""
    draw = np.random.default_rng(seed)
    pairs = np.cumsum(draw.uniform(0.05, 0.3, (units, 4)), 1)
    if not convex:
        return pairs, draw.normal(size=(units, 4))
    slopes = np.sort(draw.uniform(0.01, 3, (units, 3)), 1)[:, ::-1]
    loss = np.concatenate([np.zeros((units, 1)), -np.cumsum(slopes * np.diff(pairs, axis=1), 1)], 1)
    return pairs, loss


def test_the_hull_leaves_out_what_costs_more_for_less():
    pairs = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    assert hull(pairs, np.array([4.0, 3.0, 2.5, 2.2, 2.1])) == [0, 1, 2, 3, 4]
    assert hull(pairs, np.array([4.0, 3.9, 2.0, 2.2, 1.9])) == [0, 2, 4]
    assert hull(pairs, np.array([1.0, 3.0, 2.5, 2.2, 2.1])) == [0]
    assert hull(pairs[::-1], np.array([2.1, 2.2, 2.5, 3.0, 4.0])) == [4, 3, 2, 1, 0]
    assert hull(np.array([0.1, 0.1]), np.array([2.0, 1.0])) == [1]


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_best_choice_up_to_one_step(seed):
    """On the hulls steps in the order of their slopes are the optimum but for the last one, which may not fit."""
    pairs, loss = curves(4, seed, convex=seed % 2 == 0)
    every = [(np.mean(pairs[range(4), c]), np.sum(loss[range(4), c])) for c in itertools.product(range(4), repeat=4)]
    whole = 0
    for budget in np.linspace(pairs.min(1).mean(), pairs.max(1).mean(), 9):
        picked = allocate(pairs, loss, budget)
        spent, found = pairs[range(4), picked].mean(), loss[range(4), picked].sum()
        assert spent <= budget + 1e-9
        best = min(value for share, value in every if share <= budget + 1e-9)
        steps = [np.max(-np.diff(q[hull(p, q)]), initial=0) for p, q in zip(pairs, loss, strict=True)]
        assert best - 1e-12 <= found <= best + max(steps)
        whole += found <= best + 1e-12
    assert whole >= 2, "with the least and the most there is no last step"
    assert loss[range(4), allocate(pairs, loss, 9.0)].sum() == pytest.approx(loss.min(1).sum())


def test_what_others_cannot_use_is_left():
    """A step that does not fit keeps no other unit from its own."""
    pairs, loss = np.array([[0.0, 0.9], [0.0, 0.2]]), np.array([[0.0, -9.0], [0.0, -1.0]])
    assert allocate(pairs, loss, 0.2).tolist() == [0, 1]
    assert allocate(pairs, loss, 0.45).tolist() == [1, 0]
    assert allocate(pairs, loss, 0.55).tolist() == [1, 1]


def test_a_budget_under_the_fewest_pairs_is_refused():
    with pytest.raises(InvalidInput, match=r"keep 15.00% of the pairs here, and the budget is 10.00%"):
        allocate(np.array([[0.1, 0.5], [0.2, 0.6]]), np.zeros((2, 2)), 0.1)
