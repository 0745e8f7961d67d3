"""Every difference between the transformers versions this package runs on (5.17 to 5.24)."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_CACHE_NAMES = ("cache", "past_key_values")
_ATTENTION_CACHE_NAMES = (*_CACHE_NAMES, "layer_past")
"""GPT-NeoX's attention has its own name for it."""


def cache_keyword(model: nn.Module) -> str:
    """The keyword that this model's forward takes its cache by: ``cache``, or ``past_key_values`` before it."""
    names = _parameters(type(model).forward)
    return next((name for name in _CACHE_NAMES if name in names), _CACHE_NAMES[-1])


def cache_of(output: Any) -> Any:
    """The cache in a model's output; None when it kept none."""
    name = cache_name(output)
    return None if name is None else output[name]


def cache_name(output: Any) -> str | None:
    """What a model's output calls its cache; None when it kept none."""
    return next((name for name in _CACHE_NAMES if name in output), None)


def drop_last(cache: Any, tokens: int) -> None:
    """Remove the last ``tokens`` tokens from a cache."""
    if tokens:
        cache.crop(-tokens)


def attention_arguments(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """An attention module's call by name: ``hidden_states``, ``cache``, ``position_ids`` and the rest.

    Args:
        module: the attention module.
        args: its positional arguments (GPT-2 passes the hidden state so).
        kwargs: its keyword arguments.

    Returns:
        The arguments by name; the cache is always called ``cache``, and None when there is none.
    """
    given = dict(zip(_parameters(type(module).forward)[1:], args, strict=False)) | kwargs
    given["cache"] = next((given[name] for name in _ATTENTION_CACHE_NAMES if given.get(name) is not None), None)
    return given


def register(name: str, attention: Callable, mask: Callable) -> None:
    """Register an attention under one name in both interfaces; without the second, masks silently vanish."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


def implementations(model: nn.Module) -> list[tuple[Any, str | None]]:
    """Every config in the model with the attention implementation it names, to be put back by ``restore``."""
    found: dict[int, Any] = {}
    waiting = [m.config for m in model.modules() if hasattr(getattr(m, "config", None), "_attn_implementation")]
    while waiting:
        config = waiting.pop()
        if id(config) in found:
            continue
        found[id(config)] = config
        parts = (getattr(config, key, None) for key in getattr(config, "sub_configs", ()))
        waiting += [part for part in parts if part is not None]
    return [(config, config._attn_implementation_internal) for config in found.values()]


def restore(saved: list[tuple[Any, str | None]]) -> None:
    """Put back what ``implementations`` found, config by config."""
    for config, name in saved:
        # The public setter would also overwrite the sub-configs, each of which has its own entry here.
        config._attn_implementation_internal = name


@functools.cache
def _parameters(forward: Callable) -> tuple[str, ...]:
    return tuple(inspect.signature(forward).parameters)
