"""The engine of Focus Lab: attention variants on pretrained language models.

Importing this package imports no torch; names are looked up on first use::

    from focus_core import capture_trace, load_adapter, load_model, load_text, make

    loaded = load_model("smollm2")
    adapter = load_adapter("smollm2-directed-k16", loaded.model)
    variant = make("focus", adapter)
    trace = capture_trace(loaded, variant, adapter, load_text("persuasion opening").text)
    trace.save("run.npz")  # opens in the app, and by Trace.load, without a model

=================  ====================================================================================
``load_model``     a model, its tokenizer and its facts, by name, Hugging Face id or folder
``load_adapter``   a trained adapter, by the name of a shipped one or by its folder
``make``           a variant with its settings
``retrofitted``    a context in which the model runs with the variant
``capture_trace``  one text through the model, dense and with the variant: a ``Trace``
``Trace``          what a run recorded; ``save`` and ``load`` need no model
``evaluate``       perplexity against dense, kept pairs, leak and parity
``compare``        variants side by side: quality, time and memory
``load_text``      a shipped text or a file; ``text_names`` lists the shipped ones
``adapters``       shipped and own adapters; ``VARIANTS`` the variants; ``list_models`` the models
=================  ====================================================================================
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Trace": "trace",
    "VARIANTS": "variants",
    "adapters": "assets",
    "capture_trace": "capture",
    "compare": "benchmark.comparison",
    "evaluate": "evaluation.perplexity",
    "list_models": "models.catalog",
    "load_adapter": "api",
    "load_model": "models.loading",
    "load_text": "assets",
    "make": "api",
    "retrofitted": "api",
    "text_names": "assets",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
