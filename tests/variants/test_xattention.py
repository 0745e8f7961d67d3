"""XAttention as a variant: what decoding runs, what the published form leaks, and what is remembered."""

import pytest
import torch

from focus_core import compat
from focus_core.errors import InvalidInput, Unsupported
from focus_core.models.facts import facts_of
from focus_core.retrofit import retrofit
from focus_core.routing.thresholds import Thresholds, ThresholdsConfig
from focus_core.variants import make
from tests.retrofit.helpers import Watcher, far, in_chunks, step, tokens
from tests.tiny import tiny_model

SETTINGS = {"block": 8, "stride": 4, "threshold": 0.4}


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama")


def run(model, variant, ids, adapter=None):
    with torch.no_grad(), retrofit(model, variant, adapter):
        return model(ids, use_cache=False).logits


def test_thresholds_of_an_adapter_replace_the_setting(model):
    variant, ids = make("xattention", SETTINGS), tokens(2, 48)
    adapter = Thresholds(ThresholdsConfig(3, 9))
    adapter.thresholds.fill_(0.4)
    assert torch.equal(run(model, variant, ids), run(model, variant, ids, adapter))
    adapter.thresholds.fill_(1.0)
    assert far(run(model, variant, ids, adapter), model(ids).logits) < 2e-5
    facts = facts_of(model)
    assert variant.supports(facts).ok


@pytest.mark.parametrize("sizes", [(40, *[1] * 24), (13, 1, 1, 30, 1, 18)])
def test_decoding_keeps_the_same_blocks_with_and_without_what_is_remembered(sizes, model):
    variant, ids = make("xattention", SETTINGS), tokens(2, 64)
    whole = run(model, variant, ids)
    with torch.no_grad(), retrofit(model, variant):
        assert far(in_chunks(model, ids, sizes), whole) < 2e-5


def test_a_block_chooses_once_while_decoding(model, monkeypatch):
    from focus_core.kernels import xattention

    chosen, real = [], xattention.causal_block_mask

    def counting(*arguments, **settings):
        chosen.append(arguments[2])
        return real(*arguments, **settings)

    monkeypatch.setattr(xattention, "causal_block_mask", counting)
    variant, ids = make("xattention", SETTINGS), tokens(1, 60)
    with torch.no_grad(), retrofit(model, variant):
        in_chunks(model, ids, (30,) + (1,) * 30)
    # Three layers: the prefill, and then the first tokens of the blocks at 32, 40, 48 and 56.
    assert chosen.count(30) == 3
    assert chosen.count(1) == 3 * 4


def test_a_cropped_or_reordered_cache_goes_on_as_if_begun_so(model):
    variant, ids = make("xattention", SETTINGS), tokens(2, 64)
    with torch.no_grad(), retrofit(model, variant):
        _, cache = step(model, ids[:, :50])
        cache.crop(-13)
        out, cache = step(model, ids[:, 37:38], cache)
        cache.reorder_cache(torch.tensor([1, 1]))
        swapped = torch.cat([ids[1:, :38], ids[1:, :38]])
        more, _ = step(model, ids[:, 38:39], cache)
    whole = run(model, variant, ids)
    assert far(out, whole[:, 37:38]) < 2e-5
    again = run(model, variant, torch.cat([swapped, ids[:, 38:39]], 1))
    assert far(more, again[:, 38:39]) < 2e-5


def test_the_published_form_leaks_inside_a_block_and_nowhere_else(model):
    variant, ids = make("xattention", SETTINGS | {"voters": "own"}), tokens(2, 64)
    assert variant.leaks
    assert not variant.served
    other = ids.clone()
    other[:, 43:] = tokens(2, 21, seed=1)
    a, b = (run(model, variant, x) for x in (ids, other))
    assert far(a[:, :40], b[:, :40]) < 1e-6
    assert far(a[:, 40:43], b[:, 40:43]) > 1e-3


def test_the_published_form_decodes_dense(model):
    """As the paper says: sparse prefill, then every pair of the kept cache."""
    variant, ids, watcher = make("xattention", SETTINGS | {"voters": "own"}), tokens(1, 41), Watcher()
    with torch.no_grad(), retrofit(model, variant):
        _, cache = step(model, ids[:, :40])
    with torch.no_grad(), retrofit(model, variant, recorder=watcher):
        model(ids[:, 40:], use_cache=True, **{compat.cache_keyword(model): cache})
    assert all(variant.pattern(call).density() == 1.0 for call in watcher.calls)
    # Chunks that end on a block are the whole.
    whole = run(model, variant, ids)
    with torch.no_grad(), retrofit(model, variant):
        assert far(in_chunks(model, ids, (16, 8, 17)), whole) < 2e-5


def test_first_layers_stay_dense_and_remember_nothing(model):
    variant, ids, watcher = make("xattention", SETTINGS | {"dense_layers": 2}), tokens(1, 48), Watcher()
    with torch.no_grad(), retrofit(model, variant, recorder=watcher):
        _, cache = step(model, ids)
    assert [variant.pattern(call).density() == 1.0 for call in watcher.calls] == [True, True, False]
    assert [getattr(layer, "state", None) is not None for layer in cache.layers] == [False, False, True]
    everything = make("xattention", SETTINGS | {"dense_layers": 3})
    assert far(run(model, everything, ids), model(ids).logits) < 2e-5


def test_a_cache_of_another_threshold_is_not_continued(model):
    ids = tokens(1, 40)
    with torch.no_grad(), retrofit(model, make("xattention", SETTINGS)):
        _, cache = step(model, ids[:, :30])
    with (
        torch.no_grad(),
        retrofit(model, make("xattention", SETTINGS | {"threshold": 0.9})),
        pytest.raises(Unsupported, match="other settings"),
    ):
        step(model, ids[:, 30:], cache)


@pytest.mark.parametrize("family", ["gemma2", "gpt2", "qwen3"])
def test_other_families_decode_what_they_prefill(family):
    tiny, ids = tiny_model(family), tokens(2, 48)
    variant = make("xattention", SETTINGS)
    whole = run(tiny, variant, ids)
    with torch.no_grad(), retrofit(tiny, variant):
        assert far(in_chunks(tiny, ids, (20, 11, *[1] * 17)), whole) < 2e-5
    assert far(whole, tiny(ids).logits) > 0.01


def test_bf16_keeps_what_fp32_keeps_of_the_same_values():
    tiny, ids = tiny_model("llama", dtype=torch.bfloat16), tokens(1, 64)
    variant, watcher = make("xattention", SETTINGS), Watcher()
    with torch.no_grad(), retrofit(tiny, variant, recorder=watcher):
        tiny(ids, use_cache=False)
    for call in watcher.calls:
        wide = {name: getattr(call, name).float() for name in ("query", "key", "value", "cached")}
        same = variant.pattern(type(call)(**{**vars(call), **wide}))
        assert (variant.pattern(call).kept == same.kept).all()


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"stride": 12}, "stride is 12.*power of two"),
        ({"block": 100}, "block is 100.*power of two"),
        ({"block": 8, "stride": 16}, "stride is 16, and a block has 8"),
    ],
)
def test_strides_and_blocks_that_do_not_fit_are_refused(settings, reason):
    with pytest.raises(InvalidInput, match=reason):
        make("xattention", settings)
