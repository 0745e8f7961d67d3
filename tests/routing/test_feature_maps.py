"""Maps before features are chosen: fitted ones leave all scores alone and are the best short embedding."""

import pytest
import torch

from focus_core.adapter import load_adapter
from focus_core.errors import InvalidInput
from focus_core.retrofit import retrofit
from focus_core.routing.feature_maps import FeatureMaps, FeatureMapsConfig, balanced_maps, fit_feature_maps
from focus_core.variants import make
from tests.retrofit.helpers import Watcher, far, tokens
from tests.tiny import tiny_model


def samples(heads: int = 2, dim: int = 8):
    generator = torch.Generator().manual_seed(0)
    shape = (heads, 500, dim)
    mixes = torch.randn(2, heads, dim, dim, generator=generator, dtype=torch.float64)
    q, k = (torch.randn(shape, generator=generator, dtype=torch.float64) @ mix for mix in mixes)
    return q, k, q.mT @ q / 500, k.mT @ k / 500


def test_all_features_give_the_scores_themselves_and_even_variances_in_falling_order():
    q, k, moment_q, moment_k = samples()
    query_map, key_map = balanced_maps(moment_q, moment_k)
    torch.testing.assert_close(q @ query_map @ (k @ key_map).mT, q @ k.mT, rtol=1e-9, atol=1e-9)
    variances = [(x @ m).square().mean(1) for x, m in ((q, query_map), (k, key_map))]
    # The least directions are held up by a floor.
    torch.testing.assert_close(*(x[:, :5] for x in variances), rtol=1e-2, atol=1e-9)
    assert (variances[0].diff() < 0).all()


@pytest.mark.parametrize("width", [1, 3, 6])
def test_no_other_projection_of_that_width_loses_less(width):
    """Against keys' principal axes and random projections, by the mean square of the lost scores."""
    q, k, moment_q, moment_k = samples()
    query_map, key_map = balanced_maps(moment_q, moment_k)
    lost = (q @ query_map[..., :width] @ (k @ key_map[..., :width]).mT - q @ k.mT).square().mean()
    axes = torch.linalg.eigh(moment_k)[1].flip(-1)[..., :width]
    others = [axes, *(torch.linalg.qr(torch.randn(2, 8, width, dtype=torch.float64))[0] for _ in range(5))]
    for basis in others:
        assert lost < (q @ basis @ (k @ basis).mT - q @ k.mT).square().mean()


def test_directions_that_never_vary_do_no_harm():
    q, k, moment_q, moment_k = samples()
    flat = torch.zeros_like(moment_q)
    flat[:, 0, 0] = 1.0
    for pair in ((flat, moment_k), (moment_q, flat), (torch.zeros_like(flat), flat)):
        maps = balanced_maps(*pair)
        assert all(torch.isfinite(m).all() for m in maps)
        torch.testing.assert_close(q @ maps[0] @ (k @ maps[1]).mT, q @ k.mT, rtol=1e-6, atol=1e-6)


def test_fitted_maps_serve_short_embeddings_and_come_back(tmp_path):
    model, seen = tiny_model(layers=2), []
    adapter = fit_feature_maps(model, tokens(3, 200), progress=lambda f, _: seen.append(f))
    assert seen == [pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]
    adapter.save_pretrained(tmp_path, model)
    again = load_adapter(tmp_path, model)
    ids = tokens(2, 100, seed=4)
    native = model(ids).logits
    errors = []
    for features in (16, 12, 4):
        with torch.no_grad(), retrofit(model, make("sfa", {"select": "first", "features": features}), again):
            errors.append(far(model(ids).logits, native))
    assert errors[0] < 1e-3
    assert errors[0] < errors[1] < errors[2]
    watcher = Watcher()
    with torch.no_grad(), retrofit(model, make("dense"), recorder=watcher):
        model(ids, use_cache=False)
    call = watcher.calls[1]
    moved = again.apply_map(call.query, "query_map", 1), again.apply_map(call.key, "key_map", 1)
    torch.testing.assert_close(
        moved[0] @ moved[1].repeat_interleave(3, 1).mT,
        call.query @ call.key.repeat_interleave(3, 1).mT,
        rtol=1e-3,
        atol=1e-3,
    )


def test_untrained_maps_are_the_identity_and_keep_the_type():
    maps = FeatureMaps(FeatureMapsConfig(2, 4, 2, 8))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.randn(1, 4, 3, 8).to(dtype)
        assert torch.equal(maps.apply_map(x, "query_map", 1), x)


@pytest.mark.parametrize("sizes", [(0, 4, 2, 8), (2, 4, 3, 8), (2, 4, 2, 0)])
def test_sizes_that_cannot_be_are_refused(sizes):
    with pytest.raises(InvalidInput, match="Feature maps need"):
        FeatureMapsConfig(*sizes)
