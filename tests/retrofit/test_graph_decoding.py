"""Decoding in a cache with room, on a CPU one launch after the other: what ``generate()`` gives is what it gave."""

import pytest
import torch

from focus_core import compat
from focus_core.errors import InvalidInput, TooLarge, Unsupported
from focus_core.graphs import graph_decoding
from focus_core.retrofit import retrofit
from focus_core.routing.router import Router, RouterConfig
from focus_core.steps import StepLayer, make_room, steps_of
from focus_core.variants import make
from tests.retrofit.helpers import Gate, Gated, Watcher, far, positions_of, step, tokens
from tests.tiny import tiny_model

LAYERS = 2
VARIANTS = {
    "dense": ("dense", {}),
    "focus": ("focus", {"groups": 8, "window": 4, "sinks": 1, "query_topk": 2}),
    "random": ("random", {"groups": 4, "window": 4}),
    "xattention": ("xattention", {}),
}


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", layers=LAYERS, heads=4, kv_heads=2)


@pytest.fixture(scope="module")
def router(model):
    return Router(RouterConfig(LAYERS, model.config.hidden_size, 8, routers=2)).requires_grad_(False)


def generated(model, ids, mask=None, **settings):
    settings = {"max_new_tokens": 7, "do_sample": False, "pad_token_id": 0, "eos_token_id": None} | settings
    with torch.no_grad():
        return model.generate(ids, attention_mask=mask, return_dict_in_generate=True, output_logits=True, **settings)


def assert_same(got, wanted):
    assert torch.equal(got.sequences, wanted.sequences)
    assert far(torch.stack(got.logits), torch.stack(wanted.logits)) < 1e-5


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_generate_gives_the_same_tokens(model, router, name, padded):
    ids = tokens(2, 20)
    mask = torch.ones_like(ids)
    if padded:
        mask[1, :6] = 0
    kind, settings = VARIANTS[name]
    with retrofit(model, make(kind, settings), router if name == "focus" else None) as active:
        wanted = generated(model, ids, mask)
        with graph_decoding(active, 26) as decoding:
            assert_same(generated(model, ids, mask), wanted)
            # A cache of its own again, and a sampled text.
            torch.manual_seed(0)
            sampled = generated(model, ids, mask, do_sample=True, max_new_tokens=4)
        assert decoding.eager == 6 + 3
        assert decoding.replayed == 0
        torch.manual_seed(0)
        assert_same(sampled, generated(model, ids, mask, do_sample=True, max_new_tokens=4))


def test_a_cache_is_written_where_it_lies(model, router):
    ids = tokens(2, 24)
    watcher = Watcher()
    with retrofit(model, make(*VARIANTS["focus"]), router, watcher) as active, torch.no_grad():
        wanted, _ = step(model, ids)
        with graph_decoding(active, 30):
            _, cache = step(model, ids[:, :20])
            for at in range(20, 24):
                # With position_ids and without.
                given = positions_of(torch.ones_like(ids))[:, at : at + 1] if at % 2 else None
                logits, same = step(model, ids[:, at : at + 1], cache, positions=given)
                assert same is cache
                assert far(logits[:, 0], wanted[:, at]) < 1e-4
                assert cache.get_seq_length() == at + 1
                places = [layer.keys.data_ptr() for layer in cache.layers]
                assert places == [x.keys.data_ptr() for x in cache.layers]
            assert all(type(layer) is StepLayer and layer.keys.shape[2] == 30 for layer in cache.layers)
            assert watcher.calls[-1].key.data_ptr() == places[-1]
            assert watcher.calls[-1].cached.shape == (2, 2, 24)


def test_the_room_ends_with_numbers(model):
    with retrofit(model, make("dense")) as active, graph_decoding(active, 23):
        generated(model, tokens(1, 20), max_new_tokens=4)
        with pytest.raises(Unsupported, match="holds 23 tokens, and room was made for 23"):
            generated(model, tokens(1, 20), max_new_tokens=5)
        with pytest.raises(Unsupported, match="holds 24 tokens, and room for 23"):
            generated(model, tokens(1, 24), max_new_tokens=2)
        for room in (0, None, 2.5, True):
            with pytest.raises(InvalidInput, match="room is"), graph_decoding(active, room):
                pass


def test_missing_memory_is_said_before_anything_is_made(model):
    with retrofit(model, make("dense")), torch.no_grad():
        _, cache = step(model, tokens(1, 10))
        # Two layers of 2 heads x 16, keys and values, fp32: 256 bytes a token and layer.
        with pytest.raises(TooLarge, match=r"1,000,000 tokens takes 0\.51 GB.*0\.50 GB are free"):
            make_room(cache, 1_000_000, None, False, (None, 0), free=lambda: 0.5e9)
        assert steps_of(cache) is None
        assert make_room(cache, 1_000, None, False, (None, 0), free=lambda: 0.6e6).room == 1_000


def test_what_a_graph_cannot_do_is_refused(model):
    one = tokens(2, 1)
    with retrofit(model, make("dense")) as active, torch.no_grad():
        with graph_decoding(active, 40) as decoding:
            with pytest.raises(Unsupported, match="only grows"):
                generated(model, tokens(1, 12), num_beams=2)
            _, cache = step(model, tokens(2, 12))
            named = {compat.cache_keyword(model): cache}
            with pytest.raises(Unsupported, match="output_hidden_states"):
                model(one, output_hidden_states=True, **named)
            with pytest.raises(Unsupported, match="return_dict=False"):
                model(one, return_dict=False, **named)
            step(model, one, cache)
            with pytest.raises(Unsupported, match="2 tokens at a time"):
                step(model, tokens(2, 2), cache)
            with pytest.raises(Unsupported, match="2 rows, and 1"):
                step(model, tokens(1, 1), cache)
            # Several turns before the first step are a prefill.
            _, other = step(model, tokens(1, 5))
            step(model, tokens(1, 4), other)
            assert steps_of(other) is None
            assert decoding.eager == 2
        assert "forward" not in vars(model)
    no_step = pytest.raises(Unsupported, match="xattention with these settings has no step")
    with retrofit(model, make("xattention")) as active, graph_decoding(active, 40, graph=True), no_step:
        generated(model, tokens(1, 12))


def test_the_variant_that_began_a_cache_goes_on_with_it(model, router):
    with torch.no_grad():
        with retrofit(model, make("dense")) as active, graph_decoding(active, 40):
            _, cache = step(model, tokens(1, 12))
            step(model, tokens(1, 1), cache)
        with retrofit(model, make(*VARIANTS["focus"]), router), pytest.raises(Unsupported, match="another variant"):
            step(model, tokens(1, 1), cache)


def test_float_state_and_no_graph_is_left_behind(model):
    gate = Gate(model.config.hidden_size)
    ids = tokens(2, 12)
    with retrofit(model, Gated(), gate) as active:
        wanted = generated(model, ids)
        with graph_decoding(active, 40) as decoding:
            assert_same(generated(model, ids), wanted)
        assert decoding._step is None


def test_a_prompt_read_token_by_token_keeps_its_padding(model, router):
    ids = tokens(3, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = mask[2, :8] = 0
    with retrofit(model, make(*VARIANTS["focus"]), router) as active:
        wanted = generated(model, ids, mask)
        with graph_decoding(active, 20) as decoding:
            assert torch.equal(generated(model, ids, mask, prefill_chunk_size=1).sequences, wanted.sequences)
        # The last row's first real token is the prompt's last one: before it all is prefill.
        assert decoding.eager == 1 + 6


def test_nothing_is_written_into_room_that_nobody_counts(model):
    one, refused = tokens(2, 1), pytest.raises(Unsupported, match="inside graph_decoding alone")
    with retrofit(model, make("dense")) as active, torch.no_grad():
        with graph_decoding(active, 20):
            _, cache = step(model, tokens(2, 8))
            step(model, one, cache)
            with torch.enable_grad(), refused:
                step(model, one, cache)
        with refused:
            step(model, one, cache)
        with graph_decoding(active, 20):
            step(model, one, cache)
        assert cache.get_seq_length() == 10


def test_a_block_leaves_the_forward_that_was_there(model):
    usual = model.forward
    model.forward = lambda *args, **kwargs: usual(*args, **kwargs)
    own = model.forward
    try:
        with retrofit(model, make("dense")) as active:
            with graph_decoding(active, 20):
                with pytest.raises(InvalidInput, match="already"), graph_decoding(active, 20):
                    pass
                with pytest.raises(KeyError):
                    raise KeyError
            assert model.forward is own
    finally:
        del model.forward


def test_windows_of_the_model_have_no_room():
    model = tiny_model("mistral", layers=1)
    refused = pytest.raises(Unsupported, match="Layers 0 of")
    with retrofit(model, make("dense")) as active, refused, graph_decoding(active, 40):
        pass
