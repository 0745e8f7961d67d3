"""Writes a tiny LLaMA with its tokenizer as a GGUF file, in llama.cpp's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.tiny import tiny_model, tiny_tokenizer


def write_gguf(path: Path, **options: Any) -> Any:
    """Write the file; returns the model whose weights it holds in fp32."""
    import gguf

    model = tiny_model("llama", **{"layers": 2, "tie_word_embeddings": True} | options)
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    document = json.loads(tiny_tokenizer().backend_tokenizer.to_str())["model"]
    tokens = sorted(document["vocab"], key=document["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t == "<|end|>" else 1 for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in document["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for name, tensor in model.model.state_dict().items():
        values = tensor.numpy()
        if name == "embed_tokens.weight":
            target = "token_embd.weight"
        elif name == "norm.weight":
            target = "output_norm.weight"
        else:
            _, layer, rest = name.split(".", 2)
            target = f"blk.{layer}.{names[rest.removesuffix('.weight')]}.weight"
            for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
                if part in rest:  # llama.cpp interleaves the two halves that rotate together
                    halves = values.reshape(heads, 2, -1, values.shape[1])
                    values = halves.swapaxes(1, 2).reshape(values.shape).copy()
        writer.add_tensor(target, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
