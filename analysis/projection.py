"""The routing space in two dimensions: a UMAP that was computed before, or principal axes at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from focus_core.maps import principal_axes
from focus_core.trace import Trace


@dataclass(frozen=True)
class Projection:
    """Where the tokens of one layer and router lie.

    Attributes:
        points: (P, N, 2) float32: keys, then queries where they have points of their own.
        centroids: (K, 2) float32.
        method: ``umap`` or ``pca``.
        explained: share of the points' variance along each axis; None for UMAP, whose axes mean nothing.
    """

    points: np.ndarray
    centroids: np.ndarray
    method: str
    explained: tuple[float, float] | None = None


def recorded_map(trace: Trace, layer: int, router: int) -> Projection | None:
    """The UMAP that a shipped Trace has of this layer and router; None where it has none."""
    if f"map.{layer}" not in trace.arrays:
        return None
    points, centroids = (trace.arrays[f"{name}.{layer}"][router] for name in ("map", "map_centroids"))
    return Projection(points.astype(np.float32), centroids.astype(np.float32), "umap")


def principal_map(trace: Trace, layer: int, router: int) -> Projection | None:
    """Keys, queries and centroids on the two directions in which keys and queries differ most (milliseconds).

    None where the Trace holds no routing space of this layer.
    """
    points = trace.routing_points(layer)
    if points is None:
        return None
    placed, centroids, share = principal_axes(points[:, router], trace.arrays[f"centroids.{layer}"][router])
    return Projection(placed, centroids, "pca", (float(share[0]), float(share[1])))


def same_groups(one: Trace, other: Trace) -> bool:
    """Whether two Traces hold the same text in the same groups, so that a map of one is a map of the other."""
    if one.text != other.text:
        return False
    return all(
        name in one.arrays and name in other.arrays and np.array_equal(one.arrays[name], other.arrays[name])
        for name in ("key_bits", "query_bits", "token_ids")
    )
