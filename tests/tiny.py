"""Tiny random models of real classes, and a tokenizer to go with them, for every test that needs a model.

Weights are drawn wide enough that attention is far from uniform: a wrong mask moves the logits.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3")
LATENT_FAMILIES = ("deepseek_v2", "deepseek_v3")
"""Multi-head latent attention of their own: a latent of 12, heads of 16 (4 rotated) and values of 10."""
VOCAB = 300
WINDOW = 8
"""The own sliding window of Mistral, and of the sliding layers of Gemma."""


def tiny_model(
    family: str = "llama",
    *,
    layers: int = 3,
    heads: int = 9,
    kv_heads: int = 3,
    head_dim: int = 16,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> Any:
    """A random model in eval mode without gradients.

    Args:
        family: one of ``FAMILIES`` or ``LATENT_FAMILIES``. Gemma 2 and Gemma 3 alternate sliding and full layers
            (windows of ``WINDOW``).
        layers: number of layers.
        heads: number of query heads; the hidden size is ``heads * head_dim``.
        kv_heads: number of KV heads (GPT-2 has ``heads``).
        head_dim: size of a head; 64 for the shape of SmolLM2.
        seed: seed of the weights.
        dtype: dtype of the weights.
        **overrides: any field of the family's transformers config.

    Returns:
        A transformers model with a vocabulary of ``VOCAB`` and a context of 1,024 unless overridden.
    """
    import transformers as t

    hidden = heads * head_dim
    common: dict[str, Any] = {
        "vocab_size": VOCAB,
        "initializer_range": hidden**-0.5,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    gqa = common | {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 1024,
    }
    alternating = ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)]
    gemma = {"query_pre_attn_scalar": head_dim, "sliding_window": WINDOW, "layer_types": alternating}
    if family == "gpt2":
        made = t.GPT2LMHeadModel, t.GPT2Config
        fields = common | {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 1024}
    elif family == "llama":
        made, fields = (t.LlamaForCausalLM, t.LlamaConfig), gqa
    elif family == "mistral":
        made, fields = (t.MistralForCausalLM, t.MistralConfig), gqa | {"sliding_window": WINDOW}
    elif family == "qwen2":
        made, fields = (t.Qwen2ForCausalLM, t.Qwen2Config), {k: v for k, v in gqa.items() if k != "head_dim"}
    elif family == "qwen3":
        made, fields = (t.Qwen3ForCausalLM, t.Qwen3Config), gqa
    elif family == "gemma2":
        made = t.Gemma2ForCausalLM, t.Gemma2Config
        fields = gqa | gemma | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}
    elif family == "gemma3":
        made, fields = (t.Gemma3ForCausalLM, t.Gemma3TextConfig), gqa | gemma
    elif family in LATENT_FAMILIES:
        v2 = family == "deepseek_v2"
        made = (t.DeepseekV2ForCausalLM, t.DeepseekV2Config) if v2 else (t.DeepseekV3ForCausalLM, t.DeepseekV3Config)
        fields = _latent(gqa | {"num_key_value_heads": heads}, head_dim, deepseek_v2=v2)
    else:
        raise ValueError(f"{family!r} is none of {FAMILIES + LATENT_FAMILIES}")
    cls, config = made
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = cls(config(**(fields | overrides)))
    if family in LATENT_FAMILIES:
        with torch.no_grad():
            for layer in model.model.layers:
                # What a norm precedes is drawn for as many inputs as the hidden size has.
                for name in ("q_proj", "q_b_proj", "kv_b_proj"):
                    if (made := getattr(layer.self_attn, name, None)) is not None:
                        made.weight.mul_(3.0)
    return model.to(dtype).eval().requires_grad_(False)


def _latent(common: dict[str, Any], head_dim: int, deepseek_v2: bool) -> dict[str, Any]:
    """The fields of latent attention, and a mixture of experts in all layers but the first."""
    fields = {key: value for key, value in common.items() if key != "head_dim"}
    fields |= {"kv_lora_rank": 12, "q_lora_rank": 20, "v_head_dim": 10}
    fields |= {"qk_rope_head_dim": head_dim // 4, "qk_nope_head_dim": head_dim - head_dim // 4}
    fields |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
    fields |= {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
    # YaRN raises the scale of the scores, which a fixed 1 / sqrt(d) would miss.
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
    yarn |= {"mscale": 0.7, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}
    return fields | ({"q_lora_rank": None} if deepseek_v2 else {"rope_parameters": yarn})


@functools.cache
def tiny_tokenizer() -> Any:
    """A byte-level BPE tokenizer of ``VOCAB`` tokens; id 0 is ``<|end|>``, and no BOS is added."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = "the cat and the dog sat on the mat while another one ran there and then the rain ended in the morning"
    tokenizer.train_from_iterator([text] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")


def save_tiny(folder: Any, family: str = "llama", **options: Any) -> Any:
    """Save a tiny model and the tiny tokenizer in a folder that ``load_model`` reads; returns the model."""
    model = tiny_model(family, **options)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return model
