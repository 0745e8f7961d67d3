"""What a capture keeps for the group pages, against the model's own attention, logits and router."""

import numpy as np
import pytest
import torch

from focus_core import handlers
from focus_core.budget import BYTE_BUDGET, plan_layers, plan_points, trace_bytes
from focus_core.capture import capture_trace
from focus_core.edits import Move
from focus_core.errors import InvalidInput, TooLarge, Unsupported
from focus_core.head_statistics import head_statistics, sampled_rows
from focus_core.jobs import Host
from focus_core.models.facts import facts_of
from focus_core.models.loading import Loaded
from focus_core.pattern import GroupPattern
from focus_core.retrofit import retrofit
from focus_core.routing.router import Router, RouterConfig
from focus_core.routing.sets import top_groups
from focus_core.trace import Trace
from focus_core.variants import make
from tests.jobs.test_capture import GROUPS, TEXT, eager, load
from tests.tiny import save_tiny, tiny_model, tiny_tokenizer

FOCUS = {"groups": 5, "query_topk": 2, "window": 6, "sinks": 2}


def router(form="directed", layers=3, routers=3):
    made = Router(RouterConfig(layers, 144, groups=5, dim=4, routers=routers, form=form)).requires_grad_(False)
    if made.query_projection is not None:
        made.query_projection += torch.randn(made.query_projection.shape, generator=torch.Generator().manual_seed(1))
    return made


def of_router(loaded, form, **options):
    return capture_trace(loaded, make("focus", FOCUS), router(form, loaded.facts.layers), TEXT, limit=80, **options)


@pytest.mark.parametrize("form", ["directed", "shared"])
def test_the_routing_space_is_what_decided_the_groups(form):
    trace, made = of_router(load(), form), router(form)
    for layer in range(3):
        points, centroids = trace.routing_points(layer), trace.arrays[f"centroids.{layer}"]
        assert points.shape == (2 if form == "directed" else 1, 3, 80, 4)
        assert (points.dtype.name, centroids.shape) == ("float16", (3, 5, 4))
        for side, name, topk in ((points[0], "key_bits", 1), (points[-1], "query_bits", 2)):
            logits = side.astype(np.float32) @ centroids.astype(np.float32).transpose(0, 2, 1)
            sets = top_groups(torch.from_numpy(logits) + made.bias[layer][:, None], topk).numpy()
            # Half floats may swap what was nearly equal.
            assert (sets == trace.arrays[name][layer]).mean() > 0.98
    assert (f"query_points.{0}" in trace.arrays) == (form == "directed")


def test_layers_without_a_router_have_no_points():
    gemma = of_router(load("gemma2"), "directed", layers=[])
    native = [layer for layer, own in enumerate(gemma.provenance["native"]) if own is not None]
    assert native == [0, 2]
    assert gemma.routing_points(0) is None
    assert gemma.routing_points(1).shape == (2, 3, 80, 4)
    plain = capture_trace(load(), make("random", GROUPS), None, TEXT, limit=40)
    assert not [name for name in plain.arrays if "points" in name or "centroids" in name]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_entropy_and_sink_mass_are_the_models_own(family):
    loaded = load(family)
    trace = capture_trace(loaded, make("random", GROUPS), None, TEXT, limit=137)
    attention, _ = eager(loaded, torch.from_numpy(trace.arrays["token_ids"].astype(np.int64))[None])
    log = np.log(np.maximum(attention, 1e-300))
    np.testing.assert_allclose(trace.arrays["entropy"], -(attention * log).sum(-1).mean(-1), atol=1e-4)
    np.testing.assert_allclose(trace.arrays["sink_mass"], attention[..., :4].sum(-1).mean(-1), atol=1e-5)
    assert trace.provenance["sink_tokens"] == 4


def profile_by_definition(attention):
    """(F,) of one head, cell by cell."""
    n = attention.shape[0]
    rows = np.arange(n)[sampled_rows(n)][sampled_rows(len(np.arange(n)[sampled_rows(n)]), 64)]
    block = -(-n // 32)
    found = np.zeros((len(rows), 64))
    for place, i in enumerate(rows):
        for j in range(i + 1):
            found[place, i - j if i - j < 32 else 32 + j // block] += attention[i, j]
    return found.ravel() / np.linalg.norm(found)


def test_similar_heads_are_those_with_similar_attention():
    loaded = load(layers=2)
    trace = capture_trace(loaded, make("random", GROUPS), None, TEXT, limit=137)
    attention, _ = eager(loaded, torch.from_numpy(trace.arrays["token_ids"].astype(np.int64))[None])
    profiles = np.array([profile_by_definition(head) for head in attention.reshape(-1, 137, 137)])
    np.testing.assert_allclose(trace.arrays["similar"], profiles @ profiles.T, atol=2e-3)
    assert trace.arrays["similar"].astype(float).std() > 0.01
    assert "cosine" in trace.provenance["similar_how"]


@pytest.mark.parametrize("count", [1, 2, 31, 33, 300])
def test_a_head_is_similar_to_itself_alone(count):
    """Two heads with the same q and k, and one that looks elsewhere."""
    rng = np.random.default_rng(0)
    q, k = (torch.from_numpy(rng.normal(size=(3, count, 8)) * 2).float() for _ in range(2))
    q[1], k[1] = q[0], k[0]
    pattern = GroupPattern.without_groups(1, count, count, 3, window=4)
    found = head_statistics(q, k, pattern, 1.0, sampled_rows(count))
    similar = found.profile @ found.profile.T
    assert similar[0, 1] == pytest.approx(1, abs=1e-5)
    assert similar[0, 2] < (1.001 if count <= 2 else 0.98)
    assert np.isfinite(found.entropy).all()


def test_likely_tokens_are_those_of_both_models():
    loaded = load()
    trace = of_router(loaded, "directed")
    ids = torch.from_numpy(trace.arrays["token_ids"].astype(np.int64))[None]
    with torch.no_grad():
        shares = loaded.model(input_ids=ids, use_cache=False).logits[0].float().softmax(-1)
    top = shares.topk(8)
    np.testing.assert_allclose(trace.arrays["dense_top_p"], top.values, atol=1e-3)
    found = shares.gather(1, torch.from_numpy(trace.arrays["dense_top_ids"].astype(np.int64)))
    np.testing.assert_allclose(found, top.values, atol=1e-5)
    with torch.no_grad(), retrofit(loaded.model, make("focus", FOCUS), router()):
        served = loaded.model(input_ids=ids, use_cache=False).logits[0].float().softmax(-1)
    np.testing.assert_allclose(trace.arrays["top_p"], served.topk(8).values, atol=1e-3)
    found = served.gather(1, torch.from_numpy(trace.arrays["top_ids"].astype(np.int64)))
    np.testing.assert_allclose(found, served.topk(8).values, atol=1e-5)
    assert np.abs(trace.arrays["top_p"] - trace.arrays["dense_top_p"].astype(float)).max() > 0.01
    shown = {*trace.arrays["top_ids"].ravel().tolist(), *trace.arrays["dense_top_ids"].ravel().tolist()}
    assert set(trace.top_text) == shown
    for i, text in trace.top_text.items():
        plain = tiny_tokenizer().decode([i])
        assert text == plain or (text.startswith("\\x") and plain == "\N{REPLACEMENT CHARACTER}")


def test_dense_alone_foretells_the_same_twice():
    trace = capture_trace(load(), make("dense"), None, TEXT, limit=40)
    np.testing.assert_array_equal(trace.arrays["top_ids"], trace.arrays["dense_top_ids"])


def test_an_old_file_opens_without_what_it_lacks(tmp_path):
    trace = of_router(load(), "directed")
    old = {k: v for k, v in trace.arrays.items() if k in ("nll", "dense_nll", "key_bits", "query_bits", "kept_pairs")}
    opened = Trace.load(Trace(trace.provenance, trace.text, trace.tokens, old).save(tmp_path / "old.npz"))
    assert opened.top_text == {}
    assert opened.routing_points(0) is None
    assert opened.pattern(1).density(0, 0) == trace.pattern(1).density(0, 0)


def test_the_budget_counts_everything():
    loaded = load(layers=6)
    for layers in ("all", [0, 3], []):
        trace = of_router(loaded, "directed", layers=layers)
        kept = len(trace.attention_layers)
        routed = sum(name.startswith("key_points.") for name in trace.arrays)
        assert routed == 6
        assert sum(a.nbytes for a in trace.arrays.values()) <= trace_bytes(loaded.facts, 80, kept, 3 * 4 * 2, routed)


def test_a_large_routing_space_is_kept_for_the_layers_of_q_and_k():
    facts = load(layers=12).facts
    whole = trace_bytes(facts, 500, 12, 24, 12)
    assert plan_layers(facts, 500, "all", 4 * whole, 24) == plan_points(facts, 500, [0], 4 * whole, 24)
    wide = 200
    some = plan_layers(facts, 500, "all", whole, wide)
    assert 1 <= len(some) < 12
    assert plan_points(facts, 500, some, whole, wide) == some
    assert trace_bytes(facts, 500, len(some), wide, len(some)) <= whole
    with pytest.raises(TooLarge, match="Keeping q and k of 12 layers"):
        plan_layers(facts, 500, list(range(12)), whole, wide)
    assert plan_points(facts, 500, [3], BYTE_BUDGET, 0) == []
    assert plan_points(facts, 500, [3], whole, 4_000) == []


def test_a_trace_over_budget_keeps_fewer_points_and_still_fits():
    loaded = load(layers=6)
    budget = trace_bytes(loaded.facts, 80, 2, 24, 2)
    trace = of_router(loaded, "directed", byte_budget=budget)
    routed = [layer for layer in range(6) if trace.routing_points(layer) is not None]
    assert routed in (trace.attention_layers, list(range(6)))
    assert sum(a.nbytes for a in trace.arrays.values()) <= budget


def test_edits_are_checked_before_a_model_loads(tmp_path):
    model = save_tiny(tmp_path / "m", layers=2)
    made = router(layers=2)
    made.serve = FOCUS
    made.save_pretrained(tmp_path / "a", model)
    base = {"model": str(tmp_path / "m"), "text_name": None, "text": TEXT, "layers": "all"}
    focus = base | {"variant": "focus", "config": {}, "adapter": str(tmp_path / "a")}
    estimate = handlers.handler("trace").estimate
    host = Host(device="cpu", cores=2)
    move = {"layer": 1, "router": 2, "token": 5, "to": 4}
    assert estimate({**focus, "edits": [move]}, host).seconds > 0
    for change, says in (({"layer": 2}, "no layer 2"), ({"router": 3}, "no router 3"), ({"to": 5}, "no group 5")):
        with pytest.raises(InvalidInput, match=says):
            estimate({**focus, "edits": [move | change]}, host)
    with pytest.raises(Unsupported, match="window serves no groups"):
        estimate({**base, "variant": "window", "config": {}, "adapter": None, "edits": [move]}, host)
    with pytest.raises(InvalidInput, match="edits is a str"):
        estimate({**focus, "edits": "move"}, host)


def test_an_edited_run_through_the_handler(tmp_path):
    loaded = load(layers=2)

    class Context:
        folder, progress, cancelled = tmp_path, staticmethod(lambda f, s: None), staticmethod(lambda: False)
        model = staticmethod(lambda name: loaded)

    request = {"model": "tiny", "text": TEXT, "text_name": None, "variant": "random", "config": GROUPS, "limit": 60}
    edit = {"layer": 1, "router": 0, "token": 30, "to": 2}
    result = handlers.handler("trace").run({**request, "edits": [edit]}, Context)
    trace = Trace.load(tmp_path / "trace.npz")
    assert result["provenance"]["edits"] == trace.provenance["edits"] == [edit]
    assert trace.arrays["key_bits"][1, 0, 30] == trace.arrays["query_bits"][1, 0, 30] == 4
    direct = capture_trace(loaded, make("random", GROUPS), None, TEXT, limit=60, edits=[Move(1, 0, 30, 2)])
    np.testing.assert_array_equal(trace.arrays["nll"], direct.arrays["nll"])


def test_a_padded_vocabulary_has_ids_that_write_nothing():
    model = tiny_model(vocab_size=320)
    loaded = Loaded(model, tiny_tokenizer(), facts_of(model, "tiny"), "tiny")
    trace = capture_trace(loaded, make("window"), None, TEXT, limit=60)
    beyond = [i for i in trace.top_text if i >= 300]
    assert beyond
    assert all(trace.top_text[i] == f"<{i}>" for i in beyond)
