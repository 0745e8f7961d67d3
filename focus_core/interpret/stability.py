"""Are the groups the same ones again: after another seed, in another head, in another text?"""

from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np


def first_group(bits: np.ndarray) -> np.ndarray:
    """(..., N) the lowest group of each set, -1 for an empty one: the group itself where tokens have one."""
    lowest = bits & -bits
    number = np.log2(np.abs(np.where(bits != 0, lowest, 1).astype(float))).round()
    return np.where(bits != 0, number, -1).astype(np.int64)


def rand_index(first: np.ndarray, second: np.ndarray) -> float:
    """Adjusted Rand index of two groupings of the same tokens: 1 the same, 0 as alike as chance (Hubert and Arabie)."""
    from sklearn.metrics import adjusted_rand_score

    with warnings.catch_warnings():
        # Group numbers look like a regression's targets to scikit-learn.
        warnings.simplefilter("ignore", UserWarning)
        return float(adjusted_rand_score(first, second))


def between(first: np.ndarray, second: np.ndarray) -> float:
    """Adjusted Rand index of two layers' routers, (R, N) each: of the same heads where there are as many, else all."""
    if len(first) == len(second):
        return float(np.mean([rand_index(a, b) for a, b in zip(first, second, strict=True)]))
    return float(np.mean([rand_index(a, b) for a in first for b in second]))


def among(labels: np.ndarray) -> float | None:
    """Mean adjusted Rand index of all pairs of a layer's routers, (R, N); None with one router."""
    found = [rand_index(a, b) for a, b in combinations(labels, 2)]
    return float(np.mean(found)) if found else None


def across_texts(labels: np.ndarray, types: np.ndarray, text: np.ndarray, least: int = 3) -> tuple[float, float] | None:
    """Whether a word is in the same group in another text.

    Each word type that occurs ``least`` times or more in both of two texts has the group there that most of its
    tokens have.

    Args:
        labels: (N,) group of each token.
        types: (N,) its type.
        text: (N,) number of its text.
        least: occurrences.

    Returns:
        The mean over pairs of texts of the adjusted Rand index over types, and of the share of types that keep their
        group; None with fewer than two texts or two such types.
    """
    tables = []
    k, v = int(labels.max()) + 1, int(types.max()) + 1
    for t in np.unique(text):
        at = text == t
        table = np.zeros((v, k), np.int64)
        np.add.at(table, (types[at], labels[at]), 1)
        tables.append(table)
    found = []
    for a, b in combinations(tables, 2):
        both = (a.sum(1) >= least) & (b.sum(1) >= least)
        if both.sum() >= 2:
            first, second = a[both].argmax(1), b[both].argmax(1)
            found.append((rand_index(first, second), float((first == second).mean())))
    if not found:
        return None
    index, same = np.mean(found, axis=0)
    return float(index), float(same)
