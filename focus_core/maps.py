"""Two coordinates for every token of a router's space: principal axes at once, UMAP where there is time.

Keys, queries and centroids lie in one space, so they are placed together: a query near a group's centroid looks for
that group. UMAP: McInnes, Healy and Melville, arXiv 1802.03426. No torch, and umap only inside the fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from focus_core.errors import Cancelled, InvalidInput

FIT_TOKENS = 2_000
"""Tokens that UMAP is fitted on; the others are placed beside them."""
SEED = 0
NEIGHBOURS = 15
EPOCHS = 200
"""UMAP's own choice for large sets; 500, its choice for small ones, takes twice as long and moves little."""
FEWEST = 3 * NEIGHBOURS
"""Distinct points below which neighbourhoods say nothing, and principal axes are taken."""
PREPARING_SECONDS = 10.0
"""Import of umap and its compilation, once a process."""
_PLACED_AT_ONCE = 2_048
_prepared = False


@dataclass(frozen=True)
class Map:
    """Where the tokens of one layer and router lie.

    Attributes:
        points: (P, N, 2) float32: keys, then queries where they have points of their own.
        centroids: (K, 2) float32.
        fitted: tokens that the map was fitted on.
        method: ``umap``, or ``pca`` where there are too few distinct points.
    """

    points: np.ndarray
    centroids: np.ndarray
    fitted: int
    method: str


def principal_axes(points: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Project on the two directions in which the points differ most.

    Args:
        points: (P, N, d) keys, and queries where P = 2.
        centroids: (K, d).

    Returns:
        (P, N, 2) and (K, 2) float32, and (2,) the share of the points' variance along each axis (zeros where all
        points are equal). The signs are fixed: the largest component of each direction is positive.
    """
    flat = np.asarray(points, np.float64).reshape(-1, points.shape[-1])
    centre = flat.mean(0)
    _, size, directions = np.linalg.svd(flat - centre, full_matrices=False)
    kept = min(2, len(directions))
    axes = np.zeros((2, flat.shape[1]))
    axes[:kept] = directions[:kept]
    axes *= np.where(axes[np.arange(2), np.abs(axes).argmax(1)] < 0, -1.0, 1.0)[:, None]
    variance = size**2
    share = np.zeros(2)
    if variance.sum() > 1e-12 * max(1.0, float((flat**2).sum())):
        share[:kept] = variance[:kept] / variance.sum()
    placed = ((flat - centre) @ axes.T).reshape(*points.shape[:-1], 2)
    beside = (np.asarray(centroids, np.float64).reshape(-1, flat.shape[1]) - centre) @ axes.T
    return placed.astype(np.float32), beside.astype(np.float32), share


def prepare_umap(progress: Callable[[float, str], None] | None = None) -> None:
    """Import umap and let it compile, which takes about 10 seconds once a process; nothing after that."""
    global _prepared
    if not _prepared:
        if progress is not None:
            progress(0.0, f"Preparing UMAP: about {PREPARING_SECONDS:.0f} s the first time.")
        points = np.random.default_rng(SEED).standard_normal((1, 2 * FEWEST, 4))
        joint_map(points, points[0, :1])
        _prepared = True


def joint_map(
    points: np.ndarray,
    centroids: np.ndarray,
    *,
    seed: int = SEED,
    fit_tokens: int = FIT_TOKENS,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Map:
    """One UMAP of keys and queries together, with the centroids placed in it.

    Equal points are fitted once, so that they share one place.

    Args:
        points: (P, N, d) keys, and queries where P = 2.
        centroids: (K, d).
        seed: makes the map repeatable.
        fit_tokens: most tokens, evenly spaced, that are fitted; the others and the centroids are placed by transform.
        progress: told the fraction done and a sentence.
        cancel: asked between the steps.

    Raises:
        InvalidInput: there is no token, or a point is not finite.
        Cancelled: on request.
    """
    points, centroids = np.asarray(points, np.float32), np.asarray(centroids, np.float32)
    if points.ndim != 3 or not points.size or centroids.ndim != 2 or centroids.shape[1] != points.shape[2]:
        raise InvalidInput(
            f"A map needs points (sets, tokens, d) and centroids (K, d), not {points.shape} and {centroids.shape}."
        )
    if not (np.isfinite(points).all() and np.isfinite(centroids).all()):
        raise InvalidInput("The routing space holds values that are not finite, so it has no map.")

    def step(fraction: float, sentence: str) -> None:
        if cancel is not None and cancel():
            raise Cancelled
        if progress is not None:
            progress(fraction, sentence)

    sets, tokens, width = points.shape
    chosen = np.unique(np.linspace(0, tokens - 1, min(tokens, fit_tokens)).round().astype(np.int64))
    distinct, place = np.unique(points[:, chosen].reshape(-1, width), axis=0, return_inverse=True)
    if len(distinct) < FEWEST:
        placed, beside, _ = principal_axes(points, centroids)
        return Map(placed, beside, tokens, "pca")

    step(0.02, "Loading UMAP.")
    from umap import UMAP

    step(0.15, f"Fitting a map of {len(distinct):,} points.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one core, because the seed is fixed: that is wanted
        umap = UMAP(n_neighbors=NEIGHBOURS, n_epochs=EPOCHS, random_state=seed, n_jobs=1, metric="precomputed")
        fit = umap.fit(_distances(distinct, distinct))
        out = np.zeros((sets, tokens, 2), np.float32)
        out[:, chosen] = fit.embedding_[place.reshape(-1)].reshape(sets, len(chosen), 2)
        rest = np.setdiff1d(np.arange(tokens), chosen)
        others = points[:, rest].reshape(-1, width)
        parts = [others[i : i + _PLACED_AT_ONCE] for i in range(0, len(others), _PLACED_AT_ONCE)]
        found = []
        for done, part in enumerate(parts):
            step(0.5 + 0.4 * done / len(parts), f"Placing the other {len(rest):,} tokens.")
            found.append(fit.transform(_distances(part, distinct)))
        if found:
            out[:, rest] = np.concatenate(found).reshape(sets, len(rest), 2)
        step(0.92, "Placing the centroids.")
        beside = fit.transform(_distances(centroids, distinct))
    return Map(out, np.asarray(beside, np.float32), len(chosen), "umap")


def _distances(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n, m) Euclidean distances; umap's own loop over the pairs takes 100 times as long."""
    squares = (points**2).sum(1)[:, None] + (others**2).sum(1)[None, :] - 2 * points @ others.T
    if points is others:
        np.fill_diagonal(squares, 0.0)
    return np.sqrt(np.maximum(squares, 0.0))
