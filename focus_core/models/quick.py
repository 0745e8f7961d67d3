"""A model's facts from its config file alone, without torch: what a page can say before the model is loaded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from focus_core.jobs.files import read_json
from focus_core.models.catalog import DEFAULT
from focus_core.models.facts import Latent, ModelFacts
from focus_core.models.shapes import folder_of, shape_of

_DEFAULT_CONFIG: dict[str, Any] = {"model_type": "llama", "rope_theta": 100000.0}
"""What of the default model's config is asked here; its weights may not have been converted yet."""


def quick_facts(name: str) -> ModelFacts | None:
    """The facts of a model whose files are here; None where they are not, or do not say.

    Loading a model reads the same from its modules, and more: whether queries and keys are normalised, the scale, the
    dtype and where the weights come from stay at their usual values here.
    """
    shape, folder = shape_of(name), folder_of(name)
    config = _DEFAULT_CONFIG if name == DEFAULT else _config(folder)
    if shape is None or config is None:
        return None
    rotates = any(config.get(field) is not None for field in ("rope_theta", "rope_parameters", "rope_scaling"))
    softcap = config.get("attn_logit_softcapping")
    return ModelFacts(
        name=name,
        family=str(config.get("model_type", "")),
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        hidden_size=shape.hidden,
        context=shape.context,
        vocab=shape.vocab,
        native=_native(config, shape.layers),
        softcap=float(softcap) if softcap else None,
        qk_norm=False,
        scale=shape.head_dim**-0.5,
        dtype="float32",
        revision="",
        note="",
        rotary=shape.head_dim if rotates else 0,
        latent=_latent(config),
    )


def facts_from_values(values: dict[str, Any]) -> ModelFacts:
    """Facts that were written as plain values (``dataclasses.asdict``)."""
    known = {f.name for f in dataclasses.fields(ModelFacts)}
    kept = {name: value for name, value in values.items() if name in known}
    kept["native"] = tuple(kept["native"])
    if isinstance(kept.get("latent"), dict):
        kept["latent"] = Latent(**kept["latent"])
    return ModelFacts(**kept)


def _config(folder: Path | None) -> dict[str, Any] | None:
    found = read_json(folder / "config.json") if folder is not None else None
    if not isinstance(found, dict):
        return None
    return found.get("text_config") or found


def _native(config: dict[str, Any], layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    kinds = config.get("layer_types") or ["sliding_attention"] * layers
    return tuple(int(window) if window and kind == "sliding_attention" else None for kind in kinds)


def _latent(config: dict[str, Any]) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    fields = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    return Latent(*(int(config[field]) for field in fields))
