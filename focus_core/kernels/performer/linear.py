"""Performer's attention in linear time and memory, by prefix sums that never see a later token.

The published code scales all keys by one maximum over the whole text and adds a small constant to every feature: the
constant does not cancel, so a later key moves earlier outputs, and features of early keys can vanish. Here a query's
sums are scaled by the largest features of the keys up to it, kept feature by feature. The scale cancels exactly, the
largest term of every sum is 1, and no constant is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from focus_core.kernels.checks import wide
from focus_core.kernels.performer.features import log_features

CHUNK, CHUNK_CUDA = 64, 1024
"""Tokens that are read together; powers of two. A GPU waits for the starts of many small operations."""
_SPAN = 1024


@dataclass(frozen=True)
class Prefix:
    """What all keys so far come to: the whole memory that decoding needs, whatever the length.

    Attributes:
        sums: (B, Hkv, m, Dv + 1) fp32 (fp64 for fp64), the sums of feature times value, and of the features.
        peak: (B, Hkv, m), the logarithm that each feature's sums are divided by; -inf before the first real key.
    """

    sums: torch.Tensor
    peak: torch.Tensor

    @classmethod
    def empty(cls, k: torch.Tensor, v: torch.Tensor, features: int) -> Prefix:
        """Before any key of ``k`` (B, Hkv, Nk, D)."""
        shape, work = (*k.shape[:2], features), wide(k.dtype)
        peak = torch.full(shape, float("-inf"), dtype=work, device=k.device)
        return cls(torch.zeros(*shape, v.shape[3] + 1, dtype=work, device=k.device), peak)

    def bytes(self) -> int:
        """Bytes of both tensors."""
        return sum(t.numel() * t.element_size() for t in (self.sums, self.peak))


def performer_linear(q, k, v, projection, *, first_key, scale, prefix):
    """Output and the prefix after the last key; arguments as in ``performer_attention``, already checked."""
    past = k.shape[2] - q.shape[2]
    if prefix is None:
        prefix = Prefix.empty(k, v, projection.shape[0])
        for start in range(0, past, _SPAN):
            span = slice(start, min(start + _SPAN, past))
            b = _key_features(k[:, :, span], projection, scale, first_key, start)
            prefix = _absorb(prefix, b, _with_ones(v[:, :, span]))
    outputs = []
    chunk = CHUNK_CUDA if q.device.type == "cuda" else CHUNK
    for start in range(past, k.shape[2], chunk):
        span = slice(start, min(start + chunk, k.shape[2]))
        b = _key_features(k[:, :, span], projection, scale, first_key, start)
        a = log_features(q[:, :, start - past : span.stop - past], projection, scale)
        out, prefix = _chunk(a.unflatten(1, (k.shape[1], -1)), b, _with_ones(v[:, :, span]), prefix)
        outputs.append(out.flatten(1, 2))
    return torch.cat(outputs, 2).to(q.dtype), prefix


def _key_features(k, projection, scale, first_key, start) -> torch.Tensor:
    """(B, Hkv, n, m) logarithms; -inf for padding."""
    b = log_features(k, projection, scale)
    if first_key is None:
        return b
    position = torch.arange(start, start + k.shape[2], device=k.device)
    return b.masked_fill((position < first_key.to(k.device)[:, None])[:, None, :, None], float("-inf"))


def _with_ones(v: torch.Tensor) -> torch.Tensor:
    v = v.to(wide(v.dtype))
    return torch.cat([v, v.new_ones(*v.shape[:-1], 1)], -1)


def _shrink(values: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """``exp(values - by)`` where ``by`` is no less; 0 where both are -inf."""
    return torch.exp(values - by.clamp_min(torch.finfo(by.dtype).min))


def _absorb(prefix: Prefix, b: torch.Tensor, values: torch.Tensor) -> Prefix:
    peak = torch.maximum(prefix.peak, b.detach().amax(2))
    sums = prefix.sums * _shrink(prefix.peak, peak)[..., None]
    return Prefix(sums + _shrink(b, peak[:, :, None]).transpose(-1, -2) @ values, peak)


def _chunk(a, b, values, prefix: Prefix) -> tuple[torch.Tensor, Prefix]:
    """Outputs (B, Hkv, G, n, Dv) of one chunk's queries, and the prefix after it.

    ``a`` (B, Hkv, G, n, m), ``b`` (B, Hkv, n, m), ``values`` (B, Hkv, n, Dv + 1). Scales are constants of the
    gradient, for they cancel.
    """
    n = b.shape[2]
    peaks = torch.maximum(prefix.peak[:, :, None], b.detach().cummax(2).values)
    top = (a.detach() + peaks[:, :, None]).amax(-1, keepdim=True)
    # A padded query has seen no key: its top is -inf, and its sums are 0.
    a = a - top.clamp_min(torch.finfo(top.dtype).min)
    sums = _read(a, prefix.peak[:, :, None], prefix.sums)
    # Every query reads the keys before it in halves of halves: the peak at the middle bounds both sides of a product.
    reach = 1
    parts = [_shrink_sum(a, b)[..., None] * values[:, :, None]]
    while reach < n:
        parts.append(_halves(a, b, values, peaks, reach))
        reach *= 2
    sums = sums + torch.stack(parts).sum(0)
    total = sums[..., -1:]
    out = sums[..., :-1] / torch.where(total > 0, total, torch.ones_like(total))
    return out, _absorb(prefix, b, values)


def _shrink_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Weight of every query's own key: (B, Hkv, G, n)."""
    return torch.exp(a + b[:, :, None]).sum(-1)


def _read(a: torch.Tensor, peak: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Queries (B, Hkv, G, n, m) read sums (B, Hkv, m, Dv + 1) that are divided by exp(peak)."""
    return torch.exp(a + peak[:, :, None]) @ sums[:, :, None]


def _halves(a, b, values, peaks, reach: int) -> torch.Tensor:
    """What every second block of ``reach`` queries reads of the block of keys before it; 0 for the other queries."""
    n = b.shape[2]
    pairs = n // (2 * reach)
    rest = n - 2 * reach * pairs
    done = []
    if pairs:
        whole = slice(0, 2 * reach * pairs)
        queries = a[:, :, :, whole].unflatten(3, (pairs, 2, reach))[:, :, :, :, 1]
        keys = b[:, :, whole].unflatten(2, (pairs, 2, reach))[:, :, :, 0]
        at = values[:, :, whole].unflatten(2, (pairs, 2, reach))[:, :, :, 0]
        middle = peaks[:, :, whole].unflatten(2, (pairs, 2, reach))[:, :, :, 0, -1]
        weights = _weights(queries, keys, middle[:, :, :, None])
        read = weights @ at[:, :, None]
        done.append(torch.stack([torch.zeros_like(read), read], 4).flatten(3, 5))
    if rest:
        tail = slice(2 * reach * pairs, n)
        a, b, values, peaks = a[:, :, :, tail], b[:, :, tail], values[:, :, tail], peaks[:, :, tail]
        seen = values.new_zeros(*a.shape[:3], min(rest, reach), values.shape[-1])
        done.append(seen)
        if rest > reach:
            weights = _weights(a[:, :, :, reach:], b[:, :, :reach], peaks[:, :, reach - 1 : reach])
            done.append(weights @ values[:, :, None, :reach])
    return torch.cat(done, 3)


def _weights(queries: torch.Tensor, keys: torch.Tensor, peak: torch.Tensor) -> torch.Tensor:
    """(..., n, n) estimated weights of queries (B, Hkv, G, ..., m) and keys (B, Hkv, ..., m), all of them later."""
    return torch.exp(queries + peak[:, :, None]) @ _shrink(keys, peak)[:, :, None].transpose(-1, -2)
