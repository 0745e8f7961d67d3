"""Maps of an adapter of kind sfa, read without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import streamlit as st

from app.ui import settings
from focus_core.errors import InvalidInput

KIND = "sfa"
NONE = "none"


def names(model: str) -> list[str]:
    """Adapters whose maps fit the model's shape, shipped ones first."""
    return list(settings.adapters_for(model, KIND))


def label(model: str, name: str) -> str:
    """An adapter as people read it."""
    return "No maps: as the model is" if name == NONE else settings.adapter_label(name)


def of_head(model: str, name: str, layer: int, head: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The query and key map (D, D) of one head; None without an adapter.

    Raises:
        InvalidInput: the adapter's file does not hold them.
    """
    if name == NONE:
        return None
    folder = Path(settings.adapters_for(model, KIND)[name]["path"])
    path = folder / "focus_adapter.safetensors"
    try:
        query, key = _read(str(path), path.stat().st_mtime)
        share = query.shape[1] // key.shape[1]
        return query[layer, head], key[layer, head // share]
    except (OSError, KeyError, IndexError, ValueError) as error:
        raise InvalidInput(f"The adapter {name} holds no maps for layer {layer} ({error}).", "Choose none.") from None


@st.cache_resource(max_entries=2, show_spinner=False)
def _read(path: str, modified: float) -> tuple[np.ndarray, np.ndarray]:
    from safetensors.numpy import load_file

    found = load_file(path)
    return found["query_map"].astype(np.float32), found["key_map"].astype(np.float32)
