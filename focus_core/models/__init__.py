"""A pretrained model, the facts about it, and its byte-true tokens.

Importing this package imports no torch: names are looked up in their modules on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "DEFAULT": "catalog",
    "Loaded": "loading",
    "ModelEntry": "catalog",
    "ModelFacts": "facts",
    "Tokens": "tokens",
    "attention_modules": "facts",
    "facts_of": "facts",
    "fetch_default": "fetch",
    "list_models": "catalog",
    "load_model": "loading",
    "partial_share": "tokens",
    "tokenize": "tokens",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
