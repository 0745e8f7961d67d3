"""What is each baseline's own: BigBird's draws, Performer's sums, Routing Transformer's clusters."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from focus_core import compat
from focus_core.adapter import load_adapter
from focus_core.edits import Move, check
from focus_core.errors import Cancelled, InvalidInput, Unsupported
from focus_core.kernels.performer import orthogonal_projection, performer_attention
from focus_core.models.facts import facts_of
from focus_core.retrofit import retrofit
from focus_core.routing.online import RoutingCentroids, RoutingConfig, fit_routing, nearest_share
from focus_core.routing.sets import members
from focus_core.variants import AttentionCall, Shape, make
from tests.retrofit.helpers import Watcher, far, step, tokens
from tests.tiny import tiny_model
from tests.variants.cases import adapter_for, small


def call_of(heads=3, queries=None, keys=100, layer=0, first=None, batch=1) -> AttentionCall:
    queries = keys if queries is None else queries
    q, k = torch.zeros(batch, heads, queries, 8), torch.zeros(batch, 1, keys, 8)
    first_key = None if first is None else torch.tensor(first)
    return AttentionCall(q, k, k, q[:, 0], layer, 1.0, first_key=first_key)


# Longformer


def test_longformer_is_its_window_and_first_tokens():
    model, ids = tiny_model(), tokens(1, 60)
    with torch.no_grad(), retrofit(model, make("longformer", {"window": 9, "sinks": 3})):
        one = model(ids, use_cache=False).logits
    with torch.no_grad(), retrofit(model, make("window", {"window": 9, "sinks": 3})):
        assert far(one, model(ids, use_cache=False).logits) == 0


# BigBird


def bigbird(**settings):
    return make("bigbird", {"block": 4, "window_blocks": 2, "random_blocks": 2} | settings)


def test_every_row_keeps_its_window_the_first_blocks_and_its_draws():
    kept = bigbird().pattern(call_of()).kept[0]
    for head in kept:
        for row, blocks in enumerate(head):
            assert not blocks[row + 1 :].any()
            assert blocks[max(0, row - 1) : row + 1].all()
            assert blocks[0]
            between = blocks[1 : max(1, row - 1)]
            assert between.sum() == min(2, len(between))


def test_draws_differ_by_head_layer_and_seed_and_by_nothing_else():
    def of(variant, **about):
        return variant.pattern(call_of(**about)).kept[0]

    first = of(bigbird())
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, of(bigbird(), layer=1))
    assert not np.array_equal(first, of(bigbird(seed=1)))
    assert np.array_equal(first, of(make("bigbird", bigbird().to_dict())))
    # A longer text and a call that begins later draw the same for the same rows.
    assert np.array_equal(first, of(bigbird(), keys=140)[:, :25, :25])
    assert np.array_equal(first[:, 18:], of(bigbird(), queries=28)[:, :, :25])


def test_every_earlier_block_is_drawn_about_alike():
    counts = sum(bigbird(seed=s).pattern(call_of()).kept[0, :, 24, 1:23].sum(0) for s in range(300))
    fair = 300 * 3 * 2 / 22
    assert abs(counts - fair).max() < 5 * fair**0.5


def test_a_padded_row_draws_as_it_does_alone():
    padded = bigbird().pattern(call_of(batch=2, first=[0, 30]))
    alone = bigbird().pattern(call_of(keys=70))
    whole = slice(0, 70)
    for head in range(3):
        assert np.array_equal(padded.tile(1, head, slice(30, 100), slice(30, 100)), alone.tile(0, head, whole, whole))


def test_a_text_no_longer_than_its_blocks_is_dense():
    variant = bigbird()
    length = variant.window + variant.sinks
    assert variant.pattern(call_of(keys=length)).density() == 1
    assert variant.pattern(call_of(keys=length + 1)).density() < 1


# Performer


def performed(model, ids, features=64, **settings):
    with torch.no_grad(), retrofit(model, make("performer", {"features": features, **settings})):
        return model(ids, use_cache=False).logits


def test_features_follow_the_seed_and_come_back_with_the_settings():
    model, ids, variant = tiny_model(), tokens(1, 30), make("performer", {"features": 64, "seed": 5})
    one = performed(model, ids, seed=5)
    assert far(one, performed(model, ids, **make("performer", variant.to_dict()).to_dict())) == 0
    assert far(one, performed(model, ids)) > 0.01


def test_more_features_come_nearer_to_dense():
    model, ids = tiny_model(), tokens(1, 60)
    with torch.no_grad():
        # Peaked scores are beyond any number of features that a test can pay for.
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(0.3)
        dense = model(ids).logits
        few, many = ([performed(model, ids, m, seed=s) for s in range(3)] for m in (16, 512))
        away = [sum(float((out - dense).square().mean()) for out in outs) for outs in (few, many)]
    assert away[1] < away[0] / 4


def test_a_soft_cap_is_refused():
    support = make("performer").supports(facts_of(tiny_model("gemma2")))
    assert not support.ok
    assert "soft cap of 5" in support.reason


@pytest.mark.parametrize("length, queries", [(1, None), (64, None), (1000, None), (1000, 1), (1000, 100)])
def test_the_cost_is_the_products_that_run(length, queries):
    shape = Shape(2, 9, 3, 16, length, queries)
    n = length if queries is None else queries
    q, k = torch.randn(2, 9, n, 16), torch.randn(2, 3, length, 16)
    projection = orthogonal_projection(48, 16)
    prefix = None
    if n < length:
        past = k[:, :, : length - n]
        _, prefix = performer_attention(q[:, :, :1], past, past, projection, return_prefix=True)
    with FlopCounterMode(display=False) as counter:
        performer_attention(q, k, k, projection, prefix=prefix)
    # A token's own weight is summed without a product of matrices.
    own = 2 * 2 * 9 * n * (48 + 17)
    cost = make("performer", {"features": 48}).cost(shape)
    assert cost.flops == counter.get_total_flops() + own
    assert cost.bytes > 2 * 2 * 48 * 3 * 18 * 4


def test_decoding_reads_sums_and_not_keys():
    model, ids = tiny_model(), tokens(2, 40)
    variant = make("performer", {"features": 64})
    whole = performed(model, ids)
    with torch.no_grad(), retrofit(model, variant):
        _, cache = step(model, ids[:, :39])
        for layer in cache.layers:
            assert layer.memo.tokens == 39
            layer.keys.fill_(float("nan"))
        logits, _ = step(model, ids[:, 39:], cache)
        assert far(logits, whole[:, 39:]) < 2e-5
        compat.drop_last(cache, 5)
        assert all(layer.memo.tensors is None for layer in cache.layers)


@pytest.mark.parametrize("change", ["crop", "reorder", "repeat", "select", "reset"])
def test_sums_go_with_the_rows_of_the_cache(change):
    model, ids, other = tiny_model(), tokens(3, 30), tokens(6, 5, seed=1)
    with torch.no_grad(), retrofit(model, make("performer", {"features": 64})):
        _, cache = step(model, ids)
        rows, length = [0, 1, 2], 30
        if change == "crop":
            length = 24
            compat.drop_last(cache, 6)
        elif change == "reorder":
            rows = [2, 0, 0]
            cache.reorder_cache(torch.tensor(rows))
        elif change == "repeat":
            rows = [0, 0, 1, 1, 2, 2]
            cache.batch_repeat_interleave(2)
        elif change == "select":
            rows = [2, 1]
            cache.batch_select_indices(torch.tensor(rows))
        else:
            length = 0
            cache.reset()
        logits, _ = step(model, other[: len(rows)], cache)
        joined = torch.cat([ids[rows, :length], other[: len(rows)]], 1)
        assert far(logits, model(joined, use_cache=False).logits[:, length:]) < 2e-5


def test_sums_of_other_features_are_not_continued():
    model, ids = tiny_model(), tokens(1, 20)
    with torch.no_grad():
        with retrofit(model, make("performer", {"features": 64})):
            _, cache = step(model, ids)
        with (
            retrofit(model, make("performer", {"features": 64, "seed": 1})),
            pytest.raises(Unsupported, match="begun by another variant"),
        ):
            step(model, ids[:, :1], cache)


# Routing Transformer


def fitted(model, groups=4, **settings) -> RoutingCentroids:
    windows = torch.stack([tokens(1, 50, seed=s)[0] for s in range(4)])
    return fit_routing(model, windows, groups=groups, **settings)


def test_clusters_are_learned_where_heads_put_their_tokens(tmp_path):
    model = tiny_model()
    adapter = fitted(model)
    assert adapter.centroids.norm(dim=-1).allclose(torch.ones(3, 3, 4))
    assert adapter.key_mean.abs().amax(-1).gt(0).all()
    assert far(adapter.centroids, fitted(model).centroids) == 0
    assert far(adapter.centroids, fitted(model, seed=1).centroids) > 0.1
    watcher, ids = Watcher(), tokens(2, 60, seed=9)
    with torch.no_grad(), retrofit(model, make("dense"), recorder=watcher):
        model(ids, use_cache=False)
    drawn = RoutingCentroids(RoutingConfig(3, 3, 16, 4))
    drawn.key_mean, drawn.query_mean = adapter.key_mean, adapter.query_mean

    def nearness(a):
        return sum(float(a.logits(c.layer, c.key, "keys").amax(-1).mean()) for c in watcher.calls)

    assert nearness(adapter) > nearness(drawn) + 0.1
    adapter.save_pretrained(tmp_path, model)
    again = load_adapter(tmp_path, model)
    assert all(
        torch.equal(a, b) for a, b in zip(adapter.state_dict().values(), again.state_dict().values(), strict=True)
    )


def test_means_are_those_of_what_was_seen():
    model = tiny_model()
    windows = torch.stack([tokens(1, 50, seed=s)[0] for s in range(4)])
    watcher = Watcher()
    with torch.no_grad(), retrofit(model, make("dense"), recorder=watcher):
        model(windows, use_cache=False)
    seen = torch.nn.functional.layer_norm(watcher.calls[1].key, (16,)).mean((0, 2))
    torch.testing.assert_close(fit_routing(model, windows, groups=4).key_mean[1], seen, rtol=0, atol=1e-5)


def test_fitting_stops_on_request():
    with pytest.raises(Cancelled):
        fitted(tiny_model(), cancel=lambda: True)


@pytest.mark.parametrize("first", [None, [0, 7]])
def test_published_clusters_take_equal_shares_of_the_text(first):
    logits = torch.randn(2, 3, 30, 4, generator=torch.Generator().manual_seed(0))
    sets = members(nearest_share(logits, None if first is None else torch.tensor(first)), 4)
    for row, start in enumerate(first or [0, 0]):
        assert not sets[row, :, :start].any()
        assert (sets[row].sum(1) == -(-(30 - start) // 4)).all()
    assert (sets.sum(-1) == 0).any()
    assert (sets.sum(-1) > 1).any()
    worst_in = logits.masked_fill(~sets, float("inf")).amin(2)
    best_out = logits.masked_fill(sets, float("-inf"))[:, :, 0 if first is None else 7 :].amax(2)
    assert (worst_in >= best_out).all()


def test_published_clusters_cannot_decode():
    model, variant = tiny_model(), small("routing", {"form": "published"})
    with torch.no_grad(), retrofit(model, variant, adapter_for(variant, facts_of(model))):
        _, cache = step(model, tokens(1, 20))
        with pytest.raises(Unsupported, match="cannot decode with a cache"):
            step(model, tokens(1, 1), cache)


def test_local_heads_keep_window_and_sinks_alone():
    model, variant, watcher = tiny_model(), small("routing", {"local_heads": 0.5}), Watcher()
    with torch.no_grad(), retrofit(model, variant, adapter_for(variant, facts_of(model)), recorder=watcher):
        model(tokens(1, 40), use_cache=False)
    pattern, near = (
        variant.pattern(watcher.calls[0]),
        make("window", {"window": 4, "sinks": 1}).pattern(watcher.calls[0]),
    )
    local = [h for h in range(9) if pattern.density(0, h) == near.density(0, h)]
    assert local == [0, 1, 2, 3]


def test_each_query_head_has_its_own_clusters():
    model, variant, watcher = tiny_model(), small("routing"), Watcher()
    with torch.no_grad(), retrofit(model, variant, adapter_for(variant, facts_of(model)), recorder=watcher):
        model(tokens(1, 40), use_cache=False)
    bits = variant.pattern(watcher.calls[0])
    assert not np.array_equal(bits.query_bits[0, 0], bits.query_bits[0, 1])
    assert np.array_equal(bits.key_bits[0, 0], bits.key_bits[0, 1])
    assert not np.array_equal(bits.key_bits[0, 0], bits.key_bits[0, 3])


def test_clusters_that_are_not_the_adapters_are_refused():
    model = tiny_model()
    adapter = adapter_for(small("routing"), facts_of(model))
    with (
        pytest.raises(InvalidInput, match="has 4 clusters and the setting groups is 8"),
        retrofit(model, make("routing", {"groups": 8}), adapter),
    ):
        model(tokens(1, 10), use_cache=False)


def test_clusters_of_heads_cannot_be_edited():
    with pytest.raises(Unsupported, match="routing serves no groups that could be edited"):
        check([Move(layer=0, router=0, token=1, to=2)], small("routing"), layers=3, routers=3, tokens=10)
