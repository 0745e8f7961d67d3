"""Groupings of the same tokens that know less: by chance, and by the word alone."""

from __future__ import annotations

import numpy as np


def shuffled(joined: np.ndarray, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """(repeats, N, K) the same sets, each at another token: sizes stay, meaning goes."""
    return np.stack([joined[rng.permutation(len(joined))] for _ in range(repeats)])


def uniform(joined: np.ndarray, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """(repeats, N, K) as many groups a token as it has, drawn evenly."""
    noise = rng.random((repeats, *joined.shape))
    rank = noise.argsort(-1).argsort(-1)
    return rank < joined.sum(-1)[None, :, None]


def one_group_a_type(joined: np.ndarray, which: np.ndarray, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """(repeats, N, K) each word TYPE gets one random group, with the sizes of the real groups.

    Frequent types choose first, each with a chance in proportion to the room that is left in a group, so that sizes
    match as well as whole types allow. Types of tokens with several groups get as many different ones.

    Args:
        joined: (N, K) the real memberships.
        which: (N,) type of each token, from 0.
        repeats: number of draws.
        rng: source of chance.
    """
    n, k = joined.shape
    each = max(1, round(joined.sum() / max(1, n)))
    counts = np.bincount(which)
    room = np.repeat(joined.sum(0)[None].astype(float), repeats, axis=0)
    of_type = np.zeros((repeats, len(counts), k), bool)
    rows = np.arange(repeats)[:, None]
    for w in np.lexsort((rng.random(len(counts)), -counts)):
        fits = np.where(room >= counts[w], room, 0.0)
        weight = np.where((fits > 0).sum(1, keepdims=True) >= each, fits, np.maximum(room, 0.0)) + 1e-6
        chance = np.log(weight) - np.log(-np.log(rng.random(weight.shape)))
        chosen = np.argpartition(-chance, each - 1, axis=1)[:, :each]
        of_type[rows, w, chosen] = True
        room[rows, chosen] -= counts[w]
    return of_type[:, which]


def most_frequent_group(joined: np.ndarray, which: np.ndarray) -> np.ndarray:
    """(1, N, K) each word type gets the group that most of its tokens have: what a lookup by word alone reaches.

    It is taken from the same tokens that are scored, and a word that occurs once keeps the group it has; so this is
    from above. Types of tokens with several groups get as many, the most frequent ones.

    Args:
        joined: (N, K) the real memberships.
        which: (N,) type of each token, from 0.
    """
    n, k = joined.shape
    each = max(1, round(joined.sum() / max(1, n)))
    counts = np.zeros((int(which.max()) + 1, k))
    np.add.at(counts, which, joined)
    of_type = np.zeros(counts.shape, bool)
    np.put_along_axis(of_type, np.argsort(-counts, axis=1, kind="stable")[:, :each], True, axis=1)
    return of_type[which][None]


def like_frequency(joined: np.ndarray, which: np.ndarray, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """(repeats, N, K) the same sets, exchanged among tokens of words that are about as frequent.

    Every group keeps its size and its share of rare and of frequent words; which word it is has no meaning any more.

    Args:
        joined: (N, K) the real memberships.
        which: (N,) type of each token, from 0.
        repeats: number of draws.
        rng: source of chance.
    """
    band = np.floor(np.log2(np.bincount(which)[which])).astype(np.int64)
    order = np.argsort(band, kind="stable")
    drawn = np.empty((repeats, *joined.shape), bool)
    for each in drawn:
        mixed = np.lexsort((rng.random(len(band)), band))
        each[order] = joined[mixed]
    return drawn
