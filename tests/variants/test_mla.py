"""MLA in a model: the model's own latent attention in both forms, and one that factors make (note M1 to M3)."""

import pytest
import torch
import transformers as t

from focus_core import compat
from focus_core.errors import InvalidInput, Unsupported
from focus_core.evaluation.recorders import PairCounter
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.sizes import mla_flops
from focus_core.models.facts import Latent, attention_modules, facts_of
from focus_core.retrofit import retrofit
from focus_core.routing.factorise import factorise
from focus_core.variants import Shape, make
from tests.retrofit.helpers import Watcher, far, in_chunks, positions_of, step, tokens
from tests.tiny import LATENT_FAMILIES, tiny_model

FORMS = ("auto", "naive", "absorbed")
SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 300,
}
OTHERS = {
    "youtu": lambda fields: t.YoutuForCausalLM(t.YoutuConfig(**fields)),
    "minicpm3": lambda fields: t.MiniCPM3ForCausalLM(t.MiniCPM3Config(**fields)),
    "glm4_moe_lite": lambda fields: t.Glm4MoeLiteForCausalLM(
        t.Glm4MoeLiteConfig(**fields, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    ),
}
"""Other classes with latent attention, of the same parts."""


@pytest.fixture(scope="module", params=LATENT_FAMILIES)
def model(request):
    return tiny_model(request.param)


@pytest.mark.parametrize("form", FORMS)
def test_a_models_own_latent_attention_is_what_it_was(form, model):
    """Both forms, in one forward, cut into chunks, decoded, and padded on the left; then the model is untouched."""
    ids, variant, pads = tokens(3, 40), make("mla", {"form": form}), (0, 7, 23)
    wanted, mask = model(ids, use_cache=False).logits, torch.ones(3, 40, dtype=torch.long)
    for row, pad in enumerate(pads):
        mask[row, :pad] = 0
    with torch.no_grad(), retrofit(model, variant):
        assert far(model(ids, use_cache=False).logits, wanted) < 2e-5
        for sizes in ((13, 1, 17, 9), (25,) + (1,) * 15):
            assert far(in_chunks(model, ids, sizes), wanted) < 2e-5
        padded = in_chunks(model, ids, (30,) + (1,) * 10, mask, positions_of(mask))
    for row, pad in enumerate(pads):
        assert far(padded[row : row + 1, pad:], model(ids[row : row + 1, pad:]).logits) < 2e-5
    assert not any("expand_kv" in module.__dict__ for module in attention_modules(model))
    assert torch.equal(model(ids, use_cache=False).logits, wanted)


@pytest.mark.parametrize("form", FORMS)
def test_greedy_generation_is_the_untouched_models(form, model):
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    ids, mask = tokens(2, 12), torch.ones(2, 12, dtype=torch.long)
    mask[1, :5] = 0
    wanted = model.generate(ids, attention_mask=mask, **options)
    with torch.no_grad(), retrofit(model, make("mla", {"form": form})):
        assert torch.equal(model.generate(ids, attention_mask=mask, **options), wanted)


@pytest.mark.parametrize("family", OTHERS)
def test_other_classes_with_latent_attention_are_served_too(family):
    sizes = {"kv_lora_rank": 12, "q_lora_rank": 20, "v_head_dim": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 12}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = (
            OTHERS[family](SMALL | sizes | {"initializer_range": 0.2, "vocab_size": 300}).eval().requires_grad_(False)
        )
    assert facts_of(made).latent == Latent(12, 4, 12, 10)
    ids = tokens(2, 30)
    wanted = made(ids, use_cache=False).logits
    for variant in (make("dense"), make("mla", {"form": "absorbed"})):
        with torch.no_grad(), retrofit(made, variant):
            assert far(in_chunks(made, ids, (17, 1, 1, 11)), wanted) < 2e-4 * wanted.abs().max()


def test_the_live_cache_has_the_published_width():
    """512 numbers of the latent and 64 of the rotated key that 128 heads share: 576 a token and layer."""
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    tiny = tiny_model("deepseek_v3", layers=1, heads=16, head_dim=4, **sizes)
    with torch.no_grad(), retrofit(tiny, make("mla", {"form": "absorbed"})):
        _, cache = step(tiny, tokens(2, 9))
        _, cache = step(tiny, tokens(2, 1), cache)
    (layer,) = cache.layers
    held = layer.keys.nbytes + layer.values.nbytes
    assert held == 2 * 10 * 576 * 4
    facts = facts_of(tiny)
    shape = Shape(2, 16, 16, facts.head_dim, 10, 1, latent=facts.latent)
    assert facts.head_dim == 192
    for variant in (make("mla"), make("dense")):
        assert variant.cost(shape).kv_bytes_per_token == 576 * 4


def test_an_absorbed_token_makes_no_keys_of_the_cached_ones(model, monkeypatch):
    """The model's up-projection is not even called: its weights are folded into the query and the output."""
    made = []
    for module in attention_modules(model):
        monkeypatch.setattr(module.kv_b_proj, "forward", lambda x: made.append(x))
    with torch.no_grad(), retrofit(model, make("mla", {"form": "absorbed"})):
        _, cache = step(model, tokens(1, 20))
        step(model, tokens(1, 1), cache)
    assert not made


def test_a_cache_begun_by_the_model_itself_goes_on_in_either_form(model):
    """It holds the same latents, so nothing has to be refused."""
    ids = tokens(2, 30)
    whole = model(ids, use_cache=False).logits
    for form in FORMS:
        _, cache = step(model, ids[:, :20])
        with torch.no_grad(), retrofit(model, make("mla", {"form": form})):
            logits, cache = step(model, ids[:, 20:25], cache)
        assert far(logits, whole[:, 20:25]) < 2e-5
        assert far(step(model, ids[:, 25:], cache)[0], whole[:, 25:]) < 2e-5


CONVERTED = {
    "gpt2": ("gpt2", {}, 144, 0),
    "llama mha": ("llama", {"kv_heads": 9}, 144, 16),
    "llama gqa": ("llama", {}, 48, 16),
    "qwen2 gqa with biases": ("qwen2", {}, 48, 16),
    "gemma2 with a soft cap and windows": ("gemma2", {}, 48, 16),
}
"""Family, sizes, and a rank and rotary part that lose nothing."""


@pytest.mark.parametrize("kind", CONVERTED)
@pytest.mark.parametrize("weighting", ["activations", "weights"])
def test_full_rank_is_the_dense_model_and_less_is_not(kind, weighting):
    family, shape, rank, rotary = CONVERTED[kind]
    tiny, ids, fitted = tiny_model(family, **shape), tokens(2, 40), tokens(2, 64, seed=5)
    if family in ("gpt2", "qwen2"):
        for name, parameter in tiny.named_parameters():
            if name.endswith(("c_attn.bias", "k_proj.bias", "v_proj.bias", "q_proj.bias")):
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    wanted = tiny(ids, use_cache=False).logits
    for part, exact in ((rank, True), (rank // 2, False)):
        factors = factorise(tiny, fitted, part, rotary=rotary, weighting=weighting)
        for form in ("naive", "absorbed"):
            with torch.no_grad(), retrofit(tiny, make("mla", factors.serve | {"form": form}), factors):
                whole = tiny(ids, use_cache=False).logits
                assert (far(whole, wanted) < 5e-5) == exact
                assert far(in_chunks(tiny, ids, (13, 1, 17, 9)), whole) < 2e-5


def test_the_cache_holds_the_latent_and_what_stays_rotated():
    tiny = tiny_model()
    factors = factorise(tiny, tokens(2, 64, seed=5), 30, rotary=8)
    variant = make("mla", factors.serve)
    with torch.no_grad(), retrofit(tiny, variant, factors):
        _, cache = step(tiny, tokens(2, 20))
        _, cache = step(tiny, tokens(2, 1), cache)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) / (3 * 2 * 21)
    assert held == (30 + 3 * 8) * 4 == variant.cost(Shape(2, 9, 3, 16, 21, 1)).kv_bytes_per_token
    assert {layer.keys.shape for layer in cache.layers} == {(2, 3, 21, 8)}
    assert {layer.values.shape for layer in cache.layers} == {(2, 1, 21, 30)}
    with torch.no_grad(), pytest.raises(Unsupported, match="packed keys"):
        step(tiny, tokens(2, 1), cache)


def test_a_cache_of_latents_is_cropped_reordered_and_reset_as_any():
    tiny, ids = tiny_model(), tokens(3, 24)
    factors = factorise(tiny, tokens(2, 64, seed=5), 30, rotary=8)
    with torch.no_grad(), retrofit(tiny, make("mla", factors.serve), factors):
        whole = in_chunks(tiny, ids, (24,))
        _, cache = step(tiny, ids[:, :20])
        compat.drop_last(cache, 5)
        cache.reorder_cache(torch.tensor([2, 0, 1]))
        assert far(step(tiny, ids[[2, 0, 1], 15:], cache)[0], whole[[2, 0, 1], 15:]) < 2e-5
        cache.reset()
        assert far(step(tiny, ids, cache)[0], whole) < 2e-5


@pytest.mark.parametrize("rotary", [0, 8, 16])
def test_attention_is_dense_over_the_keys_and_values_it_stands_for(rotary):
    """From a cache: what bench judges a result by, and every pair counted."""
    tiny, watcher, counter = tiny_model(), Watcher(), PairCounter()
    factors = factorise(tiny, tokens(2, 64, seed=5), 40, rotary=rotary)
    variant = make("mla", factors.serve)
    with torch.no_grad(), retrofit(tiny, variant, factors, recorder=watcher):
        _, cache = step(tiny, tokens(2, 20))
        step(tiny, tokens(2, 3), cache)
    for call in watcher.calls:
        plain = variant.plain_call(call)
        assert plain.key.shape[:2] == (2, 3)
        assert far(variant.attend(call), dense_attention(plain.query, plain.key, plain.value, scale=call.scale)) < 1e-5
        counter.record(call, variant)
    assert counter.kept(0) == [1.0] * 3


def test_what_it_cannot_serve_is_refused_with_the_reason(model):
    tiny, ids = tiny_model(), tokens(1, 8)
    factors = factorise(tiny, tokens(2, 64, seed=5), 30, rotary=8)
    for variant, on, words in (
        (make("mla"), tiny, "no latent attention of its own"),
        (make("mla", {"rank": 8}), model, "a latent of 12 of its own"),
        (make("mla", {"rank": 8}), tiny_model("qwen3"), "normalises its keys"),
        (make("mla", {"rank": 8, "rotary": 2}), tiny_model("gpt2"), "0 dimensions of its heads rotate"),
    ):
        with pytest.raises(Unsupported, match=words), retrofit(on, variant):
            pass
    for settings, adapter, words in (
        ({"rank": 30, "rotary": 8}, None, "needs an adapter's factors"),
        ({"rank": 20, "rotary": 8}, factors, "rank is 30 and the setting is 20"),
        ({"rank": 30}, factors, "rotary is 8 and the setting is 0"),
    ):
        with torch.no_grad(), retrofit(tiny, make("mla", settings), adapter), pytest.raises(InvalidInput, match=words):
            tiny(ids)
    with pytest.raises(InvalidInput, match="no latent whose cost"):
        make("mla").cost(Shape(1, 4, 4, 16, 8))


@pytest.mark.parametrize("form", ["naive", "absorbed", "auto"])
@pytest.mark.parametrize("queries", [None, 1])
def test_the_cost_is_that_of_the_form(form, queries):
    variant, n = make("mla", {"rank": 20, "rotary": 8, "form": form}), 700 if queries is None else queries
    cost, pairs = variant.cost(Shape(2, 9, 3, 64, 700, queries)), 700 if queries else 700 * 701 // 2
    sizes = {"queries": n, "keys": 700, "pairs": pairs, "heads": 9, "up_heads": 3}
    sizes |= {"nope": 56, "rope": 8, "value": 64, "rank": 20}
    counted = {name: 2 * mla_flops(name, **sizes) for name in ("naive", "absorbed")}
    assert cost.flops == (min(counted.values()) if form == "auto" else counted[form])
    assert cost.bytes == 2 * 4 * (n * 9 * 128 + 700 * (20 + 3 * 8))
