"""A model's size from its files, without loading it and without torch."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError
from focus_core.jobs.files import read_json, user_path
from focus_core.models.catalog import DEFAULT, SMALL, SMALL_FOLDER
from focus_core.models.headers import folder_weights, gguf_values


@dataclass(frozen=True)
class Shape:
    """What decides a run's cost."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    values: int

    @property
    def inner(self) -> int:
        """Weights that every token is multiplied with, without embedding and head."""
        return max(self.values - self.vocab * self.hidden, self.values // 4)


_DEFAULT_SHAPE = Shape(30, 576, 9, 3, 64, 49152, 8192, 134_515_008)


def shape_of(name: str) -> Shape | None:
    """The model's shape; None when its files are not here or do not say."""
    if name == DEFAULT:
        return _DEFAULT_SHAPE
    try:
        path = user_path(name)
        if path.is_file() and path.suffix == ".gguf":
            return _guess(gguf_values(path))
        folder = folder_of(name)
        return _of_folder(folder) if folder is not None else None
    except (FocusError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def folder_of(name: str) -> Path | None:
    """The folder of a model's files; None where they are not here, or are one file."""
    if name == SMALL:
        return SMALL_FOLDER
    path = user_path(name)
    return path if path.is_dir() else next(iter(_snapshots(name)), None)


def fits(base: dict[str, Any] | None, name: str) -> bool:
    """Whether an adapter whose base model is described so may belong to the model of that name.

    Whether the weights are the same is seen when the model is loaded.
    """
    if base is None:
        return True
    shape = shape_of(name)
    fields = {"layers": "layers", "hidden_size": "hidden", "heads": "heads", "kv_heads": "kv_heads", "vocab": "vocab"}
    return shape is not None and all(base.get(f) == getattr(shape, own) for f, own in fields.items())


def _snapshots(name: str) -> list[Path]:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    return sorted((hub / f"models--{name.replace('/', '--')}" / "snapshots").glob("*"), reverse=True)


def _of_folder(folder: Path) -> Shape:
    config: dict[str, Any] = read_json(folder / "config.json") or {}
    config = config.get("text_config") or config

    def field(*names: str) -> int:
        return int(next(config[n] for n in names if config.get(n) is not None))

    try:
        hidden, heads = field("hidden_size", "n_embd"), field("num_attention_heads", "n_head")
        kv_heads = int(config.get("num_key_value_heads") or heads)
        return Shape(
            layers=field("num_hidden_layers", "n_layer"),
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=int(config.get("head_dim") or hidden // heads),
            vocab=field("vocab_size"),
            context=field("max_position_embeddings", "n_positions"),
            values=folder_weights(folder).values,
        )
    except StopIteration:
        raise ValueError(json.dumps(sorted(config))) from None


def _guess(values: int) -> Shape:
    """A typical decoder of that many weights."""
    hidden = max(64, round((values / 300) ** 0.5 / 64) * 64)
    heads = hidden // 64
    return Shape(max(2, round(values / (12 * hidden**2))), hidden, heads, heads, 64, 50_000, 1 << 20, values)
