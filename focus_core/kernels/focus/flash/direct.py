"""flash-attn-4's compiled kernels, started without the Python that stands before them once it has chosen one.

Its public function takes longer to choose a kernel than short calls take to run. The first call of every kind goes
through it and is watched: where it starts one kernel, with the tensors that it was given and settings that are none,
the next call of that kind starts the same kernel with its own tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import torch

_MOST = 64
_GIVEN = 10
"""Query, key, value, output, log-sum-exp, scale, first rows of queries and keys, used rows of queries and keys."""


class Call(NamedTuple):
    """What one call gives.

    Attributes:
        q: as in ``flash_attn_varlen_func``.
        k: as there.
        v: as there.
        cut_q: first row of each sequence's queries, or None.
        cut_k: of its keys, or None.
        used_q: how many rows each has, or None.
        used_k: likewise.
        scale: factor of the scores.
        softcap: soft cap of the scores; 0 for none.
        causal: later keys are left out.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cut_q: torch.Tensor | None
    cut_k: torch.Tensor | None
    used_q: torch.Tensor | None
    used_k: torch.Tensor | None
    scale: float
    softcap: float
    causal: bool

    def tensors(self, out: Any, lse: Any) -> tuple[Any, ...]:
        """What a kernel is given, in its order."""
        return (
            self.q, self.k, self.v, out, lse, self.scale, self.cut_q, self.cut_k, self.used_q, self.used_k
        )  # fmt: skip


class Watching:
    """A cache of kernels that notes which ones are started, and with what."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.started: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def __contains__(self, key: Any) -> bool:
        return key in self.cache

    def __setitem__(self, key: Any, kernel: Any) -> None:
        self.cache[key] = kernel

    def __getitem__(self, key: Any) -> Callable[..., Any]:
        kernel = self.cache[key]

        def start(*given: Any) -> Any:
            self.started.append((kernel, given))
            return kernel(*given)

        return start


class Direct:
    """Attention by flash-attn-4, each kind of call by the kernel that its first call started."""

    def __init__(self, public: Callable[..., Any], inner: Any) -> None:
        """Args:
        public: ``flash_attn_varlen_func``.
        inner: the function beneath it, with the cache of kernels ``compile_cache``; None where there is none.
        """
        self._public, self._inner = public, inner
        self._kept: OrderedDict[Any, tuple[Callable[..., Any], tuple[Any, ...]] | None] = OrderedDict()
        self._lock = Lock()

    def __call__(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and natural-log log-sum-exp."""
        key = _kind(call)
        if key not in self._kept:
            return self._first(key, call)
        found = self._kept[key]
        if found is None:
            return self._plain(call)
        kernel, settings = found
        q, heads = call.q, call.q.shape[-2]
        out = q.new_empty(*q.shape[:-1], call.v.shape[-1])
        sums = (heads, q.shape[0]) if call.cut_q is not None else (q.shape[0], heads, q.shape[1])
        lse = torch.empty(sums, dtype=torch.float32, device=q.device)
        kernel(*call.tensors(out, lse), *settings)
        return out, lse

    def _plain(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = self._public(
            call.q, call.k, call.v, cu_seqlens_q=call.cut_q, cu_seqlens_k=call.cut_k, seqused_q=call.used_q,
            seqused_k=call.used_k, softmax_scale=call.scale, causal=call.causal, softcap=call.softcap, return_lse=True,
        )  # fmt: skip
        return out, lse

    def _first(self, key: Any, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        cache = getattr(self._inner, "compile_cache", None)
        if cache is None:
            return self._plain(call)
        with self._lock:
            watching = Watching(cache)
            self._inner.compile_cache = watching
            try:
                out, lse = self._plain(call)
            finally:
                self._inner.compile_cache = cache
            while len(self._kept) >= _MOST:
                self._kept.popitem(last=False)
            self._kept[key] = _understood(watching.started, call.tensors(out, lse))
        return out, lse


def _kind(call: Call) -> Any:
    """What a kernel is chosen by, and more: shapes, strides and settings."""
    q, k, v = call.q, call.k, call.v
    given = tuple(None if x is None else x.shape for x in (call.cut_q, call.cut_k, call.used_q, call.used_k))
    shapes = tuple((x.shape, x.stride()) for x in (q, k, v))
    return shapes, given, q.dtype, q.device, call.scale, call.softcap, call.causal


def _understood(
    started: list[tuple[Callable[..., Any], tuple[Any, ...]]], expected: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """The kernel and its settings, where one was started with what was expected, and nothing else was a tensor."""
    if len(started) != 1:
        return None
    kernel, given = started[0]
    settings = given[_GIVEN:]
    if len(given) < _GIVEN or not all(_same(x, y) for x, y in zip(given[:_GIVEN], expected, strict=True)):
        return None
    return None if any(_holds_tensor(x) for x in settings) else (kernel, settings)


def _same(x: Any, y: Any) -> bool:
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return type(x) is type(y) and x == y
    return (x.data_ptr(), x.shape, x.stride(), x.dtype) == (y.data_ptr(), y.shape, y.stride(), y.dtype)


def _holds_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor) or (isinstance(x, tuple | list) and any(map(_holds_tensor, x)))
