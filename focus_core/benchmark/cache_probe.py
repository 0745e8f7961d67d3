"""What a cache really holds, and what decoding from it computes, layer by layer on the same inputs as dense."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from focus_core.variants.base import Variant

DTYPES = ("float32", "bfloat16", "float16")


def storage_by_layer(cache: Any) -> list[int]:
    """Bytes of memory behind every tensor that each layer of a cache holds; what layers share counts once."""
    seen: set[int] = set()
    return [sum(_storage(layer, seen)) for layer in cache.layers]


def _storage(value: Any, seen: set[int]) -> Iterator[int]:
    import torch

    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield storage.nbytes()
        return
    if isinstance(value, torch.nn.Module) or id(value) in seen:
        return
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, (list, tuple, set)):
        parts = list(value)
    elif hasattr(value, "__dict__") and not callable(value) and not isinstance(value, type):
        parts = list(vars(value).values())
    else:
        return
    seen.add(id(value))
    for part in parts:
        yield from _storage(part, seen)


class Replay:
    """Every layer's attention run again by itself, on the inputs that it had in a dense run of the same text.

    Errors of one layer cannot reach the next: each has dense's input, in every dtype.

    Args:
        model: a transformers causal language model.
        ids: (1, N) tokens.
        steps: how many of the last tokens are decoded one by one; the rest is one prefill.
    """

    def __init__(self, model: Any, ids: torch.Tensor, steps: int) -> None:
        from focus_core.models.facts import attention_modules
        from focus_core.retrofit import retrofit
        from focus_core.variants import make

        self.model, self.modules = model, attention_modules(model)
        self.calls: list[list[tuple[tuple, dict[str, Any]]]] = [[] for _ in self.modules]
        self.dense = make("dense")
        with retrofit(model, self.dense):
            hooks = [m.register_forward_pre_hook(self._keep, with_kwargs=True) for m in self.modules]
            try:
                decode(model, ids, steps)
            finally:
                for hook in hooks:
                    hook.remove()
        self.goals = [self._layer(n, self.dense, None)[0] for n in range(len(self.modules))]
        """What dense decoding gives in the model's own dtype: (tokens, d) a layer."""

    def _keep(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        self.calls[self.modules.index(module)].append((args, dict(kwargs)))

    def errors(
        self, variant: Variant, adapter: Any, dtype: str, step: Callable[[int], None] = lambda layer: None
    ) -> tuple[list[float | None], list[float]]:
        """How far a variant's decoding is from dense's, by layer, with the attention's weights and inputs in a dtype.

        Args:
            variant: what decodes.
            adapter: its trained module, or None.
            dtype: of ``DTYPES``.
            step: called with each layer before it runs.

        Returns:
            For every layer the largest error of a decoded token's attention output, as a share of the length of dense's
            in the model's own dtype (None where it is not finite); and the layer's cache in bytes a token, at the end.
        """
        import torch

        kind = getattr(torch, dtype)
        worst: list[float | None] = []
        sizes: list[float] = []
        for n in range(len(self.modules)):
            step(n)
            with cast(self.modules[n], kind):
                out, size = self._layer(n, variant, adapter, kind)
            error = ((out - self.goals[n]).norm(dim=-1) / self.goals[n].norm(dim=-1).clamp_min(1e-30)).max()
            worst.append(float(error) if bool(torch.isfinite(error)) else None)
            sizes.append(size)
        return worst, sizes

    def _layer(self, n: int, variant: Variant, adapter: Any, dtype: Any = None) -> tuple[torch.Tensor, float]:
        import torch
        from transformers import DynamicCache
        from transformers.cache_utils import Cache

        from focus_core.retrofit import retrofit

        cache, outputs, tokens = DynamicCache(), [], 0

        def fit(value: Any) -> Any:
            if isinstance(value, Cache):
                return cache
            if isinstance(value, tuple):
                return tuple(map(fit, value))
            return value.to(dtype) if dtype and isinstance(value, torch.Tensor) and value.is_floating_point() else value

        with torch.no_grad(), retrofit(self.model, variant, adapter=adapter):
            for turn, (args, kwargs) in enumerate(self.calls[n]):
                given = {name: fit(value) for name, value in kwargs.items()}
                out = self.modules[n](*map(fit, args), **given)
                out = out[0] if isinstance(out, tuple) else out
                tokens += out.shape[1]
                if turn:
                    outputs.append(out[0].double())
        return torch.cat(outputs), sum(storage_by_layer(cache)) / tokens


def decode(model: Any, ids: torch.Tensor, steps: int, cache: Any = None) -> Any:
    """Prefill all but the last ``steps`` tokens, unless there is a cache of them, then decode those one by one.

    Returns:
        The cache.
    """
    import torch

    from focus_core.compat import cache_keyword, cache_of

    start = ids.shape[1] - steps
    with torch.no_grad():
        if cache is None:
            cache = cache_of(model(input_ids=ids[:, :start], use_cache=True, logits_to_keep=1))
        for n in range(start, ids.shape[1]):
            model(input_ids=ids[:, n : n + 1], use_cache=True, **{cache_keyword(model): cache})
    return cache


@contextlib.contextmanager
def cast(module: torch.nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """A module whose weights have another dtype inside the block, and are as they were, to the bit, after it."""
    kept = [(p, p.data) for p in module.parameters() if p.is_floating_point()]
    try:
        for parameter, data in kept:
            parameter.data = data.to(dtype)
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data
