"""Whatever would make the result differ from what a variant promises is refused with the reason."""

import pytest
import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, StaticCache

from focus_core import compat
from focus_core.errors import InvalidInput, Unsupported
from focus_core.retrofit import NAME, retrofit
from focus_core.variants import make
from tests.retrofit.helpers import Gate, Gated, Refusing, Routed, far, positions_of, step, tokens
from tests.tiny import tiny_model


@pytest.fixture
def model():
    return tiny_model("llama")


@pytest.fixture
def window():
    return make("window", {"window": 4, "sinks": 1})


def test_a_variant_that_does_not_support_the_model(model):
    with pytest.raises(Unsupported, match="Refusing cannot serve llama: it has 9 heads"), retrofit(model, Refusing()):
        pass
    assert model.config._attn_implementation == "sdpa"


def test_a_missing_or_foreign_adapter(model):
    with pytest.raises(InvalidInput, match="needs an adapter of kind 'gate'; none"), retrofit(model, Gated()):
        pass
    with pytest.raises(InvalidInput, match="'Linear' was given"), retrofit(model, Gated(), torch.nn.Linear(1, 1)):
        pass


def test_a_second_retrofit_and_the_first_goes_on(model, window):
    ids = tokens(1, 20)
    with retrofit(model, window):
        logits = model(ids).logits
        with pytest.raises(InvalidInput, match="carries a variant already"), retrofit(model, make("dense")):
            pass
        assert far(model(ids).logits, logits) == 0
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("used_before", [False, True])
def test_a_cache_begun_dense(model, used_before):
    ids = tokens(1, 20)
    with retrofit(model, make("dense")) if used_before else torch.no_grad():
        _, cache = step(model, ids)
    with retrofit(model, Routed()), pytest.raises(Unsupported, match=r"20 earlier tokens .* state for 0"):
        step(model, ids[:, :1], cache)


@pytest.mark.parametrize("other", [Routed(window=5), make("dense"), make("window")])
def test_a_cache_begun_by_another_variant(model, other):
    ids = tokens(1, 20)
    with retrofit(model, Routed()):
        _, cache = step(model, ids)
    with retrofit(model, other), pytest.raises(Unsupported, match="begun by another variant"):
        step(model, ids[:, :1], cache)
    with retrofit(model, Routed()):
        step(model, ids[:, :1], cache)


def test_a_cache_begun_with_another_adapter(model):
    ids, size = tokens(1, 20), model.config.hidden_size
    first = Gate(size)
    with torch.no_grad():
        with retrofit(model, Gated(), first):
            _, cache = step(model, ids)
        with retrofit(model, Gated(), Gate(size)), pytest.raises(Unsupported, match="another adapter"):
            step(model, ids[:, :1], cache)
        with retrofit(model, Gated(), first):
            step(model, ids[:, :1], cache)


def test_a_cache_that_went_on_without_the_variant(model):
    ids = tokens(1, 20)
    with retrofit(model, Routed()):
        _, cache = step(model, ids)
    step(model, ids[:, :3], cache)
    with retrofit(model, Routed()), pytest.raises(Unsupported, match=r"23 earlier tokens .* state for 20"):
        step(model, ids[:, :1], cache)


@pytest.mark.parametrize("variant", [Routed(), make("dense")])
def test_a_static_cache(model, variant):
    ids = tokens(1, 20)
    with retrofit(model, variant), pytest.raises(Unsupported, match="StaticLayer"):
        step(model, ids, StaticCache(model.config, max_cache_len=64))
    with retrofit(model, variant), pytest.raises(Unsupported, match="StaticLayer"):
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, cache_implementation="static")


def test_a_cache_layer_of_an_unknown_class(model, window):
    from transformers.cache_utils import DynamicLayer

    class Other(DynamicLayer):
        pass

    cache = DynamicCache(config=model.config)
    cache.layers[1] = Other()
    with retrofit(model, window), pytest.raises(Unsupported, match="Layer 1 has a cache of type Other"):
        step(model, tokens(1, 20), cache)


def test_something_that_is_no_cache(model, window):
    layer = model.model.layers[0].self_attn
    hidden, angles = torch.zeros(1, 3, model.config.hidden_size), (torch.ones(1, 3, 16), torch.zeros(1, 3, 16))
    with retrofit(model, window), pytest.raises(Unsupported, match="type tuple"):
        layer(hidden, angles, None, ())


@pytest.mark.parametrize(
    "row, match",
    [
        ([1, 1, 0, 1, 1, 1], "padding between real tokens"),
        ([0, 1, 1, 0, 0, 1], "row 1 has padding between"),
        ([0, 1, 0, 1, 0, 0], "padding between real tokens"),
    ],
)
def test_a_mask_with_holes(model, window, row, match):
    mask = torch.tensor([[1] * 6, row])
    with retrofit(model, window), pytest.raises(Unsupported, match=match):
        model(tokens(2, 6), attention_mask=mask, position_ids=positions_of(mask))


def test_generation_after_padding_on_the_right(model, window):
    mask = torch.tensor([[1] * 6, [1, 1, 1, 0, 0, 0]])
    with retrofit(model, window), pytest.raises(Unsupported, match="padding_side"):
        model.generate(tokens(2, 6), attention_mask=mask, max_new_tokens=3, do_sample=False)


def test_a_mask_of_another_length(model, window):
    ids = tokens(1, 6)
    with retrofit(model, window):
        _, cache = step(model, ids)
        with pytest.raises(Unsupported, match="1 columns for 7 tokens"):
            step(model, ids[:, :1], cache, torch.ones(1, 1))


def test_a_mask_of_four_dimensions(model, window):
    mask = torch.zeros(1, 1, 6, 6)
    with retrofit(model, window), pytest.raises(Unsupported, match=r"2D padding masks, not \(1, 1, 6, 6\)"):
        model(tokens(1, 6), attention_mask=mask)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma3"])
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("use_cache", [False, True])
def test_packed_documents(family, with_mask, use_cache):
    model = tiny_model(family)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]])
    mask = torch.ones(2, 6) if with_mask else None
    with retrofit(model, Routed()), pytest.raises(Unsupported, match="restart"):
        model(tokens(2, 6), attention_mask=mask, position_ids=positions, use_cache=use_cache)


def test_a_document_that_starts_at_a_chunk(model, window):
    ids = tokens(1, 6)
    with retrofit(model, window):
        _, cache = step(model, ids)
        with pytest.raises(Unsupported, match="restart"):
            step(model, ids, cache, positions=torch.arange(6)[None])


@pytest.mark.parametrize("pads", [1, 0, -1])
def test_positions_of_padded_tokens_are_not_looked_at(model, window, pads):
    ids, mask = tokens(2, 8), torch.ones(2, 8)
    mask[1, :3] = 0
    positions = positions_of(mask)
    with torch.no_grad(), retrofit(model, window):
        logits = model(ids, attention_mask=mask, position_ids=positions).logits
        positions[1, :3] = torch.tensor([5, 5, pads])
        again = model(ids, attention_mask=mask, position_ids=positions.clamp_min(0)).logits
    assert far(logits[1, 3:], again[1, 3:]) == 0


def test_image_blocks_and_masks_of_a_model():
    from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

    model = tiny_model("gemma3")
    embeds = torch.zeros(1, 8, 4)
    given = {"config": model.config, "inputs_embeds": embeds, "attention_mask": None}
    given[compat.cache_keyword(model)] = None
    blocks = torch.tensor([[-1, -1, 0, 0, 0, -1, -1, -1]])
    with retrofit(model, Routed()):
        assert model.config._attn_implementation == NAME
        assert create_causal_mask(**given) is None
        assert create_sliding_window_causal_mask(**given) is None
        for make_mask in (create_causal_mask, create_sliding_window_causal_mask):
            with pytest.raises(Unsupported, match="image blocks"):
                make_mask(**given, block_sequence_ids=blocks)
            with pytest.raises(Unsupported, match="image blocks"):
                make_mask(**given, and_mask_function=lambda b, h, q, k: k != 2)
            with pytest.raises(Unsupported, match="cannot be read"):
                make_mask(**given, or_mask_function=lambda b, h, q, k: bool(q == k))


def test_attention_in_both_directions(model, window):
    with retrofit(model, window):
        with pytest.raises(Unsupported, match="both directions"):
            model(tokens(1, 6), is_causal=False)
        model.model.layers[1].self_attn.is_causal = False
        with pytest.raises(Unsupported, match="both directions"):
            model(tokens(1, 6))


def test_dropout_in_training():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=32, n_layer=1, n_head=2, attn_pdrop=0.1))
    with retrofit(model, make("window")):
        model.train()
        with pytest.raises(Unsupported, match=r"dropout of 0\.1"):
            model(tokens(1, 6))
        model.eval()
        model(tokens(1, 6))


def test_attention_weights(model, window):
    ids = tokens(1, 6)
    with retrofit(model, window):
        with pytest.raises(Unsupported, match="attention weights"):
            model(ids, output_attentions=True)
        with pytest.raises(Unsupported, match="attention weights"):
            model.generate(ids, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)
    eager = tiny_model("llama", attn_implementation="eager")
    eager.config.output_attentions = True
    with pytest.raises(Unsupported, match="output_attentions"), retrofit(eager, window):
        pass
    assert eager.config._attn_implementation == "eager"


@pytest.mark.parametrize("name, match", [("s_aux", "sinks"), ("position_bias", "position bias")])
def test_what_the_kernels_do_not_have(model, window, name, match):
    with retrofit(model, window), pytest.raises(Unsupported, match=match):
        model(tokens(1, 6), **{name: torch.zeros(9)})


def test_a_model_left_on_the_name_without_a_retrofit(model, window):
    with retrofit(model, window):
        pass
    model.set_attn_implementation(NAME)
    with pytest.raises(InvalidInput, match="without a retrofit"):
        model(tokens(1, 6))


def test_an_attention_run_past_its_hooks(model, window):
    layer = model.model.layers[1].self_attn
    with retrofit(model, window):
        original = model.model.layers[1].self_attn.__class__.forward
        model.model.layers[1]._modules.pop("self_attn")
        model.model.layers[1].self_attn = lambda *args, **kwargs: original(layer, *args, **kwargs)
        with pytest.raises(Unsupported, match="Layer 1 was run past its hooks"):
            model(tokens(1, 6))


def test_a_layer_that_does_not_call_the_attention(model, window):
    layer = model.model.layers[1].self_attn
    with retrofit(model, window):
        layer.forward = lambda hidden_states, **kwargs: (hidden_states, None)
        with pytest.raises(Unsupported, match="Layers 1 of llama ran without"):
            model(tokens(1, 6))
        with pytest.raises(Unsupported, match="Layers 1 of llama ran without"):
            model.model(tokens(1, 6))
        del layer.forward
        model(tokens(1, 6))
