"""What a latent costs and loses, rank by rank: the cache of a live model, and its perplexity beside dense."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from focus_core.compat import cache_keyword, cache_of
from focus_core.errors import Cancelled, InvalidInput
from focus_core.evaluation.likelihood import token_nll
from focus_core.retrofit import retrofit
from focus_core.routing.factorise import activations, factors_of
from focus_core.variants import Variant, make

_PROMPT = 32


def by_rank(
    loaded: Any,
    fitted: torch.Tensor,
    scored: torch.Tensor,
    ranks: Sequence[int],
    *,
    rotary: int | None = None,
    weighting: str = "activations",
    progress: Callable[[float, str], None] | None = None,
    partial: Callable[[dict[str, Any]], None] | None = None,
    cancel: Callable[[], bool] | None = None,
) -> list[dict[str, Any]]:
    """Factorise a model at every rank and measure each; nothing is trained.

    Args:
        loaded: anything with ``model`` and ``facts``.
        fitted: (W, N) token ids that the factors are fitted on.
        scored: (V, M) token ids of another text, whose perplexity is measured: every token of a window but its first.
        ranks: of the latent.
        rotary: rotated numbers of each KV head's key that are kept; half of those that rotate by default.
        weighting: see ``factorise``.
        progress: fraction and sentence.
        partial: told each row as it is known.
        cancel: asked before every rank.

    Returns:
        One row a rank, dense first with rank None: ``rank``, ``rotary``, ``numbers`` (cached a token and layer),
        ``bytes_per_token`` (of the live cache, all layers), ``ppl``.

    Raises:
        Unsupported: keys and values that no factors can follow.
        InvalidInput: ranks that the model does not have, or windows of fewer than two tokens.
        Cancelled: when asked to.
    """
    if scored.dim() != 2 or scored.shape[1] < 2:
        raise InvalidInput(f"Windows of {tuple(scored.shape)} have no token to score.", "Give windows of 2 or more.")
    rows = [measured(loaded, make("dense"), None, scored)]
    if partial is not None:
        partial(rows[0])
    seen = activations(loaded.model, fitted)
    for number, rank in enumerate(ranks):
        if cancel is not None and cancel():
            raise Cancelled
        if progress is not None:
            progress(number / len(ranks), f"Rank {rank}.")
        factors = factors_of(loaded.model, seen, rank, rotary=rotary, weighting=weighting)
        rows.append(measured(loaded, make("mla", factors.serve), factors, scored))
        if partial is not None:
            partial(rows[-1])
    return rows


@torch.no_grad()
def measured(loaded: Any, variant: Variant, adapter: Any, scored: torch.Tensor) -> dict[str, Any]:
    """One row of ``by_rank`` for a variant with its adapter."""
    model, total = loaded.model, 0.0
    with retrofit(model, variant, adapter):
        for window in scored:
            total += token_nll(model, window[None].to(model.device)).double().sum().item()
        held = _live_bytes(model, scored[:1, :_PROMPT].to(model.device))
    serve = {} if adapter is None else adapter.serve
    layers, itemsize = loaded.facts.layers, model.dtype.itemsize
    return {
        "rank": serve.get("rank"),
        "rotary": serve.get("rotary"),
        "numbers": held / layers / itemsize,
        "bytes_per_token": held,
        "ppl": math.exp(total / (scored.shape[0] * (scored.shape[1] - 1))),
    }


def _live_bytes(model: Any, ids: torch.Tensor) -> float:
    """Bytes a token of the cache that decoding goes on from: a prompt, then its last token by itself."""
    cache = cache_of(model(ids[:, :-1], use_cache=True))
    cache = cache_of(model(ids[:, -1:], use_cache=True, **{cache_keyword(model): cache}))
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) / ids.shape[1]
