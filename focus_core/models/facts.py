"""What a model is, read from its config and its modules and never from its name."""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from focus_core.errors import Unsupported

if TYPE_CHECKING:
    from torch import nn

CALL = "ALL_ATTENTION_FUNCTIONS.get_interface("
"""How every attention of transformers that can be replaced finds its function."""

OTHER_MODEL = "Use a decoder of the GPT-2, LLaMA, Mistral, Qwen or Gemma families."


@dataclass(frozen=True)
class Latent:
    """Sizes of multi-head latent attention, whose cache holds a latent and a rotated key that all heads share.

    Attributes:
        rank: numbers of the latent (``kv_lora_rank``).
        rope: numbers of the shared rotated key (``qk_rope_head_dim``).
        nope: numbers of a head's key that come from the latent (``qk_nope_head_dim``).
        value: numbers of a head's value (``v_head_dim``).
    """

    rank: int
    rope: int
    nope: int
    value: int


@dataclass(frozen=True)
class ModelFacts:
    """The shape of a decoder's attention, and where its weights come from.

    Attributes:
        name: the name the model was asked for by.
        family: the config's model type, for example ``llama``.
        layers: number of layers, each with one causal self-attention.
        heads: query heads a layer.
        kv_heads: key and value heads a layer; ``heads`` when every query head has its own.
        head_dim: size of a head.
        hidden_size: size of the hidden state that feeds the q, k and v projections.
        context: longest sequence, in tokens, that the model was made for.
        vocab: rows of the embedding.
        native: each layer's own sliding window (the token itself included), None for a full layer.
        softcap: soft cap of the attention scores; None when there is none.
        qk_norm: whether queries and keys are normalised.
        scale: factor of the scores before softmax, of the first layer.
        dtype: dtype of the weights, for example ``float32``.
        revision: commit, file hash or ``local``; empty for a model that was never saved.
        note: what a reader must know beside the model's figures; may be empty.
        rotary: how many of a head's first dimensions are rotated by position in pairs (u, u + rotary/2); 0 where none
            are, or others are paired.
        latent: sizes of the model's own multi-head latent attention, whose ``head_dim`` is that of queries and keys;
            None where keys and values are cached as they are.
    """

    name: str
    family: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    context: int
    vocab: int
    native: tuple[int | None, ...]
    softcap: float | None
    qk_norm: bool
    scale: float
    dtype: str
    revision: str
    note: str
    rotary: int = 0
    latent: Latent | None = None


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The causal self-attentions of a decoder, in layer order.

    Args:
        model: a transformers causal language model.

    Returns:
        One module a layer, with ``layer_idx`` 0, 1, ..., each of which calls transformers' attention interface.

    Raises:
        Unsupported: an encoder or encoder-decoder, an attention outside the interface, a layer without attention,
            or an attention that reads more than a causal softmax over its keys.
    """
    config = model.config
    kind = f"{type(model).__name__} (model type {config.model_type!r})"
    if getattr(config, "is_encoder_decoder", False):
        raise Unsupported(f"{kind} is an encoder-decoder; only decoders can be retrofitted.", OTHER_MODEL)
    found = [m for m in model.modules() if _is_attention(m)]
    if not found:
        raise Unsupported(
            f"{kind} has no attention layer that goes through transformers' attention interface.", OTHER_MODEL
        )
    layers = int(config.get_text_config().num_hidden_layers)
    indices = sorted(m.layer_idx for m in found)
    if indices != list(range(layers)):
        raise Unsupported(
            f"{kind} has {layers} layers and {len(found)} attention modules on transformers' attention interface, "
            f"where one a layer is needed.",
            OTHER_MODEL,
        )
    found.sort(key=lambda m: m.layer_idx)
    for module in found:
        if reason := _obstacle(module):
            raise Unsupported(f"{kind} {reason}.", OTHER_MODEL)
    return found


def facts_of(model: nn.Module, name: str = "", *, revision: str | None = None, note: str = "") -> ModelFacts:
    """Read a model's facts from its config and its modules.

    Args:
        model: a transformers causal language model.
        name: the name to show; the config's own name or path by default.
        revision: where the weights come from; the config's commit by default.
        note: what a reader must know beside the model's figures.

    Returns:
        The facts.

    Raises:
        Unsupported: the model cannot be retrofitted (see ``attention_modules``), or its layers differ in shape.
    """
    modules = attention_modules(model)
    config = model.config.get_text_config()
    if not model.can_generate():
        raise Unsupported(
            f"{type(model).__name__} has no language-model head.", "Load it with AutoModelForCausalLM, or load_model."
        )
    shapes = {_shape(m, config) for m in modules}
    if len(shapes) > 1:
        listed = "; ".join(f"{h} heads, {kv} KV heads x {d}" for h, kv, d in sorted(shapes))
        raise Unsupported(f"The layers of {type(model).__name__} differ in shape ({listed}).", OTHER_MODEL)
    heads, kv_heads, head_dim = shapes.pop()
    parameter, latent = next(modules[0].parameters()), latent_sizes(modules[0])
    softcap = getattr(modules[0], "attn_logit_softcapping", None) or getattr(config, "attn_logit_softcapping", None)
    return ModelFacts(
        name=name or str(getattr(model.config, "_name_or_path", "") or config.model_type),
        family=config.model_type,
        layers=len(modules),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_size=int(config.hidden_size),
        context=int(config.max_position_embeddings),
        vocab=int(model.get_input_embeddings().weight.shape[0]),
        native=tuple(_own_window(m, config) for m in modules),
        softcap=float(softcap) if softcap else None,
        qk_norm=latent is None and any(_normalises(child) for child, _ in modules[0].named_children()),
        scale=_scale(modules[0], head_dim),
        dtype=str(parameter.dtype).removeprefix("torch."),
        revision=revision if revision is not None else str(getattr(model.config, "_commit_hash", None) or ""),
        note=note,
        rotary=0 if latent else _rotary(model, modules[0]),
        latent=latent,
    )


def _is_attention(module: Any) -> bool:
    return isinstance(getattr(module, "layer_idx", None), int) and CALL in _source(module.__class__)


@functools.cache
def _source(kind: Any) -> str:
    """Source text of a module class's forward; empty when there is none to read."""
    try:
        return inspect.getsource(inspect.unwrap(kind.forward))
    except (OSError, TypeError):
        return ""


def _obstacle(module: Any) -> str:
    """Why this attention cannot be replaced by a causal one over its keys; empty when it can."""
    config = module.config
    if not getattr(module, "is_causal", True):
        return "reads the text in both directions (an encoder); only causal decoders can be retrofitted"
    if getattr(module, "is_cross_attention", False):
        return "attends to another sequence"
    if getattr(module, "indexer", None) is not None:
        return "chooses its keys by an index of its own, beside a causal softmax"
    if getattr(module, "kv_lora_rank", None) and not hasattr(module, "expand_kv"):
        return "has multi-head latent attention, and this version of transformers caches its keys and values in full"
    if any("sink" in name for name, _ in module.named_parameters(recurse=False)):
        return "has learned attention sinks, which change the softmax"
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds or getattr(config, "attention_chunk_size", None):
        return f"has layers of another kind than full or sliding attention ({', '.join(sorted(kinds)) or 'chunked'})"
    if "position_bias" in _source(module.__class__):
        return "adds a learned position bias to the attention scores"
    return ""


def latent_sizes(module: Any) -> Latent | None:
    """Sizes of an attention module's multi-head latent attention; None when it has none."""
    if not getattr(module, "kv_lora_rank", None):
        return None
    return Latent(
        int(module.kv_lora_rank), int(module.qk_rope_head_dim), int(module.qk_nope_head_dim), int(module.v_head_dim)
    )


def _shape(module: nn.Module, config: Any) -> tuple[int, int, int]:
    heads = int(config.num_attention_heads)
    if latent := latent_sizes(module):
        return heads, heads, latent.nope + latent.rope
    head_dim = int(getattr(module, "head_dim", None) or config.hidden_size // heads)
    projection = getattr(module, "k_proj", None)
    if projection is not None and hasattr(projection, "out_features"):
        kv_heads = projection.out_features // head_dim
    else:
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    return heads, kv_heads, head_dim


def _own_window(module: nn.Module, config: Any) -> int | None:
    kinds = getattr(config, "layer_types", None)
    if hasattr(module, "sliding_window"):
        window = module.sliding_window
    elif kinds is not None:
        window = config.sliding_window if kinds[module.layer_idx] == "sliding_attention" else None
    else:
        window = getattr(config, "sliding_window", None)
    return int(window) if window else None


def _scale(module: nn.Module, head_dim: int) -> float:
    for name in ("scaling", "scale"):
        if isinstance(value := getattr(module, name, None), (int, float)):
            return float(value)
    return head_dim**-0.5


def _rotary(model: nn.Module, module: nn.Module) -> int:
    """Rotated dimensions a head, where the halves of a head are each other's partners."""
    sizes = {2 * buffer.numel() for name, buffer in model.named_buffers() if name.endswith("inv_freq")}
    turn = getattr(sys.modules.get(type(module).__module__), "rotate_half", None)
    # The other convention pairs neighbours, and takes every second number.
    halves = turn is not None and "::2" not in inspect.getsource(turn)
    return sizes.pop() if halves and len(sizes) == 1 else 0


def _normalises(child: str) -> bool:
    """Whether a child module's name says that it normalises queries or keys."""
    return "norm" in child and child.startswith(("q_", "k_", "qk_", "query_", "key_"))
