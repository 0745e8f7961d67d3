"""Takes the language model out of a model that also reads images."""

from __future__ import annotations

from typing import Any

from focus_core.errors import Unsupported


def text_only(model: Any) -> Any:
    """A causal language model of text alone: the model itself, or the decoder and head inside its wrapper.

    The wrapper's text must be served by the plain class of its text config, with the same modules: decoder and head
    are put in that class without a copy.

    Raises:
        Unsupported: the wrapper's parts do not fit that class.
    """
    inner = model.config.get_text_config()
    if inner is model.config:
        return model
    import torch
    from transformers import AutoModelForCausalLM

    kind = type(model).__name__
    try:
        with torch.device("meta"):
            plain = AutoModelForCausalLM.from_config(inner)
    except ValueError:
        raise Unsupported(f"The text part of {kind} has no class of its own.", "Use a text-only checkpoint.") from None
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    if type(decoder) is not type(plain.get_decoder()) or head is None:
        raise Unsupported(
            f"The text part of {kind} is not the decoder of {type(plain).__name__}.", "Use a text-only checkpoint."
        )
    plain.model = decoder
    plain.lm_head = head
    plain.config = decoder.config
    plain.generation_config = model.generation_config
    if left := [name for name, p in plain.named_parameters() if p.is_meta and not _is_meta(model)]:
        raise Unsupported(f"{kind} lacks {left[0]}, which {type(plain).__name__} needs.", "Use a text-only checkpoint.")
    return plain


def _is_meta(model: Any) -> bool:
    return next(model.parameters()).is_meta
