"""The functions that KArAt's learned curves are sums of; all fixed, so that the learned sum is one matrix product."""

from __future__ import annotations

import math

import torch

from focus_core.errors import InvalidInput

SPLINE_RANGE = 3.0
"""B-splines lie on scores from -3 to 3; beyond, a curve falls to zero within two grid steps."""
_OCTAVES = 6


def features(scores: torch.Tensor, basis: str, grid: int) -> torch.Tensor:
    """Every basis function of every score.

    Args:
        scores: [..., N].
        basis: ``fourier``: cos(m a), sin(m a), m = 1..grid (arXiv 2503.10632, section 3). ``bspline``: the grid + 3
            uniform cubic B-splines. ``wavelet``: first and second derivative of a Gaussian at dilations 1, 1/2, 1/4...
            (the paper's DOG wavelets learn their dilation; these are fixed). ``fractal``: Takagi's curve, six octaves,
            at ``grid`` frequencies and two phases.
        grid: G.

    Returns:
        [..., F, N], F as in ``AttentionConfig.features``.
    """
    if basis == "fourier":
        angles = [m * scores for m in range(1, grid + 1)]
        return torch.stack([*(a.cos() for a in angles), *(a.sin() for a in angles)], -2)
    if basis == "bspline":
        position = (scores + SPLINE_RANGE) * (grid / (2 * SPLINE_RANGE))
        return torch.stack([_cubic(position - centre) for centre in range(-1, grid + 2)], -2)
    if basis == "wavelet":
        scaled = [scores * 2.0**m for m in range(grid)]
        bells = [(-0.5 * t * t).exp() for t in scaled]
        first = [-t * bell for t, bell in zip(scaled, bells, strict=True)]
        second = [(t * t - 1) * bell for t, bell in zip(scaled, bells, strict=True)]
        return torch.stack([*first, *second], -2)
    if basis == "fractal":
        turns = [m * scores / (2 * math.pi) for m in range(1, grid + 1)]
        return torch.stack([*(_takagi(t) for t in turns), *(_takagi(t + 0.25) for t in turns)], -2)
    raise InvalidInput(f"There is no basis {basis!r}.", "There are fourier, bspline, wavelet and fractal.")


def _cubic(t: torch.Tensor) -> torch.Tensor:
    u = t.abs()
    near, far = 2 / 3 - u * u * (1 - u / 2), (2 - u).clamp_min(0) ** 3 / 6
    return torch.where(u < 1, near, far)


def _takagi(t: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(t)
    for octave in range(_OCTAVES):
        scaled = t * 2.0**octave
        total = total + (scaled - scaled.round()).abs() / 2.0**octave
    # Its mean over a period is half the sum of 2^-octave / 2.
    return total - 0.5 * (1 - 0.5**_OCTAVES)
