"""What ships in data/traces: one Trace a passage, with maps of every layer, that says truly how it was made."""

import hashlib

import numpy as np
import pytest

from data.build.traces import ADAPTER, ATTENTION_LAYERS, KMEANS, file_name
from focus_core.adapter import load_adapter
from focus_core.assets import DATA, adapters, load_text, text_names
from focus_core.capture import capture_trace, summary_of
from focus_core.models.loading import load_model
from focus_core.trace import Trace
from focus_core.variants import make

FOLDER = DATA / "traces"
NAMES = text_names("passage")


@pytest.fixture(scope="module", params=NAMES)
def trace(request):
    return Trace.load(FOLDER / file_name(request.param))


def bits_set(sets):
    return (sets[..., None] >> np.arange(64) & 1).sum(-1)


def test_every_passage_has_one_and_they_stay_small():
    assert {path.name for path in FOLDER.iterdir()} == {file_name(name) for name in NAMES}
    sizes = {name: (FOLDER / file_name(name)).stat().st_size for name in NAMES}
    assert sum(sizes.values()) < 11.5e6
    assert all(size < 1.4e6 for name, size in sizes.items() if name not in ATTENTION_LAYERS)


def test_it_is_of_the_text_and_of_the_default_adapter(trace):
    p = trace.provenance
    text, serve = load_text(p["text_name"]), adapters()[ADAPTER]["config"]["serve"]
    assert trace.text == text.text
    assert len(trace) == text.tokens
    assert p["text_hash"] == hashlib.sha256(text.text.encode()).hexdigest()[:16]
    assert (p["model"], p["variant"], p["adapter"], p["recorded"]) == ("smollm2", "focus", ADAPTER, True)
    assert make("focus", p["config"]) == make("focus", serve)
    assert (p["window"], p["sinks"], p["groups"]) == (
        p["config"]["window"],
        p["config"]["sinks"],
        p["config"]["groups"],
    )
    assert "edits" not in p
    assert trace.attention_layers == ATTENTION_LAYERS.get(p["text_name"], []) == p["kept_layers"]


def test_its_groups_are_those_that_the_settings_allow(trace):
    p, n = trace.provenance, len(trace)
    for side, topk in (("key", p["config"]["key_topk"]), ("query", p["config"]["query_topk"])):
        sets = trace.arrays[f"{side}_bits"]
        assert sets.shape == (30, 3, n)
        assert (bits_set(sets) == topk).all()
        assert ((sets >> p["groups"]) == 0).all()
    for layer in (0, 14, 29):
        pattern = trace.pattern(layer)
        kept = [pattern.density(0, head) for head in range(9)]
        np.testing.assert_allclose(trace.arrays["kept_pairs"][layer], kept, rtol=1e-6)
    control = trace.arrays["kmeans_bits"]
    assert control.shape == (30, 1, n)
    assert (bits_set(control) == adapters()[KMEANS]["config"]["serve"]["key_topk"]).all()
    assert all(len(np.unique(layer)) > 8 for layer in control)


def test_its_maps_hold_every_token_of_every_layer_and_router(trace):
    n = len(trace)
    for layer in range(30):
        points, centroids = trace.arrays[f"map.{layer}"], trace.arrays[f"map_centroids.{layer}"]
        assert (points.shape, centroids.shape) == ((3, 2, n, 2), (3, 16, 2))
        assert np.isfinite(points).all()
        assert np.isfinite(centroids).all()
        assert (points.astype(np.float32).std((1, 2)) > 0.5).all()
    # In layer 0 a token's place is decided by the token alone.
    points, ids = trace.arrays["map.0"], trace.arrays["token_ids"]
    twice = np.flatnonzero(ids == np.bincount(ids).argmax())
    assert len(twice) > 20
    spread = points[:, 0, twice].astype(np.float32).std(1).max()
    assert spread < 0.1 * points[:, 0].astype(np.float32).std()
    assert not [name for name in trace.arrays if name.startswith(("key_points", "query_points", "centroids"))]


def test_its_figures_are_possible(trace):
    a, n = trace.arrays, len(trace)
    assert a["entropy"].shape == a["sink_mass"].shape == (30, 9)
    assert (a["entropy"] > 0).all()
    assert (a["entropy"] < np.log(n)).all()
    assert (a["sink_mass"] > 0).all()
    assert (a["sink_mass"] <= 1).all()
    similar = a["similar"].astype(np.float32)
    assert similar.shape == (270, 270)
    np.testing.assert_allclose(np.diag(similar), 1, atol=1e-3)
    np.testing.assert_array_equal(similar, similar.T)
    for side in ("", "dense_"):
        ids, shares = a[f"{side}top_ids"], a[f"{side}top_p"].astype(np.float32)
        assert ids.shape == shares.shape == (n, 8)
        assert (np.diff(shares, axis=1) <= 0).all()
        assert (shares.sum(1) < 1.005).all()
        assert set(ids.ravel().tolist()) <= set(trace.top_text)
        # Where the true next token is the likeliest, its share is its likelihood.
        right = np.flatnonzero(ids[:-1, 0] == a["token_ids"][1:])
        assert len(right) > 0.2 * n
        np.testing.assert_allclose(np.exp(-a[f"{side}nll"][right]), shares[right, 0], atol=2e-3)
    assert summary_of(a) == pytest.approx(trace.provenance["summary"])


@pytest.mark.model
def test_the_model_gives_the_same_again():
    """A prefix is enough: routing and attention are causal."""
    name, n = "brown fiction opening", 150
    shipped, loaded = Trace.load(FOLDER / file_name(name)), load_model("smollm2")
    for variant, adapter, key in (("focus", ADAPTER, "key_bits"), ("kmeans", KMEANS, "kmeans_bits")):
        module = load_adapter(adapters()[adapter]["path"], loaded.model)
        text = load_text(name).text
        found = capture_trace(loaded, make(variant, module.serve), module, text, layers=[], limit=n)
        assert (found.arrays["key_bits"] == shipped.arrays[key][..., :n]).mean() > 0.999
        if variant == "focus":
            np.testing.assert_allclose(found.arrays["nll"], shipped.arrays["nll"][: n - 1], atol=0.02)
            assert (found.arrays["top_ids"][:, 0] == shipped.arrays["top_ids"][:n, 0]).mean() > 0.98
