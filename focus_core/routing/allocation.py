"""How many groups each router's queries look into, chosen for the least loss within a budget of pairs.

Heads differ in how much they need of what is far: some attend to what is near alone, others fetch from anywhere (the
streaming and retrieval heads of DuoAttention, arXiv 2410.10819, which serves either kind as a whole). Here each unit (a
layer's router, that is a KV head or the layer) has a curve of loss over pairs, and a knapsack on the lower convex hulls
takes from all curves the steps that save most for their pairs.
"""

from __future__ import annotations

import heapq

import numpy as np

from focus_core.errors import InvalidInput


def hull(pairs: np.ndarray, loss: np.ndarray) -> list[int]:
    """The levels of one unit's curve on its lower convex hull, fewest pairs first.

    A level that keeps more pairs than another without less loss is left out, so loss falls from each to the next, by
    less and less a pair.

    Args:
        pairs: (V,) of every level.
        loss: (V,) of every level.

    Returns:
        Indices of levels, one at least.
    """
    chosen: list[int] = []
    for level in np.lexsort((loss, pairs)):
        if chosen and loss[level] >= loss[chosen[-1]]:
            continue
        while len(chosen) > 1 and _slope(pairs, loss, chosen[-2], chosen[-1]) >= _slope(pairs, loss, chosen[-2], level):
            chosen.pop()
        chosen.append(int(level))
    return chosen


def allocate(pairs: np.ndarray, loss: np.ndarray, budget: float) -> np.ndarray:
    """The level of every unit that loses least while the mean of all units' pairs stays within a budget.

    Every unit begins at the level with the fewest pairs. Of all next steps on the hulls the one that saves most loss a
    pair is taken while it fits; a step that does not fit ends that unit's climb and leaves the others theirs. On the
    hulls this is the optimum of the relaxed problem, up to the last step.

    Args:
        pairs: (U, V) share of causal pairs that a unit keeps at each level.
        loss: (U, V) what it costs there, in any unit that adds up.
        budget: largest mean over units of the pairs.

    Returns:
        (U,) indices of levels.

    Raises:
        InvalidInput: the fewest pairs of all units are over the budget.
    """
    units = len(pairs)
    curves = [hull(p, q) for p, q in zip(pairs, loss, strict=True)]
    at = np.zeros(units, int)
    spent = sum(pairs[u, curve[0]] for u, curve in enumerate(curves))
    least = pairs.min(1).mean()
    if least > budget * (1 + 1e-9):
        raise InvalidInput(
            f"Window and sinks alone keep {least:.2%} of the pairs here, and the budget is {budget:.2%}.",
            f"Use a budget over {least:.2%}, a smaller window or a longer context.",
        )
    room = budget * units * (1 + 1e-9)
    steps = [(_slope(pairs[u], loss[u], c[0], c[1]), u) for u, c in enumerate(curves) if len(c) > 1]
    heapq.heapify(steps)
    while steps:
        _, u = heapq.heappop(steps)
        curve = curves[u]
        more = pairs[u, curve[at[u] + 1]] - pairs[u, curve[at[u]]]
        if spent + more > room:
            continue
        spent += more
        at[u] += 1
        if at[u] + 1 < len(curve):
            heapq.heappush(steps, (_slope(pairs[u], loss[u], curve[at[u]], curve[at[u] + 1]), u))
    return np.array([curve[i] for curve, i in zip(curves, at, strict=True)])


def _slope(pairs: np.ndarray, loss: np.ndarray, a: int, b: int) -> float:
    """Loss a pair from level ``a`` to ``b``, which keeps more pairs: the more negative, the better."""
    return float((loss[b] - loss[a]) / max(pairs[b] - pairs[a], 1e-12))
