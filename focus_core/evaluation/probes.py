"""Probes of the two promises of a served variant: no look into the future, and decode equals prefill.

Both run in fp32. Rounding can move a membership that lies on the edge between two groups, and a moved membership
moves logits by far more than rounding: that is neither a leak nor a wrong cache. So where memberships differ, the
same comparison runs in fp64: a difference that stays there is real; one that goes was rounding and is counted in
``flips``. The logits are then compared in fp32 before the first token that it touched, and in fp64 everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from focus_core.errors import Cancelled, InvalidInput
from focus_core.evaluation.recorders import Memberships, kept_pattern

if TYPE_CHECKING:
    import torch

    from focus_core.variants import AttentionCall, Variant

_SHORTEST, _LONGEST = 256, 2048
_LOGITS = 1 << 27


@dataclass(frozen=True)
class _Change:
    """What differs between two runs: the logits before the first moved membership and anywhere, and memberships."""

    logits: float
    anywhere: float
    flips: int
    real: int = 0


@dataclass(frozen=True)
class _Run:
    """Logits (N, V) in fp32 on the CPU, and the memberships that made them."""

    logits: torch.Tensor
    members: Memberships


def probe_length(variant: Variant, available: int, vocabulary: int) -> int:
    """Tokens that a probe needs for most pairs to lie beyond what is always kept, within what is there and fits."""
    local = getattr(variant, "window", 0) + getattr(variant, "sinks", 0) or 2 * getattr(variant, "block", 0)
    return min(available, max(_SHORTEST, min(3 * local, _LONGEST, _LOGITS // vocabulary)))


def _cuts(variant: Variant, tokens: int) -> list[int]:
    """A quarter, a half and three quarters; in the middle of a block, where a choice by blocks would leak."""
    block = getattr(variant, "block", 1)
    return sorted({min(max(1, tokens * i // 4 // block * block + block // 2), tokens - 1) for i in (1, 2, 3)})


def leak(
    model: Any,
    variant: Variant,
    adapter: Any,
    ids: torch.Tensor,
    *,
    cuts: Sequence[int] | None = None,
    seeds: Sequence[int] = (0, 1),
    cancel: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Largest change of an earlier logit when only later tokens change.

    Args:
        model: a transformers causal language model; it runs in fp32 here and gets its own weights back.
        variant: the variant.
        adapter: its trained module, or None.
        ids: (N,) token ids, N >= 2.
        cuts: positions from which on all tokens are replaced; about a quarter, a half and three quarters by default.
        seeds: seeds of the replacing tokens.
        cancel: asked between runs.

    Returns:
        ``leak`` (largest absolute change), ``leak_fp64`` (that comparison again in fp64, which tells rounding from a
        small leak: it falls to about 1e-6 or less, or it stays; None when the change is exactly 0), ``flips``
        (memberships that rounding moved, over all comparisons), ``leaked_memberships`` (those that the later tokens
        moved), ``tokens``, ``cuts``, ``seeds``.
    """
    import torch

    n = len(ids)
    cuts = _cuts(variant, n) if cuts is None else list(cuts)
    if n < 2 or not all(0 < c < n for c in cuts):
        raise InvalidInput(f"A leak probe on {n} tokens cannot cut at {cuts}.", "Cut between 1 and the last token.")
    vocabulary = model.get_input_embeddings().weight.shape[0]
    worst, flips, leaked = 0.0, 0, 0
    where = (cuts[0], seeds[0])
    exact_base, in_fp64 = None, None
    with in_dtype(model, torch.float32):
        base = _prefill(model, variant, adapter, ids)
        for cut in cuts:
            for seed in seeds:
                _stop(cancel)
                later = _other_tokens(ids, cut, seed, vocabulary)
                found = _compare(base, _prefill(model, variant, adapter, later), cut)
                if found.flips:
                    with in_dtype(model, torch.float64):
                        exact_base = exact_base or _prefill(model, variant, adapter, ids)
                        exact = _prefill(model, variant, adapter, later)
                    found = _judge(found, _compare(exact_base, exact, cut))
                if found.logits > worst:
                    worst, where = found.logits, (cut, seed)
                flips, leaked = flips + found.flips, leaked + found.real
    if worst:
        _stop(cancel)
        later = _other_tokens(ids, *where, vocabulary)
        with in_dtype(model, torch.float64):
            exact_base = exact_base or _prefill(model, variant, adapter, ids)
            in_fp64 = _compare(exact_base, _prefill(model, variant, adapter, later), where[0]).anywhere
    return {
        "leak": worst,
        "leak_fp64": in_fp64,
        "flips": flips,
        "leaked_memberships": leaked,
        "tokens": n,
        "cuts": cuts,
        "seeds": list(seeds),
    }


def parity(
    model: Any,
    variant: Variant,
    adapter: Any,
    ids: torch.Tensor,
    *,
    chunks: int = 3,
    decode: int = 16,
    cancel: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Compare one prefill with a chunked prefill, and with a prefill followed by token-by-token decode.

    Args:
        model: a transformers causal language model; it runs in fp32 here and gets its own weights back.
        variant: the variant.
        adapter: its trained module, or None.
        ids: (N,) token ids, N >= 2.
        chunks: number of chunks, uneven on purpose.
        decode: tokens at the end that are decoded one by one; N - 1 decodes all but the first.
        cancel: asked between runs.

    Returns:
        ``chunked`` and ``decode`` (largest absolute logit difference to the prefill), ``flips`` (memberships that
        rounding moved), ``moved_memberships`` (those that the cache itself moved), ``tokens``; and of the chunked
        prefill in bf16, where rounding moves more, ``bf16_flips`` of ``bf16_memberships``.
    """
    import torch

    n = len(ids)
    decode = min(decode, n - 1)
    if n < 2 or decode < 1 or chunks < 1:
        raise InvalidInput(f"A parity probe needs two tokens, one of them decoded; there are {n} and {decode}.")
    size = max(1, n // chunks - 3)
    plans = {
        "chunked": [min(size, n - i) for i in range(0, n, size)],
        "decode": [n - decode, *[1] * decode],
    }
    result: dict[str, Any] = {"tokens": n, "flips": 0, "moved_memberships": 0}
    with in_dtype(model, torch.float32):
        base = _prefill(model, variant, adapter, ids)
        for name, plan in plans.items():
            _stop(cancel)
            found = _compare(base, _pieces(model, variant, adapter, ids, plan), n)
            if found.flips:
                with in_dtype(model, torch.float64):
                    whole = _prefill(model, variant, adapter, ids)
                    found = _judge(found, _compare(whole, _pieces(model, variant, adapter, ids, plan), n))
            result[name] = found.logits
            result["flips"] += found.flips
            result["moved_memberships"] += found.real
    _stop(cancel)
    with in_dtype(model, torch.bfloat16):
        base = _prefill(model, variant, adapter, ids)
        found = _compare(base, _pieces(model, variant, adapter, ids, plans["chunked"]), n)
    result |= {"bf16_flips": found.flips, "bf16_memberships": base.members.count(n)}
    return result


def partition(model: Any, variant: Variant, adapter: Any, ids: torch.Tensor) -> float:
    """Whether every pair of the pattern is counted once, and no other.

    With queries of zeros every kept pair has the same score, so each output must be the plain mean of the values of
    the keys that the pattern keeps. Holds for variants that are a softmax over the scores of their kept pairs.

    Args:
        model: a transformers causal language model; it runs in fp32 here and gets its own weights back.
        variant: the variant.
        adapter: its trained module, or None.
        ids: (N,) token ids.

    Returns:
        Largest absolute difference over all layers.
    """
    import torch

    recorder = _Partition()
    with in_dtype(model, torch.float32):
        _forward(model, variant, adapter, ids, recorder)
    return recorder.worst


@contextmanager
def in_dtype(model: Any, dtype: torch.dtype) -> Iterator[None]:
    """Run a model's parameters in another dtype; the very same tensors are back afterwards."""
    kept = [(p, p.data) for p in model.parameters() if p.is_floating_point() and p.dtype != dtype]
    try:
        for parameter, value in kept:
            parameter.data = value.to(dtype)
        yield
    finally:
        for parameter, value in kept:
            parameter.data = value


class _Partition:
    def __init__(self) -> None:
        self.worst = 0.0

    def record(self, call: AttentionCall, variant: Variant) -> None:
        import torch

        if call.sliding_window is not None:
            return
        pattern = kept_pattern(call, variant)
        out = variant.attend(dataclasses.replace(call, query=torch.zeros_like(call.query)))
        share = call.query.shape[1] // call.value.shape[1]
        every = slice(0, pattern.queries), slice(0, pattern.keys)
        for b in range(pattern.batch):
            for h in range(pattern.heads):
                kept = torch.from_numpy(pattern.tile(b, h, *every)).to(call.value)
                mean = (kept / kept.sum(1, keepdim=True)) @ call.value[b, h // share]
                self.worst = max(self.worst, float((out[b, h] - mean).abs().max()))


def _forward(model: Any, variant: Variant, adapter: Any, ids: torch.Tensor, recorder: Any) -> torch.Tensor:
    import torch

    from focus_core.retrofit import retrofit

    with torch.no_grad(), retrofit(model, variant, adapter, recorder=recorder):
        return model(input_ids=ids[None].to(model.device), use_cache=False).logits[0].float().cpu()


def _prefill(model: Any, variant: Variant, adapter: Any, ids: torch.Tensor) -> _Run:
    members = Memberships()
    return _Run(_forward(model, variant, adapter, ids, members), members)


def _pieces(model: Any, variant: Variant, adapter: Any, ids: torch.Tensor, sizes: Sequence[int]) -> _Run:
    import torch

    from focus_core import compat
    from focus_core.retrofit import retrofit

    members, logits, cache = Memberships(), [], None
    with torch.no_grad(), retrofit(model, variant, adapter, recorder=members):
        for piece in ids[None].to(model.device).split(list(sizes), 1):
            out = model(input_ids=piece, use_cache=True, **{compat.cache_keyword(model): cache})
            cache = compat.cache_of(out)
            logits.append(out.logits[0].float().cpu())
    return _Run(torch.cat(logits), members)


def _other_tokens(ids: torch.Tensor, cut: int, seed: int, vocabulary: int) -> torch.Tensor:
    """The same tokens before the cut, and a different one at every place after it."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    step = torch.randint(1, vocabulary, (len(ids) - cut,), generator=generator)
    return torch.cat([ids[:cut], (ids[cut:] + step) % vocabulary])


def _compare(one: _Run, other: _Run, upto: int) -> _Change:
    change = (one.logits[:upto] - other.logits[:upto]).abs().amax(-1)
    moved, first = one.members.flips(other.members, upto)
    return _Change(float(change[:first].max()) if first else 0.0, float(change.max()), moved)


def _judge(found: _Change, exact: _Change) -> _Change:
    """Tell memberships that rounding moved from those that still move in fp64.

    Where none does, fp64 shows all logits, those after the first that rounding moved as well.
    """
    if not exact.flips:
        return dataclasses.replace(found, logits=max(found.logits, exact.anywhere))
    return _Change(found.anywhere, found.anywhere, max(0, found.flips - exact.flips), exact.flips)


def _stop(cancel: Callable[[], bool] | None) -> None:
    if cancel is not None and cancel():
        raise Cancelled()
