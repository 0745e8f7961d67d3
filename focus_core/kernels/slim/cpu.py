"""Slim attention's two orders without an N x N array."""

from __future__ import annotations

from typing import Any

import torch

from focus_core.kernels.checks import wide
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.masked import masked_attention
from focus_core.kernels.slim.operands import Operands

_STRIPE_SCORES = 1 << 24
_BLOCK = 512


def slim_values(operands: Operands, *, scale: float, softcap: float | None, return_lse: bool):
    """The order that makes keys and values of all cached tokens first: (output, LSE or None)."""
    q, k, v = operands.q, operands.keys(), operands.values()
    options: dict[str, Any] = {"scale": scale, "softcap": softcap, "return_lse": return_lse}
    if operands.causal and operands.key_mask is None:
        found = dense_attention(q, k, v, first_key=operands.first_key, **options)
    else:

        def keep(start: int, stop: int, last: int) -> torch.Tensor:
            return operands.kept(start, stop)[..., :last].expand(-1, -1, stop - start, -1)

        found = masked_attention(q, k, v, keep, **options)
    return found if return_lse else (found, None)


def slim_weights(operands: Operands, *, scale: float, softcap: float | None):
    """The order that weights states, and applies the matrices to each query and each sum: (output, LSE).

    ``finish`` needs its keys whole: they are made, and the values' matrix alone waits.
    """
    batch, heads, queries, _ = operands.q.shape
    rows = max(1, min(queries, _STRIPE_SCORES // (batch * heads * operands.state.shape[1])))
    keys = None
    if operands.finish is not None and rows < queries:
        keys = operands.made_keys(0, operands.past_keys)
    found = [_stripe(operands, keys, s, min(s + rows, queries), scale, softcap) for s in range(0, queries, rows)]
    outputs, sums = zip(*found, strict=True)
    return torch.cat(outputs, 2), torch.cat(sums, 2)


def _stripe(o: Operands, keys: torch.Tensor | None, start: int, stop: int, scale: float, softcap: float | None):
    q, work = o.q[:, :, start:stop], wide(o.q.dtype)
    if keys is not None:
        scores = _products(q, keys)
    elif o.finish is not None:
        scores = _finished_scores(o, q)
    else:
        scores = _raw_scores(o, q)
    if o.new_key is not None:
        scores = torch.cat([scores, q @ o.new_key.transpose(-1, -2)], -1)
    scores = scores.to(work) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    kept = o.kept(start, stop)
    if not kept.all():
        scores = scores.masked_fill(~kept, float("-inf"))
    lse = torch.logsumexp(scores, -1, keepdim=True)
    weights = torch.exp(scores - lse.masked_fill(lse.isneginf(), 0))
    return _weighted(o, weights).to(q.dtype), lse.squeeze(-1)


def _products(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """(B, H, R, n) of queries (B, H, R, D) and keys (B, H, n, D); keys that are views of the state are not copied."""
    return torch.stack([torch.bmm(b, a.mT).mT for a, b in zip(q, keys, strict=True)])


def _finished_scores(o: Operands, q: torch.Tensor) -> torch.Tensor:
    """Scores of the past tokens, whose keys are made and finished a few at a time: they stay in the CPU's cache."""
    past = o.past_keys
    scores = q.new_empty(*q.shape[:3], past)
    for row in range(q.shape[0]):
        for start in range(0, past, _BLOCK):
            stop = min(start + _BLOCK, past)
            scores[row : row + 1, :, :, start:stop] = _products(q[row : row + 1], o.made_keys(start, stop, row))
    return scores


def _raw_scores(o: Operands, q: torch.Tensor) -> torch.Tensor:
    """Scores of the past tokens by their states: the keys' matrix goes to the query, and their bias with it."""
    batch, heads, rows, dim = q.shape
    state = o.state[:, : o.past_keys]
    if o.key_weight is None:
        scores = _products(q, state.unflatten(-1, (heads, dim)).transpose(1, 2))
    else:
        by_head = o.key_weight.unflatten(1, (heads, dim)).permute(1, 2, 0)
        longer = torch.bmm(q.transpose(0, 1).reshape(heads, batch * rows, dim), by_head)
        longer = longer.view(heads, batch, rows, -1).transpose(0, 1).reshape(batch, heads * rows, -1)
        scores = torch.bmm(longer, state.transpose(1, 2)).view(batch, heads, rows, -1)
    if o.key_bias is not None:
        scores = scores + (q * o.key_bias.view(heads, 1, dim)).sum(-1, keepdim=True)
    return scores


def _weighted(o: Operands, weights: torch.Tensor) -> torch.Tensor:
    """(B, H, R, Dv): weights (B, H, R, Nk) over the values of all tokens."""
    batch, heads, rows, _ = weights.shape
    past, kind = o.past_values, o.state.dtype
    held = weights[..., :past]
    state = o.state[:, :past]
    if o.value_weight is None:
        by_head = state.unflatten(-1, (heads, -1)).transpose(1, 2)
        out = torch.stack([torch.bmm(a, b) for a, b in zip(held.to(kind), by_head, strict=True)])
    else:
        # One product for all heads: the state, and not a head's values, is what is weighted.
        sums = torch.bmm(held.to(kind).reshape(batch, heads * rows, past), state).view(batch, heads, rows, -1)
        matrices = o.value_weight.unflatten(1, (heads, -1)).transpose(0, 1)
        flat = sums.transpose(0, 1).reshape(heads, batch * rows, -1)
        out = torch.bmm(flat, matrices).view(heads, batch, rows, -1).transpose(0, 1)
    if o.value_bias is not None:
        # Weights that sum to less than one (another part has the rest, or nothing is seen) take as much of the bias.
        out = out + held.sum(-1, keepdim=True).to(kind) * o.value_bias.view(heads, 1, -1)
    if o.new_value is not None:
        out = out + weights[..., past:].to(kind) @ o.new_value
    return out
