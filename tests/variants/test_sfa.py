"""SFA in a model: what its cache holds, which caches it refuses, its maps, and Focus's pairs with codes."""

import copy

import pytest
import torch
from transformers import DynamicCache

from focus_core import compat
from focus_core.capture import capture_trace
from focus_core.errors import InvalidInput, Unsupported
from focus_core.kernels.dense import dense_attention
from focus_core.models.facts import facts_of
from focus_core.retrofit import retrofit
from focus_core.variants import Shape, make
from tests.retrofit.helpers import Watcher, far, in_chunks, step, tokens
from tests.tiny import tiny_model
from tests.variants.cases import adapter_for, small


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama")


def cached(model, variant, ids, adapter=None):
    with torch.no_grad(), retrofit(model, variant, adapter):
        return step(model, ids)[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("features, select, per_key", [(4, "features", 1), (4, "pairs", 0.5), (7, "features", 1)])
def test_the_live_cache_has_the_bytes_of_the_formula(features, select, per_key, dtype):
    """K in k values and k one-byte dimensions, V whole: (3k + 2d) / 4d of dense in a 16-bit type."""
    tiny = tiny_model("llama", dtype=dtype)
    variant = make("sfa", {"features": features, "select": select})
    cache = cached(tiny, variant, tokens(2, 25))
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) / (2 * 25 * 3)
    size = dtype.itemsize
    assert held == 3 * (features * size + features * per_key + 16 * size)
    assert held == variant.cost(Shape(2, 9, 3, 16, 25, itemsize=size)).kv_bytes_per_token
    dense = sum(layer.keys.nbytes + layer.values.nbytes for layer in cached(tiny, make("dense"), tokens(2, 25)).layers)
    if (features, select, size) == (4, "features", 2):
        assert held / (dense / (2 * 25 * 3)) == (3 * 4 + 2 * 16) / (4 * 16)


def test_decoding_reads_nothing_but_the_codes(model):
    """The keys themselves are nowhere: the layer's bytes are all there is, and changing them changes the output."""
    variant, ids = small("sfa", {"features": 4}), tokens(1, 20)
    cache, watcher = cached(model, variant, ids), Watcher()
    other = copy.deepcopy(cache)
    for layer in other.layers:
        assert layer.keys.dtype == torch.uint8
        layer.keys[..., -4:] = (layer.keys[..., -4:] + 1) % 16
    with torch.no_grad(), retrofit(model, variant, recorder=watcher):
        a, b = (step(model, tokens(1, 1, seed=3), c)[0] for c in (cache, other))
    assert far(a, b) > 1e-3
    assert watcher.calls[0].key.dtype == torch.uint8
    assert watcher.calls[0].key.shape == (1, 3, 21, 4 * 4 + 4)


def test_a_packed_cache_is_cropped_reordered_and_repeated_as_any(model):
    variant, ids = small("sfa", {"features": 4}), tokens(3, 24)
    with torch.no_grad(), retrofit(model, variant):
        whole = in_chunks(model, ids, (24,))
        _, cache = step(model, ids[:, :20])
        compat.drop_last(cache, 5)
        cache.reorder_cache(torch.tensor([2, 0, 1]))
        again, cache = step(model, ids[[2, 0, 1], 15:], cache)
        assert far(again, whole[[2, 0, 1], 15:]) < 2e-5
        cache.batch_select_indices(torch.tensor([1]))
        cache.batch_repeat_interleave(2)
        assert cache.layers[0].keys.shape[0] == 2
        cache.reset()
        assert far(step(model, ids, cache)[0], whole) < 2e-5
    cache.reset()
    assert far(step(model, ids, cache)[0], model(ids).logits) < 2e-5


def test_generation_is_that_of_the_uncached_forward(model):
    variant, ids = small("sfa", {"features": 4}), tokens(2, 12)
    with torch.no_grad(), retrofit(model, variant):
        out = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
        for n in range(12, 18):
            best = model(out[:, :n], use_cache=False).logits[:, -1].argmax(-1)
            assert torch.equal(best, out[:, n])


def test_caches_of_others_are_refused(model):
    variant, ids = small("sfa", {"features": 4}), tokens(1, 8)
    dense = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, use_cache=True, **{compat.cache_keyword(model): dense})
    with torch.no_grad(), retrofit(model, variant), pytest.raises(Unsupported, match="8 earlier tokens whose keys"):
        step(model, ids, dense)
    packed = cached(model, variant, ids)
    with torch.no_grad(), pytest.raises(Unsupported, match="packed keys"):
        step(model, ids, packed)
    packed = cached(model, variant, ids)
    for other in (small("sfa", {"features": 6}), make("dense")):
        with torch.no_grad(), retrofit(model, other), pytest.raises(Unsupported, match="begun by another variant"):
            step(model, ids, packed)
    adapter = adapter_for(variant, facts_of(model))
    with torch.no_grad(), retrofit(model, variant, adapter), pytest.raises(Unsupported, match="another adapter"):
        step(model, ids, packed)


def test_pairs_need_a_model_that_rotates_whole_heads_by_halves(model):
    assert facts_of(model).rotary == 16
    assert make("sfa", {"select": "pairs"}).supports(facts_of(model)).ok
    for family in ("gemma3", "qwen3"):
        assert facts_of(tiny_model(family)).rotary == 16
    support = make("sfa", {"select": "pairs"}).supports(facts_of(tiny_model("gpt2")))
    assert not support.ok
    assert "none of its dimensions" in support.reason
    support = make("sfa", {"features": 17}).supports(facts_of(model))
    assert (support.ok, "16 dimensions" in support.reason) == (False, True)
    with pytest.raises(InvalidInput, match="no number of whole pairs"):
        make("sfa", {"select": "pairs", "features": 5})


def test_short_embeddings_need_maps_and_pairs_refuse_them(model):
    ids, adapter = tokens(1, 8), adapter_for(small("sfa"), facts_of(model))
    first, pairs = small("sfa", {"select": "first"}), small("sfa", {"select": "pairs"})
    with torch.no_grad(), retrofit(model, first), pytest.raises(InvalidInput, match="need an adapter's maps"):
        model(ids, use_cache=False)
    with torch.no_grad(), retrofit(model, pairs, adapter), pytest.raises(InvalidInput, match="mix rotary pairs"):
        model(ids, use_cache=False)


def test_a_softcap_and_layers_with_a_window_are_the_models_own():
    tiny = tiny_model("gemma2")
    ids, watcher = tokens(1, 20), Watcher()
    with torch.no_grad(), retrofit(tiny, small("sfa", {"features": 16}), recorder=watcher):
        logits, cache = step(tiny, ids)
    assert far(logits, tiny(ids).logits) < 2e-5
    full = [call.sliding_window is None for call in watcher.calls]
    assert any(full), "gemma2 has layers that see everything"
    assert not all(full), "and layers with a window"
    assert [layer.keys.dtype == torch.uint8 for layer in cache.layers] == full
    assert watcher.calls[full.index(True)].softcap == 5.0


@pytest.mark.parametrize("queries", [1, 5, 20])
def test_focus_with_codes_is_focus_on_the_sparse_queries_and_keys(model, queries):
    """Composition: the pairs are Focus's to the last one, the scores SFA's."""
    facts, ids = facts_of(model), tokens(2, 40)
    focus, both = small("focus", {"query_topk": 2}), small("focus_sfa", {"features": 4, "query_topk": 2})
    adapter, watchers = adapter_for(focus, facts), (Watcher(), Watcher())
    for variant, watcher in zip((focus, both), watchers, strict=True):
        with torch.no_grad(), retrofit(model, variant, adapter):
            _, cache = step(model, ids[:, : 40 - queries])
        with torch.no_grad(), retrofit(model, variant, adapter, recorder=watcher):
            step(model, ids[:, 40 - queries :], cache)
    ours, theirs = watchers[1].calls[0], watchers[0].calls[0]
    assert torch.equal(ours.cached, theirs.cached)
    assert ours.key.dtype == torch.uint8
    pattern = both.pattern(ours)
    sparse = both.plain_call(ours)
    got = both.attend(ours)
    for b in range(2):
        for h in range(9):
            kept = torch.from_numpy(pattern.tile(b, h, slice(0, queries), slice(0, 40)))
            scores = (sparse.query[b, h] @ sparse.key[b, h // 3].T * ours.scale).masked_fill(~kept, -torch.inf)
            assert far(torch.softmax(scores, -1) @ ours.value[b, h // 3], got[b, h]) < 1e-5


@pytest.mark.parametrize("queries", [1, 5, 20])
def test_blocks_with_codes_are_xattentions_of_the_sparse_queries_and_keys(model, queries):
    """Composition: chosen and scored as XAttention would from the rows with zeros; the cache holds codes alone."""
    ids, watcher = tokens(2, 40), Watcher()
    settings = {"block": 8, "stride": 4, "threshold": 0.5}
    both, blocks = small("xattention_sfa", settings | {"features": 4}), small("xattention", settings)
    with torch.no_grad(), retrofit(model, both):
        _, cache = step(model, ids[:, : 40 - queries])
    with torch.no_grad(), retrofit(model, both, recorder=watcher):
        step(model, ids[:, 40 - queries :], cache)
    call = watcher.calls[0]
    assert (call.key.dtype, call.cached.dtype) == (torch.uint8, torch.uint8)
    assert call.cached.shape == (2, 9, 40, 4 * 4 + 4)
    plain = both.plain_call(call)
    assert (plain.cached[:, :, -queries:] == plain.query).all()
    assert ((plain.key != 0).sum(-1) == 4).all()
    assert far(both.attend(call), blocks.attend(plain)) < 1e-5
    assert (both.pattern(call).kept == blocks.pattern(plain).kept).all()


def test_a_trace_refuses_pairs_that_it_cannot_hold(tmp_path):
    from focus_core.models.loading import load_model
    from tests.tiny import save_tiny

    save_tiny(tmp_path)
    loaded = load_model(str(tmp_path), device="cpu")
    text = "the cat and the dog sat on the mat while another one ran there"
    with pytest.raises(Unsupported, match="FeaturePattern"):
        capture_trace(loaded, small("sfa", {"features": 4, "no_overlap": "exclude"}), None, text)
    trace = capture_trace(loaded, small("sfa", {"features": 4}), None, text)
    assert trace.pattern(0).density() == 1.0
    assert trace.provenance["rotary"] == 16
    assert abs(trace.provenance["summary"]["ppl"] - trace.provenance["summary"]["dense_ppl"]) > 1e-3


def test_excluding_everything_leaves_an_empty_row(model):
    """A query whose features no key has: 0, not NaN."""
    from focus_core.variants import AttentionCall

    q, k, v = torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4), torch.ones(1, 1, 3, 4)
    q[..., 0], k[..., 3] = 1.0, 1.0
    call = AttentionCall(q, k, v, v[:, 0], 0, 1.0)
    variant = make("sfa", {"features": 1, "no_overlap": "exclude"})
    assert (variant.attend(call) == 0).all()
    assert variant.pattern(call).density() == 0
    kept = make("sfa", {"features": 1}).attend(call)
    torch.testing.assert_close(kept, dense_attention(q * 0, k, v))
