"""Perplexity of what is served, paired with dense on the same tokens in the same run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from focus_core.errors import Cancelled, InvalidInput, Unsupported
from focus_core.evaluation.environment import environment
from focus_core.evaluation.likelihood import token_nll
from focus_core.evaluation.recorders import PairCounter

if TYPE_CHECKING:
    import torch

    from focus_core.variants import Variant

__all__ = ["evaluate", "token_nll", "windows_of"]

FORMAT = 1
_PROBE_SHARE = 0.1


def evaluate(
    loaded: Any,
    variant: Variant,
    adapter: Any,
    text: str,
    *,
    context: int,
    windows: int | None = None,
    batch: int = 1,
    progress: Callable[[float, str], None] | None = None,
    cancel: Callable[[], bool] | None = None,
    probes: bool = True,
    partial: Callable[[dict[str, Any]], None] | None = None,
    resume: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Perplexity of a model with a variant, and of the dense model, on the first windows of a text.

    Windows do not overlap, no BOS is added, and of N tokens the last N-1 are scored. Sums are token-weighted and in
    fp64. Both functions run window by window, so an interrupted run is paired as well.

    Args:
        loaded: what ``load_model`` returned (model, tokenizer, facts, name).
        variant: the variant.
        adapter: its trained module, or None.
        text: the text.
        context: tokens a window.
        windows: how many windows; all whole ones by default. A text shorter than one window is one window.
        batch: windows that run together.
        progress: called with (fraction, sentence).
        cancel: asked between runs; when it says True, Cancelled is raised after ``partial`` had all that is done.
        probes: measure the leak and the parity of prefill and decode as well (see ``probes``).
        partial: called after every batch of windows with a document that ``resume`` takes.
        resume: such a document; it is used where model, variant, adapter, text and context are the same.

    Returns:
        JSON values. ``nll_diff`` is the mean difference to dense a token; ``nll_se`` the standard error of the paired
        per-window difference and ``ppl_se`` the same in perplexity (None with fewer than two windows).
        ``kept_pairs`` is kept / (N(N+1)/2), mean over windows, layers and query heads, dense and native layers
        counted. ``leak``, ``flips`` and ``parity`` are None where they were not measured.

    Raises:
        InvalidInput: nothing to score, or more context than the model has.
        Unsupported: the variant cannot serve this model.
        Cancelled: on request.
    """
    import torch

    from focus_core.adapter import dense_by_definition, own_parameters

    started = time.perf_counter()
    _check(loaded, variant, context, windows, batch)
    tokens, notes = windows_of(loaded.tokenizer, text, context, windows)
    count, length = tokens.shape
    key = _key(loaded, variant, adapter, text, length)
    done = list(resume["per_window"][:count]) if resume and resume.get("key") == key else []
    carried = len(done)
    share = 1 - _PROBE_SHARE if probes else 1.0
    for ids in _batches(tokens, carried, batch):
        _report(progress, cancel, share * len(done) / count, f"Window {len(done) + 1} of {count}")
        done += _measure(loaded.model, variant, adapter, torch.from_numpy(ids), cancel)
        if partial is not None:
            partial({"format": FORMAT, "key": key, "per_window": done})
    local = variant.dense_within
    by_definition = dense_by_definition(variant, adapter, length)
    if by_definition:
        notes.append(
            f"{length} tokens are no more than window + sinks ({local}): the variant is dense by definition here."
        )
    if carried:
        notes.append(f"{carried} of {count} windows were measured by an earlier run.")
    result = {
        "format": FORMAT,
        "model": loaded.name,
        "revision": loaded.facts.revision,
        "variant": variant.name,
        "config": variant.to_dict(),
        "adapter": key["adapter"],
        "adapter_parameters": 0 if adapter is None else own_parameters(adapter),
        "served": variant.served,
        **_summary(done),
        "dense_by_definition": by_definition,
        "leak": None,
        "flips": None,
        "parity": None,
        "context": context,
        "windows": count,
        "window_tokens": length,
        "bos": False,
        "text_hash": key["text"],
        "device": str(loaded.model.device),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "notes": notes,
        "environment": environment(loaded.model.device),
        "per_window": done,
    }
    if probes:
        result |= _probe(loaded, variant, adapter, torch.from_numpy(tokens[0]), progress, cancel)
    result["seconds"] = round(time.perf_counter() - started, 3)
    _report(progress, None, 1.0, "Done")
    return result


def windows_of(tokenizer: Any, text: str, context: int, windows: int | None = None) -> tuple[np.ndarray, list[str]]:
    """The first non-overlapping windows of a text.

    Args:
        tokenizer: a transformers tokenizer; no special token is added.
        text: the text.
        context: tokens a window.
        windows: how many; all whole ones by default.

    Returns:
        (W, N) int64 ids, and what a reader must know about them. N is less than ``context`` only when the text is
        shorter than one window.

    Raises:
        InvalidInput: fewer than two tokens.
    """
    ids = np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], np.int64)
    if len(ids) < 2:
        raise InvalidInput(
            f"The text has {len(ids)} token{'' if len(ids) == 1 else 's'}; one is scored by those before it.",
            "Give a text of at least two tokens; a shipped passage has at least 1,024.",
        )
    notes = []
    if len(ids) < context:
        notes.append(f"The text has {len(ids):,} tokens, less than one window of {context:,}: all of it is one window.")
        return ids[None], notes
    whole = len(ids) // context
    if windows is not None and windows > whole:
        notes.append(f"The text has {whole} whole windows of {context:,} tokens, not {windows}.")
    count = min(whole, windows or whole)
    return ids[: count * context].reshape(count, context), notes


def _check(loaded: Any, variant: Variant, context: int, windows: int | None, batch: int) -> None:
    for name, value in (("context", context), ("windows", windows), ("batch", batch)):
        least = 2 if name == "context" else 1
        if value is not None and value < least:
            raise InvalidInput(f"{name} is {value}.", f"It can be {least} or more.")
    if context > loaded.facts.context:
        raise InvalidInput(
            f"The context of {context:,} tokens is longer than the {loaded.facts.context:,} that {loaded.name} has.",
            f"Use --context {loaded.facts.context} or less.",
        )
    support = variant.supports(loaded.facts)
    if not support.ok:
        raise Unsupported(f"{variant.name} cannot serve {loaded.name}: {support.reason}")


def _key(loaded: Any, variant: Variant, adapter: Any, text: str, length: int) -> dict[str, Any]:
    """What two runs must share for their windows to be joined."""
    return {
        "model": loaded.name,
        "revision": loaded.facts.revision,
        "variant": variant.name,
        "config": variant.to_dict(),
        "adapter": None if adapter is None else weights_hash(adapter),
        "text": hashlib.sha256(text.encode()).hexdigest()[:16],
        "length": length,
        "device": str(loaded.model.device),
        "dtype": str(loaded.model.dtype),
    }


def weights_hash(adapter: torch.nn.Module) -> str:
    """A short hash of what an adapter holds."""
    digest = hashlib.sha256()
    for name, value in sorted(adapter.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().float().numpy().tobytes())
    # Of LoRA, the table of what it holds.
    if (looks := getattr((getattr(adapter, "reads", None) or adapter).config, "looks", None)) is not None:
        digest.update(json.dumps(looks).encode())
    return digest.hexdigest()[:16]


def _batches(tokens: np.ndarray, start: int, size: int) -> Iterator[np.ndarray]:
    for i in range(start, len(tokens), size):
        yield tokens[i : i + size]


def _measure(
    model: Any, variant: Variant, adapter: Any, ids: torch.Tensor, cancel: Callable[[], bool] | None
) -> list[dict[str, Any]]:
    """One entry a window: sums over its scored tokens, with and without the variant, and the pairs kept."""
    import torch

    from focus_core.retrofit import retrofit
    from focus_core.variants import make

    counter = PairCounter()
    with torch.no_grad(), retrofit(model, variant, adapter, recorder=counter):
        nll = token_nll(model, ids).double().cpu().numpy()
    if variant.name == "dense" and adapter is None:
        dense = nll
    else:
        _report(None, cancel, 0.0, "")
        with torch.no_grad(), retrofit(model, make("dense")):
            dense = token_nll(model, ids).double().cpu().numpy()
    if not (np.isfinite(nll).all() and np.isfinite(dense).all()):
        raise InvalidInput(
            f"The model gave values that are not finite in {str(model.dtype).removeprefix('torch.')}.",
            "Use --dtype float32.",
        )
    edges = _edges(ids.shape[1])
    return [
        {
            "tokens": nll.shape[1],
            "nll": float(nll[b].sum()),
            "dense_nll": float(dense[b].sum()),
            "kept_pairs": float(np.mean(counter.kept(b))),
            "kept_pairs_by_layer": counter.kept(b),
            "edges": edges,
            "bucket_nll": _bucket_sums(nll[b], edges),
            "bucket_dense_nll": _bucket_sums(dense[b], edges),
        }
        for b in range(len(ids))
    ]


def _bucket_sums(nll: np.ndarray, edges: list[int]) -> list[float]:
    return [float(nll[low - 1 : high - 1].sum()) for low, high in pairwise(edges)]


def _edges(length: int) -> list[int]:
    """Bounds of the position buckets: 1, 128, 256, 512, ..., length."""
    edges = [1]
    step = 128
    while step < length:
        edges.append(step)
        step *= 2
    return [*edges, length]


def _summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    tokens = sum(w["tokens"] for w in done)
    nll = math.fsum(w["nll"] for w in done) / tokens
    dense = math.fsum(w["dense_nll"] for w in done) / tokens
    difference = np.array([(w["nll"] - w["dense_nll"]) / w["tokens"] for w in done])
    error = float(difference.std(ddof=1) / math.sqrt(len(done))) if len(done) > 1 else None
    by_layer = np.array([w["kept_pairs_by_layer"] for w in done]).mean(0)
    edges = done[0]["edges"]
    buckets = []
    for i, (low, high) in enumerate(pairwise(edges)):
        scored = (high - low) * len(done)
        own = math.fsum(w["bucket_nll"][i] for w in done) / scored
        other = math.fsum(w["bucket_dense_nll"][i] for w in done) / scored
        bucket = {"from": low, "to": high, "tokens": scored, "nll": own, "dense_nll": other}
        buckets.append(bucket | {"ppl": math.exp(own), "dense_ppl": math.exp(other)})
    return {
        "ppl": math.exp(nll),
        "ppl_se": None if error is None else math.exp(nll) * error,
        "nll": nll,
        "dense_ppl": math.exp(dense),
        "dense_nll": dense,
        "nll_diff": nll - dense,
        "nll_se": error,
        "tokens": tokens,
        "kept_pairs": float(by_layer.mean()),
        "kept_pairs_by_layer": by_layer.tolist(),
        "buckets": buckets,
    }


def _probe(
    loaded: Any,
    variant: Variant,
    adapter: Any,
    ids: torch.Tensor,
    progress: Callable[[float, str], None] | None,
    cancel: Callable[[], bool] | None,
) -> dict[str, Any]:
    from focus_core.evaluation.probes import leak, parity, probe_length

    ids = ids[: probe_length(variant, len(ids), loaded.facts.vocab)]
    if variant.served and getattr(variant, "backend", None) == "auto" and loaded.model.device.type == "cpu":
        # A probe is too short for `auto` to take the backend that serves long texts on a CPU.
        serving: dict[str, Any] = {"backend": "cpu"}
        variant = dataclasses.replace(variant, **serving)
    _report(progress, cancel, 1 - _PROBE_SHARE, "Leak probe in fp32")
    leaked = leak(loaded.model, variant, adapter, ids, cancel=cancel)
    leaked["backend"] = getattr(variant, "backend", None)
    found: dict[str, Any] = {"leak": leaked["leak"], "flips": leaked["flips"], "leak_probe": leaked}
    if variant.served:
        _report(progress, cancel, 1 - _PROBE_SHARE / 2, "Parity probe in fp32")
        found["parity"] = parity(loaded.model, variant, adapter, ids, cancel=cancel)
    return found


def _report(
    progress: Callable[[float, str], None] | None, cancel: Callable[[], bool] | None, fraction: float, message: str
) -> None:
    if cancel is not None and cancel():
        raise Cancelled()
    if progress is not None:
        progress(fraction, message)
