"""Variants with cached state, made for these tests, and the ways of running a model that must agree."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import nn

from focus_core import compat
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.focus import focus_attention
from focus_core.variants.base import Prepared, Support, Variant, option
from tests.tiny import VOCAB

GROUPS = 8


@functools.cache
def _projection(layer: int, size: int) -> torch.Tensor:
    return torch.randn(size, 2 * GROUPS, generator=torch.Generator().manual_seed(layer))


@dataclass(frozen=True)
class Routed(Variant):
    """One key group and one query group of eight a token, by a fixed random projection of the hidden state."""

    window: int = option(3, "nearest tokens", minimum=1)
    sinks: int = option(1, "first tokens", minimum=0)

    def prepare(self, hidden, layer, positions, adapter, first_key):
        scores = hidden.detach().float() @ _projection(layer, hidden.shape[-1])
        key, query = (1 << part.argmax(-1)[:, None] for part in scores.split(GROUPS, -1))
        return Prepared(cached=key, fresh=query)

    def attend(self, call):
        return focus_attention(
            call.query,
            call.key,
            call.value,
            call.fresh,
            call.cached,
            window=self.window,
            sinks=self.sinks,
            first_key=call.first_key,
            scale=call.scale,
            softcap=call.softcap,
            backend="reference",
        )


class Gate(nn.Module):
    """A trained module whose gradient tells whether the state that was prepared with it reached the output."""

    kind = "gate"

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, generator=torch.Generator().manual_seed(1)) / size**0.5)


@dataclass(frozen=True)
class Gated(Variant):
    """Dense attention whose values are gated by cached float state."""

    adapter_kind = "gate"

    def prepare(self, hidden, layer, positions, adapter, first_key):
        return Prepared(cached=(hidden @ adapter.weight)[:, None])

    def attend(self, call):
        value = call.value * torch.sigmoid(call.cached)[..., None]
        return dense_attention(
            call.query, call.key, value, first_key=call.first_key, scale=call.scale, softcap=call.softcap
        )


@dataclass(frozen=True)
class Refusing(Variant):
    """Serves no model."""

    def supports(self, facts):
        return Support(False, f"it has {facts.heads} heads.")


class Watcher:
    """A recorder that keeps every call."""

    def __init__(self) -> None:
        self.calls = []

    def record(self, call, variant) -> None:
        self.calls.append(call)


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Random token ids without the padding id."""
    return torch.randint(1, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    """position_ids as generate() makes them: pads of any row get what real tokens never rely on."""
    return (mask.long().cumsum(-1) - 1).clamp_min(0)


def step(model, ids, cache=None, mask=None, positions=None):
    """One forward with a cache: (logits, cache)."""
    given = {} if cache is None else {compat.cache_keyword(model): cache}
    output = model(ids, attention_mask=mask, position_ids=positions, use_cache=True, **given)
    return output.logits, compat.cache_of(output)


def in_chunks(model, ids, sizes, mask=None, positions=None) -> torch.Tensor:
    """Logits of a forward that is cut into chunks of the given sizes."""
    cache, logits, start = None, [], 0
    for size in sizes:
        end = start + size
        part = None if positions is None else positions[:, start:end]
        out, cache = step(model, ids[:, start:end], cache, None if mask is None else mask[:, :end], part)
        logits.append(out)
        start = end
    assert start == ids.shape[1]
    return torch.cat(logits, 1)


def far(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference."""
    return (a - b).abs().max().item()
