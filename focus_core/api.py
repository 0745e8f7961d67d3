"""The few calls that a script or a notebook needs, by name; ``focus_core`` gives them out."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from focus_core.errors import InvalidInput
from focus_core.variants import make as make_variant


def load_adapter(name_or_folder: str, model: Any) -> Any:
    """A trained adapter, by the name of a shipped one or by its folder, on the model's device.

    Args:
        name_or_folder: a name of ``adapters()``, or a folder with ``focus_config.json``.
        model: what it was trained for, ``load_model(...).model``.

    Raises:
        InvalidInput: there is no adapter of that name, or it belongs to another model.
    """
    from focus_core.adapter import load_adapter as load
    from focus_core.handlers._requests import adapter_folder

    folder = adapter_folder(name_or_folder)
    if folder is None:
        raise InvalidInput("An adapter without a name was asked for.", "`adapters()` lists the names.")
    return load(folder, model)


def make(name: str, adapter: Any = None, **settings: Any) -> Any:
    """A variant by name: the settings that its adapter is served with, then yours.

    Args:
        name: one of ``VARIANTS``, such as ``"focus"``.
        adapter: what ``load_adapter`` gave; None where the variant needs none.
        **settings: fields of the variant, such as ``window=64``.

    Raises:
        InvalidInput: the variant has no such field, or a value that it cannot be.
    """
    return make_variant(name, {**(adapter.serve if adapter is not None else {}), **settings})


def retrofitted(model: Any, variant: Any, adapter: Any = None) -> AbstractContextManager[Any]:
    """A context in which the model runs with the variant; afterwards it is exactly as it was.

    Raises:
        Unsupported: the variant cannot serve this model; the reason is said.
    """
    from focus_core.retrofit import retrofit

    return retrofit(model, variant, adapter)
