"""Errors by number of features against the specification, and the jobs that measure them."""

import math
from types import SimpleNamespace

import pytest
import torch

from focus_core import assets
from focus_core.errors import Cancelled, InvalidInput
from focus_core.evaluation import feature_error
from focus_core.handlers import feature_speed, features
from focus_core.jobs import Host
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.sfa import sfa_attention
from focus_core.models.facts import facts_of
from focus_core.models.loading import load_model
from focus_core.retrofit import retrofit
from focus_core.routing.feature_maps import FeatureMaps, FeatureMapsConfig
from focus_core.variants import make
from tests.retrofit.helpers import Watcher, tokens
from tests.tiny import save_tiny, tiny_model

HOST = Host(device="cpu", cores=2)
SPEED = {
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 8,
    "features": [2],
    "lengths": [16],
    "decode_lengths": [9],
    "repeats": 1,
}


def measured(family="llama", ids=None, **given):
    tiny = tiny_model(family)
    loaded = SimpleNamespace(model=tiny, facts=facts_of(tiny), name="tiny")
    ids = tokens(1, 24)[0] if ids is None else ids
    return tiny, feature_error.feature_errors(loaded, ids, tokens(2, 40, seed=4), **given)


def test_errors_and_shared_features_are_those_of_the_specification():
    facts = facts_of(tiny_model("llama"))
    identity = FeatureMaps(FeatureMapsConfig(facts.layers, facts.heads, facts.kv_heads, facts.head_dim))
    told: list[float] = []
    tiny, found = measured(adapter=identity, progress=lambda share, _: told.append(share))
    assert (found["grid"], found["layers"]) == ([1, 2, 3, 4, 6, 8, 12], list(range(facts.layers)))
    assert set(found["errors"]) == set(feature_error.METHODS)
    assert told == sorted(told)
    watcher = Watcher()
    with torch.no_grad(), retrofit(tiny, make("dense"), recorder=watcher):
        tiny(tokens(1, 24), use_cache=False)
    call, at = watcher.calls[1], found["grid"].index(4)
    dense = dense_attention(call.query, call.key, call.value, scale=call.scale)
    for method, given in (
        ("features", {}),
        ("pairs", {"select": "pairs"}),
        ("keys", {"sparse": "keys"}),
        ("plain", {"select": "first"}),
    ):
        out = sfa_attention(
            call.query, call.key, call.value, features=4, scale=call.scale, backend="reference", **given
        )
        wanted = float(((out - dense).square().sum() / dense.square().sum()).sqrt())
        assert found["errors"][method][at][1] == pytest.approx(wanted, rel=2e-3)
    assert found["errors"]["trained"] == found["errors"]["features"]
    assert found["errors"]["pairs"][0] == [None] * facts.layers
    kept = [(x.abs() >= x.abs().topk(4, -1).values[..., -1:]).double() for x in (call.query, call.key)]
    both = kept[0] @ kept[1].repeat_interleave(3, 1).mT
    wanted = float(both.tril().sum() / (9 * 24 * 25 / 2))
    assert found["shared"][at][1] == pytest.approx(wanted, rel=1e-3)
    share = kept[1][0, 2].sum(0) / kept[1][0, 2].sum()
    entropy = -sum(p * math.log(p) for p in share.tolist() if p) / math.log(16)
    assert found["entropy"]["features"] == 4
    assert found["entropy"]["keys"][1][2] == pytest.approx(entropy, abs=1e-3)


def test_the_fitted_short_embedding_loses_least_of_the_scores():
    """On its own texts: what the principal directions of the keys alone, or the first dimensions, cannot do better."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 200, 6, generator=generator) @ torch.randn(1, 6, 6, generator=generator) for _ in range(2))
    maps = feature_error.fitted_maps({0: (q.mT @ q / 200, k.mT @ k / 200)}, 1)
    lost = {}
    for name in ("short", "pca"):
        a, b = q @ maps[name][0].queries, k @ maps[name][0].keys
        torch.testing.assert_close(a @ b.mT, q @ k.mT, rtol=1e-3, atol=1e-3)
        lost[name] = float((a[..., :3] @ b[..., :3].mT - q @ k.mT).square().mean())
    plain = float((q[..., :3] @ k[..., :3].mT - q @ k.mT).square().mean())
    assert lost["short"] < min(lost["pca"], plain)


def test_native_layers_and_models_without_rotary_pairs_are_left_out():
    _, gemma = measured("gemma2")
    facts = facts_of(tiny_model("gemma2"))
    assert gemma["layers"] == [layer for layer, own in enumerate(facts.native) if own is None] != []
    assert len(gemma["layers"]) < facts.layers
    assert "pairs" not in measured("gpt2")[1]["errors"]
    with pytest.raises(InvalidInput, match="1 token"):
        measured(ids=tokens(1, 1)[0])
    with pytest.raises(Cancelled):
        measured(cancel=lambda: True)


def test_the_jobs_measure_and_refuse(tmp_path, monkeypatch):
    save_tiny(tmp_path / "model", layers=2)
    loaded = load_model(str(tmp_path / "model"), device="cpu")
    monkeypatch.setattr(assets, "training_text", lambda: "the cat and the dog sat on the mat " * 200)
    text = "the dog ran and the rain ended in the morning while the cat sat on the mat"
    found = features.measure(loaded, text, 12)
    assert (found["tokens"], found["dtype"]) == (12, "float32")
    assert all(line["measured"] == line["formula"] for line in found["cache"])
    assert {line["select"] for line in found["cache"]} == {"dense", "features", "pairs"}
    request = {"model": str(tmp_path / "model"), "text_name": None, "text": text, "limit": 12, "adapter": None}
    assert features.estimate(request, HOST).seconds > 0
    assert features.estimate({**request, "model": "smollm2", "limit": 512}, HOST).seconds > 1
    router = next(n for n, e in assets.adapters().items() if e["config"].get("kind", "router") == "router")
    for wrong, match in (({"limit": 1}, "limit is 1"), ({"adapter": router}, "is of kind router")):
        with pytest.raises(InvalidInput, match=match):
            features.estimate({**request, **wrong}, HOST)


def test_speed_is_timed_in_both_phases_and_checked():
    told: list[float] = []
    found = feature_speed.measure(SPEED, progress=lambda share, _: told.append(share))
    assert [(row["phase"], row["length"], row["variant"]) for row in found["rows"]] == [
        ("prefill", 16, "sfa"),
        ("decode", 9, "sfa"),
    ]
    assert max(row["max_error"] for row in found["rows"]) < 1e-5
    assert told == sorted(told)
    assert feature_speed.estimate(SPEED, HOST).seconds > 0
    for wrong in ({"heads": 0}, {"features": [9]}, {"features": []}, {"lengths": [10**6]}, {"repeats": True}):
        with pytest.raises(InvalidInput):
            feature_speed.estimate({**SPEED, **wrong}, HOST)
