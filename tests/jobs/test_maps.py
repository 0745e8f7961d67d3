"""Maps of a routing space: the fit and its limits, and the kind of work that draws them."""

import json

import numpy as np
import pytest

from analysis.projection import principal_map, recorded_map, same_groups
from focus_core import handlers, maps
from focus_core.errors import Cancelled, InvalidInput
from focus_core.jobs import Engine, Host
from focus_core.maps import joint_map, principal_axes
from tests.app.synthetic import make_trace
from tests.jobs.conftest import finish

HOST = Host(device="cpu", cores=2)
TEXT = "it is a truth universally acknowledged that a single man in possession of a good fortune wants a wife " * 9


def clusters(tokens, sets=2, groups=6, width=8, seed=0):
    """Points around far centroids, with the cluster of each."""
    rng = np.random.default_rng(seed)
    centroids = rng.standard_normal((groups, width))
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    member = rng.integers(0, groups, (sets, tokens))
    points = centroids[member] + 0.08 * rng.standard_normal((sets, tokens, width))
    return points.astype(np.float32), centroids.astype(np.float32), member


def nearest(points, centroids):
    return ((points[..., None, :] - centroids) ** 2).sum(-1).argmin(-1)


def test_a_map_keeps_clusters_together_and_is_repeatable():
    points, centroids, member = clusters(150)
    seen = []
    found = joint_map(points, centroids, progress=lambda f, s: seen.append((f, s)))
    assert (found.points.shape, found.points.dtype.name) == ((2, 150, 2), "float32")
    assert (found.centroids.shape, found.fitted, found.method) == ((6, 2), 150, "umap")
    # Keys and queries of one cluster lie together, around their centroid.
    assert (nearest(found.points, found.centroids) == member).mean() > 0.97
    assert [f for f, _ in seen] == sorted(f for f, _ in seen)
    assert "Fitting a map of 300 points." in [s for _, s in seen]
    again = joint_map(points, centroids)
    np.testing.assert_array_equal(again.points, found.points)
    np.testing.assert_array_equal(again.centroids, found.centroids)


def test_tokens_beyond_the_fit_are_placed_beside_it():
    points, centroids, member = clusters(260)
    found = joint_map(points, centroids, fit_tokens=120)
    assert found.fitted == 120
    assert np.isfinite(found.points).all()
    chosen = np.unique(np.linspace(0, 259, 120).round().astype(int))
    rest = np.setdiff1d(np.arange(260), chosen)
    assert (nearest(found.points[:, rest], found.centroids) == member[:, rest]).mean() > 0.95


def test_equal_points_share_one_place():
    points, centroids, _ = clusters(200, sets=1)
    points[0, 100:] = points[0, :100]
    found = joint_map(points, centroids)
    np.testing.assert_array_equal(found.points[0, 100:], found.points[0, :100])


@pytest.mark.parametrize("tokens", [1, 2, 5])
@pytest.mark.parametrize("sets", [1, 2])
def test_few_points_lie_on_their_principal_axes(tokens, sets):
    points, centroids, _ = clusters(tokens, sets)
    found = joint_map(points, centroids[:1])
    assert (found.points.shape, found.centroids.shape) == ((sets, tokens, 2), (1, 2))
    assert (found.method, found.fitted) == ("pca", tokens)
    assert np.isfinite(found.points).all()
    assert np.isfinite(found.centroids).all()


def test_points_that_are_all_equal_lie_at_the_centre():
    found = joint_map(np.full((2, 500, 8), 0.25, np.float32), np.eye(8, dtype=np.float32)[:3])
    assert (found.points == 0).all()
    assert np.isfinite(found.centroids).all()


def test_a_map_in_fewer_dimensions_than_two():
    points = np.linspace(0, 1, 10, dtype=np.float32).reshape(1, 10, 1)
    placed, beside, share = principal_axes(points, points[0, :2])
    np.testing.assert_allclose(placed[0, :, 0], points[0, :, 0] - 0.5, atol=1e-6)
    assert (placed[..., 1] == 0).all()
    assert (beside[:, 1] == 0).all()
    np.testing.assert_allclose(share, [1, 0])


@pytest.mark.parametrize(
    ("points", "centroids"),
    [
        (np.zeros((1, 0, 4)), np.zeros((2, 4))),
        (np.zeros((1, 5, 4)), np.zeros((2, 3))),
        (np.full((1, 5, 4), np.nan), np.zeros((2, 4))),
    ],
)
def test_what_has_no_map_is_refused(points, centroids):
    with pytest.raises(InvalidInput):
        joint_map(points, centroids)


def test_a_map_can_be_stopped():
    points, centroids, _ = clusters(150)
    calls = []
    with pytest.raises(Cancelled):
        joint_map(points, centroids, cancel=lambda: calls.append(1) or len(calls) == 2)
    assert len(calls) == 2


def test_umap_is_prepared_once(monkeypatch):
    said = []
    monkeypatch.setattr(maps, "_prepared", False)
    for _ in range(2):
        maps.prepare_umap(lambda share, sentence: said.append(sentence))
    assert said == ["Preparing UMAP: about 10 s the first time."]


def test_principal_axes_are_those_of_sklearn():
    from sklearn.decomposition import PCA

    trace = make_trace(TEXT, limit=120)
    found = principal_map(trace, 2, 1)
    assert found.method == "pca"
    points = np.concatenate([trace.arrays[f"{side}_points.2"][1] for side in ("key", "query")]).astype(np.float64)
    want = PCA(2).fit(points)
    placed = want.transform(points)
    signs = np.sign((placed * found.points.reshape(-1, 2)).sum(0))
    np.testing.assert_allclose(found.points.reshape(-1, 2) * signs, placed, atol=1e-4)
    beside = want.transform(trace.arrays["centroids.2"][1].astype(np.float64))
    np.testing.assert_allclose(found.centroids * signs, beside, atol=1e-4)
    np.testing.assert_allclose(found.explained, want.explained_variance_ratio_, rtol=1e-5)


def test_a_trace_without_a_space_or_a_map_says_so():
    bare = make_trace(TEXT, limit=50, points=False)
    assert principal_map(bare, 0, 0) is None
    assert recorded_map(bare, 0, 0) is None
    shipped = make_trace(TEXT, limit=50, points=False, maps=True)
    found = recorded_map(shipped, 3, 2)
    assert (found.points.shape, found.centroids.shape, found.method) == ((2, 50, 2), (16, 2), "umap")
    assert not same_groups(bare, make_trace(TEXT[:90]))
    assert same_groups(shipped, shipped)
    assert not same_groups(shipped, make_trace(TEXT, limit=50, groups=4))


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    make_trace(TEXT, limit=160).save(folder / "whole.npz")
    make_trace(TEXT, limit=160, points=False).save(folder / "bare.npz")
    (folder / "no.npz").write_text("no")
    return folder


def test_the_kind_of_work(traces, tmp_path):
    request = {"trace": str(traces / "whole.npz"), "layer": 3, "router": 2}
    with Engine(tmp_path / "runs", device="cpu") as engine:
        job = finish(engine.submit("map", request), seconds=120)
        assert job.state == "done", job.error
        assert "160 tokens, 10 s of it prepare UMAP the first time" in job.estimate.sentence
        assert (job.result["fitted"], job.result["method"]) == (160, "umap")
        assert job.result["seconds"] > 0
        with np.load(job.result["map"]) as found:
            assert {name: found[name].shape for name in found} == {"points": (2, 160, 2), "centroids": (16, 2)}
            assert np.isfinite(found["points"]).all()
        assert engine.submit("map", request).from_store
        json.dumps(job.result)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"trace": None}, "No Trace is named"),
        ({"trace": "nowhere.npz"}, "no Trace file at"),
        ({"trace": "no.npz"}, "is not a Trace file"),
        ({"trace": "bare.npz"}, "no routing space"),
        ({"layer": 4}, r"no routing space of layer 4\. It has layers 0, 1, 2, 3"),
        ({"layer": True}, "layer is True"),
        ({"router": 3}, r"no router 3\. Layer 1 has routers 0 to 2"),
        ({"router": -1}, "router is -1"),
    ],
)
def test_a_map_of_nothing_is_refused_before_it_runs(traces, change, says):
    request = {"trace": "whole.npz", "layer": 1, "router": 0, **change}
    request["trace"] = request["trace"] and str(traces / request["trace"])
    with pytest.raises(InvalidInput, match=says):
        handlers.handler("map").estimate(request, HOST)
