"""Exact attention under any mask, a stripe of queries at a time: N x N is never held."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from focus_core.kernels.checks import wide

_STRIPE_SCORES = 1 << 24


def masked_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keep: Callable[[int, int, int], torch.Tensor],
    *,
    scale: float,
    softcap: float | None = None,
    return_lse: bool = False,
):
    """Attention over the pairs that ``keep`` allows.

    Args:
        q: (B, Hq, Nq, D), the last Nq of the Nk positions.
        k: (B, Hkv, Nk, D); grouped heads are not expanded.
        v: (B, Hkv, Nk, Dv).
        keep: ``keep(start, stop, keys)`` gives the bool mask (B, 1 or Hkv, stop - start, keys) of queries
            ``start:stop`` (from 0) against the first ``keys`` keys; later keys are never causal for them.
        scale: factor of the scores.
        softcap: soft cap of the scores, before masking.
        return_lse: also return the natural-log log-sum-exp.

    Returns:
        (B, Hq, Nq, Dv) in the input's type, and with ``return_lse`` (B, Hq, Nq) in fp32 (fp64 for fp64).
        A query with nothing to attend to gives 0 and -inf.
    """
    batch, heads, queries, _ = q.shape
    kv_heads, keys = k.shape[1:3]
    # At least eight stripes of a long prefill: later keys of a stripe are skipped, which saves almost half the work.
    rows = max(1, min(queries, _STRIPE_SCORES // (batch * heads * keys), max(128, -(-queries // 8))))
    outputs, sums = [], []
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        last = keys - queries + stop
        mask = keep(start, stop, last)
        # The query heads of one key head are stacked as more rows, so K and V are read once and not expanded.
        share = heads // kv_heads
        stacked = q[:, :, start:stop].reshape(batch, kv_heads, share * (stop - start), -1)
        mask = mask.repeat(1, 1, share, 1)
        compute = _with_lse if return_lse or softcap is not None else _plain
        out, lse = compute(stacked, k[:, :, :last], v[:, :, :last], mask, scale, softcap)
        outputs.append(out.reshape(batch, heads, stop - start, -1))
        if return_lse:
            sums.append(lse.reshape(batch, heads, stop - start))
    out = torch.cat(outputs, dim=2) if len(outputs) > 1 else outputs[0]
    return (out, torch.cat(sums, dim=2)) if return_lse else out


def _plain(q, k, v, mask, scale, softcap):
    some = mask.any(-1, keepdim=True)
    # A row with no key at all is NaN in some fused kernels: let it see everything, then set it to 0.
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | ~some, scale=scale)
    return out.masked_fill(~some, 0), None


def _with_lse(q, k, v, mask, scale, softcap):
    work = wide(q.dtype)
    scores = q.to(work) @ k.to(work).transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    some = mask.any(-1, keepdim=True)
    scores = scores.masked_fill(~(mask | ~some), float("-inf"))
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    out = torch.exp(scores - lse) @ v.to(work)
    return out.masked_fill(~some, 0).to(q.dtype), lse.masked_fill(~some, float("-inf")).squeeze(-1)


def causal_tile(
    start: int, stop: int, last: int, keys: int, queries: int, first_key: torch.Tensor | None, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Distance ``i - j`` (rows, last), position past the first real key ``j - first`` and the causal mask of a stripe.

    The last two are (B or 1, 1, 1 or rows, last). A padded key has a negative position and is never causal.
    """
    i = torch.arange(keys - queries + start, keys - queries + stop, device=device)[:, None]
    j = torch.arange(last, device=device)[None, :]
    from_first = j[None, None] if first_key is None else j[None, None] - first_key.to(device)[:, None, None, None]
    return i - j, from_first, (j <= i)[None, None] & (from_first >= 0)
