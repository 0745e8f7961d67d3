"""KArAt's operator against plain loops, its counts against the paper's, and what it refuses."""

import dataclasses
import itertools
import math

import pytest
import torch

from focus_core.errors import InvalidInput, Unsupported
from focus_core.vision.bases import SPLINE_RANGE, features
from focus_core.vision.config import BASES, PRESETS, AttentionConfig, ViTConfig, operator_count, parameter_count
from focus_core.vision.karat import Operator
from focus_core.vision.simplex import project
from focus_core.vision.vit import ViT

KARAT = AttentionConfig("karat", grid=2, rank=3)


def _cubic(t):
    """The cubic B-spline by the recursion of Cox and de Boor on whole knots -2..2."""

    def one(i, degree):
        if degree == 0:
            return 1.0 if i <= t < i + 1 else 0.0
        return (t - i) / degree * one(i, degree - 1) + (i + degree + 1 - t) / degree * one(i + 1, degree - 1)

    return one(-2, 3)


def _plain(basis, grid, a):
    if basis == "fourier":
        return [math.cos(m * a) for m in range(1, grid + 1)] + [math.sin(m * a) for m in range(1, grid + 1)]
    if basis == "bspline":
        step = 2 * SPLINE_RANGE / grid
        return [_cubic((a + SPLINE_RANGE) / step - i) for i in range(-1, grid + 2)]
    if basis == "wavelet":
        t = [a * 2**m for m in range(grid)]
        return [-x * math.exp(-x * x / 2) for x in t] + [(x * x - 1) * math.exp(-x * x / 2) for x in t]

    def takagi(x):
        tents = [min(2**k * x % 1, 1 - 2**k * x % 1) / 2**k for k in range(6)]
        return sum(tents) - sum(0.25 / 2**k for k in range(6))

    turns = [m * a / (2 * math.pi) for m in range(1, grid + 1)]
    return [takagi(t) for t in turns] + [takagi(t + 0.25) for t in turns]


def _brute(values):
    """The nearest point of the simplex over every choice of its support."""
    best, found = math.inf, None
    n = len(values)
    for size in range(1, n + 1):
        for support in itertools.combinations(range(n), size):
            level = (sum(values[i] for i in support) - 1) / size
            x = [values[i] - level if i in support else 0.0 for i in range(n)]
            if min(x) < 0:
                continue
            distance = sum((a - b) ** 2 for a, b in zip(x, values, strict=True))
            if distance < best:
                best, found = distance, x
    return found


def test_the_projection_is_the_nearest_point_of_the_simplex():
    torch.manual_seed(0)
    for scale in (0.1, 1.0, 10.0):
        values = torch.randn(12, 5, dtype=torch.float64) * scale
        wanted = torch.tensor([_brute(row.tolist()) for row in values], dtype=torch.float64)
        torch.testing.assert_close(project(values), wanted, rtol=0, atol=1e-12)
    half = project((torch.randn(4, 50) * 3).bfloat16())
    assert half.dtype == torch.bfloat16
    assert (half.float().sum(-1) - 1).abs().max() < 0.02


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize(("rank", "projection"), [(3, "none"), (3, "rank"), (3, "row"), (None, "none")])
def test_the_operator_is_the_papers_sum(basis, rank, projection):
    torch.manual_seed(1)
    n, heads, grid = 4, 2, 2
    config = AttentionConfig("karat", basis, grid, rank, projection=projection, base_function="silu")
    operator = Operator(config, heads, n).double()
    with torch.no_grad():
        operator.base.normal_()
        operator.scale.normal_()
    scores = torch.randn(2, heads, n, n, dtype=torch.float64) * 2
    operator.requires_grad_(False)
    got = operator(scores)
    c, s, b = operator.coefficients, operator.scale, operator.base
    for image, h, k in itertools.product(range(2), range(heads), range(n)):
        row = scores[image, h, k].tolist()
        z = []
        for p in range(rank or n):
            total = 0.0
            for q, a in enumerate(row):
                curve = sum(float(c[h, p, f, q]) * v for f, v in enumerate(_plain(basis, grid, a)))
                total += float(s[h, p, q]) * curve + float(b[h, p, q]) * a / (1 + math.exp(-a))
            z.append(total)
        out = _brute(z) if projection == "rank" else z
        if rank is not None:
            out = [sum(float(operator.mix[h, i, p]) * out[p] for p in range(rank)) for i in range(n)]
        if projection == "row":
            out = _brute(out)
        torch.testing.assert_close(got[image, h, k], torch.tensor(out, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("basis", BASES)
def test_a_config_knows_how_many_functions_its_basis_has(basis):
    for grid in (1, 3, 5):
        found = features(torch.linspace(-2, 2, 7), basis, grid)
        assert found.shape == (AttentionConfig("karat", basis, grid).features, 7)


@pytest.mark.parametrize(
    ("shape", "classes", "changes", "millions"),
    [
        ("vit-tiny", 10, None, 5.53),
        ("vit-tiny", 10, {}, 6.29),
        ("vit-tiny", 10, {"scope": "universal"}, 5.59),
        ("vit-small", 1000, None, 22.05),
        ("vit-small", 1000, {}, 23.58),
        ("vit-small", 1000, {"scope": "universal"}, 22.18),
        ("vit-base", 10, None, 85.81),
        ("vit-base", 10, {"grid": 1}, 87.51),
        ("vit-base", 10, {"grid": 1, "scope": "universal"}, 85.95),
    ],
)
def test_the_published_sizes(shape, classes, changes, millions):
    config = dataclasses.replace(PRESETS[shape], classes=classes)
    if changes is not None:
        config = config.with_attention(kind="karat", **changes)
    assert round(parameter_count(config) / 1e6, 2) == millions


@pytest.mark.parametrize("changes", [{}, {"kind": "karat"}, {"kind": "karat", "rank": None, "basis": "bspline"}])
def test_the_count_is_that_of_the_model(changes):
    config = PRESETS["digits"].with_attention(**changes)
    model = ViT(config)
    assert sum(p.numel() for p in model.parameters()) == parameter_count(config)
    held = sum(p.numel() for name, p in model.named_parameters() if "operator" in name)
    assert held == operator_count(config)


def test_a_universal_operator_is_stored_once_and_learns_from_all_layers():
    model = ViT(ViTConfig(8, patch=4, attention=dataclasses.replace(KARAT, scope="universal")))
    assert len({model.operator(i).mix.data_ptr() for i in range(4)}) == 1
    assert sum("coefficients" in name for name in model.state_dict()) == 1
    own = ViT(ViTConfig(8, patch=4, attention=KARAT))
    assert len({own.operator(i).mix.data_ptr() for i in range(4)}) == 4
    model(torch.randn(2, 1, 8, 8)).sum().backward()
    assert model.shared.coefficients.grad.abs().sum() > 0


def test_what_karat_is_not_defined_for_is_refused_with_the_reason():
    model = ViT(ViTConfig(8, patch=4, attention=KARAT))
    images = torch.zeros(1, 1, 8, 8)
    with pytest.raises(Unsupported, match="causal"):
        model(images, causal=True)
    with pytest.raises(Unsupported, match="mask"):
        model(images, mask=torch.ones(1, 5))
    with pytest.raises(InvalidInput, match="resolution"):
        model(torch.zeros(1, 1, 12, 12))
    operator = model.operator(0)
    with pytest.raises(Unsupported, match="cross-attention"):
        operator(torch.zeros(1, 3, 5, 4))
    with pytest.raises(Unsupported, match="5 tokens"):
        operator(torch.zeros(1, 3, 6, 6))
    with pytest.raises(InvalidInput, match="cannot change"):
        model(images, attention=AttentionConfig())
    with pytest.raises(InvalidInput, match="rank vector"):
        AttentionConfig("karat", rank=None, projection="rank")
