"""Facts come from the config and the modules; what cannot be retrofitted is refused with the reason."""

from __future__ import annotations

import math

import pytest
import torch
import transformers as t

from focus_core.errors import Unsupported
from focus_core.models.facts import Latent, attention_modules, facts_of
from focus_core.models.text_only import text_only
from tests.tiny import FAMILIES, LATENT_FAMILIES, WINDOW, tiny_model

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 60}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

REFUSED = {
    "reads the text in both directions": lambda: t.BertForMaskedLM(t.BertConfig(**SMALL)),
    "is an encoder-decoder": lambda: t.T5ForConditionalGeneration(
        t.T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, vocab_size=60)
    ),
    "BloomForCausalLM .* has no attention layer that goes through": lambda: t.BloomForCausalLM(
        t.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=60)
    ),
    "FalconForCausalLM .* has no attention layer that goes through": lambda: t.FalconForCausalLM(
        t.FalconConfig(**SMALL)
    ),
    "GPTNeoForCausalLM .* has no attention layer that goes through": lambda: t.GPTNeoForCausalLM(
        t.GPTNeoConfig(
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            vocab_size=60,
            attention_types=[[["global", "local"], 1]],
            **IDS,
        )
    ),
    "MambaForCausalLM .* has no attention layer that goes through": lambda: t.MambaForCausalLM(
        t.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=60)
    ),
    "2 layers and 1 attention modules": lambda: t.JambaForCausalLM(
        t.JambaConfig(**SMALL, num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=2)
    ),
    "learned attention sinks": lambda: t.GptOssForCausalLM(
        t.GptOssConfig(**SMALL, num_key_value_heads=2, head_dim=8, num_local_experts=2, **IDS)
    ),
    "chooses its keys by an index of its own": lambda: t.DeepseekV32ForCausalLM(
        t.DeepseekV32Config(**SMALL, **LATENT, index_topk=4, index_head_dim=8, index_n_heads=2, **IDS)
    ),
    "chunked": lambda: t.Llama4ForCausalLM(
        t.Llama4TextConfig(
            **SMALL, num_local_experts=2, head_dim=8, num_key_value_heads=2, intermediate_size_mlp=64, **IDS
        )
    ),
    "has no language-model head": lambda: t.LlamaModel(t.LlamaConfig(**SMALL)),
}

NATIVE = {
    "mistral": (WINDOW, WINDOW, WINDOW),
    "gemma2": (WINDOW, None, WINDOW),
    "gemma3": (WINDOW, None, WINDOW),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_facts_of_every_family(family):
    facts = facts_of(tiny_model(family), "given name")
    assert facts.name == "given name"
    assert facts.family == {"gemma3": "gemma3_text"}.get(family, family)
    assert (facts.layers, facts.heads, facts.kv_heads) == (3, 9, 9 if family == "gpt2" else 3)
    assert (facts.head_dim, facts.hidden_size, facts.context, facts.vocab) == (16, 144, 1024, 300)
    assert facts.native == NATIVE.get(family, (None, None, None))
    assert facts.softcap == (5.0 if family == "gemma2" else None)
    assert facts.qk_norm == (family in ("qwen3", "gemma3"))
    assert facts.scale == pytest.approx(0.25)
    assert facts.dtype == "float32"


@pytest.mark.parametrize("family", LATENT_FAMILIES)
def test_latent_sizes_are_the_models_and_its_norms_are_not_of_queries(family):
    model = tiny_model(family)
    facts = facts_of(model)
    assert facts.latent == Latent(rank=12, rope=4, nope=12, value=10)
    assert (facts.heads, facts.kv_heads, facts.head_dim, facts.rotary, facts.qk_norm) == (9, 9, 16, 0, False)
    # YaRN's factor of 4 multiplies the scale of DeepSeek-V3's scores by (0.1 ln 4 + 1)^2.
    assert facts.scale == pytest.approx(0.25 if family == "deepseek_v2" else 0.25 * (0.1 * math.log(4) + 1) ** 2)
    assert facts_of(tiny_model("llama")).latent is None


def test_a_version_that_caches_whole_keys_of_a_latent_attention_is_refused(monkeypatch):
    model = tiny_model("deepseek_v3")
    monkeypatch.delattr(type(attention_modules(model)[0]), "expand_kv")
    with pytest.raises(Unsupported, match="caches its keys and values in full"):
        facts_of(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_native_windows_are_what_the_model_computes(family):
    """A token that lies outside every stated window, and only it, leaves the last logits alone."""
    model = tiny_model(family, layers=1)
    (window,) = facts_of(model).native
    ids = torch.arange(2 * WINDOW)[None]
    changed = ids.clone()
    changed[0, WINDOW - 1] = 200  # exactly WINDOW tokens before the last one
    moved = (model(ids).logits[0, -1] - model(changed).logits[0, -1]).abs().max().item()
    assert (moved > 1e-3) == (window is None)
    changed = ids.clone()
    changed[0, WINDOW] = 200
    assert (model(ids).logits[0, -1] - model(changed).logits[0, -1]).abs().max().item() > 1e-3


def test_facts_follow_the_config_and_not_the_name():
    model = tiny_model("llama", heads=8, kv_heads=2, head_dim=8, layers=2, dtype=torch.bfloat16)
    model.config._name_or_path = "gpt2"
    facts = facts_of(model, revision="abc", note="a note")
    assert (facts.family, facts.layers, facts.heads, facts.kv_heads, facts.head_dim) == ("llama", 2, 8, 2, 8)
    assert (facts.dtype, facts.revision, facts.note, facts.name) == ("bfloat16", "abc", "a note", "gpt2")


def test_scale_of_gemma_is_its_own():
    assert facts_of(tiny_model("gemma2", query_pre_attn_scalar=64)).scale == pytest.approx(0.125)


def test_attention_modules_are_in_layer_order():
    modules = attention_modules(tiny_model("gemma3"))
    assert [m.layer_idx for m in modules] == [0, 1, 2]
    assert {type(m).__name__ for m in modules} == {"Gemma3Attention"}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused_with_the_reason(reason):
    with pytest.raises(Unsupported, match=reason) as caught:
        facts_of(REFUSED[reason]())
    assert caught.value.hint


def test_layers_of_different_shape_are_refused():
    model = tiny_model("llama")
    attention = attention_modules(model)[1]
    attention.k_proj = torch.nn.Linear(144, 9 * 16)
    with pytest.raises(Unsupported, match="differ in shape"):
        facts_of(model)


def test_text_part_of_an_image_model_computes_the_same():
    text = {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
        "initializer_range": 0.1,
    }
    vision = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = t.Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=299,
        boi_token_index=298,
        eoi_token_index=297,
    )
    both = t.Gemma3ForConditionalGeneration(config).eval()
    model = text_only(both)
    facts = facts_of(model)
    assert type(model) is t.Gemma3ForCausalLM
    assert (facts.family, facts.native, facts.kv_heads) == ("gemma3_text", (WINDOW, None), 2)
    ids = torch.arange(20)[None]
    assert torch.equal(both(ids).logits, model(ids).logits)
    assert model.generate(ids, max_new_tokens=2, do_sample=False).shape == (1, 22)


def test_a_text_model_is_left_as_it_is():
    model = tiny_model("llama")
    assert text_only(model) is model
