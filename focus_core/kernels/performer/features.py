"""FAVOR+ features: positive, orthogonal, drawn once from a seed."""

from __future__ import annotations

import functools

import torch

from focus_core.kernels.checks import wide


@functools.lru_cache(maxsize=256)
def _drawn(features: int, dim: int, seed: int, layer: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + layer)
    blocks = []
    for _ in range(-(-features // dim)):
        square = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        # The sign of R's diagonal makes the rotation uniform; without it QR prefers some.
        q, r = torch.linalg.qr(square)
        blocks.append(q * r.diagonal().sign())
    rotations = torch.cat(blocks)[:features]
    norms = torch.randn(features, dim, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)
    return rotations * norms


def orthogonal_projection(
    features: int, dim: int, *, seed: int = 0, layer: int = 0, dtype: torch.dtype = torch.float32, device=None
) -> torch.Tensor:
    """Rows that are orthogonal within each block of ``dim`` and have the lengths of Gaussian vectors.

    Args:
        features: m, the number of rows.
        dim: D, the size of a head.
        seed: of the draw.
        layer: of the draw too, so that layers differ.
        dtype: of the result; the draw itself is in fp64.
        device: of the result.

    Returns:
        (m, D).
    """
    return _drawn(features, dim, seed, layer).to(dtype=dtype, device=device)


def log_features(x: torch.Tensor, projection: torch.Tensor, scale: float) -> torch.Tensor:
    """Logarithms of the positive features of queries or keys, without their common factor 1 / sqrt(m).

    ``exp(log_features(q)) . exp(log_features(k)) / m`` estimates ``exp(scale * q . k)`` without bias.

    Args:
        x: (..., D).
        projection: (m, D) of ``orthogonal_projection``.
        scale: factor of the scores, split evenly over queries and keys.

    Returns:
        (..., m) in fp32 (fp64 for fp64 input).
    """
    x = x.to(wide(x.dtype)) * scale**0.5
    return x @ projection.to(x).T - x.square().sum(-1, keepdim=True) / 2
