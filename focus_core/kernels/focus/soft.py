"""Soft attention over far pairs, for training routers and for showing what a soft gate is.

Every form computes all causal pairs: it saves nothing and is not what decoding runs. Window and
sink pairs are never touched, so a gate of one leaves the pretrained layer as it was. On a GPU the gate of agreement
goes through ``triton_soft``, whose memory grows with tokens and not with pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from focus_core.errors import InvalidInput, Unsupported
from focus_core.kernels.focus.triton_soft import soft_refusal, soft_triton

BACKENDS = ("auto", "chunked", "triton")
FLOOR = 1e-4
"""Probability that an ungrouped pair keeps under the soft gate, so that it can be learned."""
STRAIGHT_THROUGH_FLOOR = 1e-6
"""The same when the forward pass is the served mask: small enough not to be seen in the output."""
_CHUNK_CELLS = 1 << 26

Gate = Callable[[slice], torch.Tensor]


def agreement(query_membership: torch.Tensor, key_membership: torch.Tensor, key_topk: int) -> torch.Tensor:
    """Probability that query and key share a group.

    Args:
        query_membership: (B, R, n, K) in [0, 1], summing to about the query's top-k.
        key_membership: (B, R, Nk, K) in [0, 1].
        key_topk: groups a key belongs to. With one, sharing is a sum over disjoint events; with more it is
            1 - prod_c (1 - m_ic m_jc), so that a pair sharing two groups is not counted twice.

    Returns:
        (B, R, n, Nk) in [0, 1].
    """
    if key_topk == 1:
        return query_membership @ key_membership.transpose(-1, -2)
    apart = 1.0
    for c in range(query_membership.shape[-1]):
        apart = apart * (1 - query_membership[..., c, None] * key_membership[..., None, :, c])
    return 1 - apart


@dataclass(frozen=True)
class LogAgreement:
    """Additive gate log P(share a group), floored: as memberships harden it becomes the served mask.

    Attributes:
        query_membership: (B, R, Nq, K), see ``agreement``.
        key_membership: (B, R, Nk, K).
        key_topk: groups a key belongs to.
        floor: chance that an ungrouped pair keeps.
    """

    query_membership: torch.Tensor
    key_membership: torch.Tensor
    key_topk: int
    floor: float = FLOOR

    def __call__(self, rows: slice) -> torch.Tensor:
        """The gate of these queries: (B, R, n, Nk)."""
        shared = agreement(self.query_membership[:, :, rows], self.key_membership, self.key_topk)
        return torch.log(self.floor + (1 - self.floor) * shared.clamp(0, 1))


def log_agreement_gate(
    query_membership: torch.Tensor, key_membership: torch.Tensor, key_topk: int, floor: float = FLOOR
) -> LogAgreement:
    """The gate of these memberships."""
    return LogAgreement(query_membership, key_membership, key_topk, floor)


def paper_gate(membership: torch.Tensor, sharpness: torch.Tensor) -> Gate:
    """Multiplicative gate sigmoid(lambda g_i . g_j) on the scores (paper, eq. 2); it lies in [0.5, sigmoid(lambda)]."""

    def gate(rows: slice) -> torch.Tensor:
        return torch.sigmoid(sharpness * (membership[:, :, rows] @ membership.transpose(-1, -2)))

    return gate


def soft_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    add: Gate | None = None,
    multiply: Gate | None = None,
    window: int,
    sinks: int = 0,
    first_key: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """Causal attention whose far scores are shifted by ``add`` or scaled by ``multiply``.

    Args:
        q: (B, Hq, Nq, D); the last Nq of the Nk positions.
        k: (B, Hkv, Nk, D).
        v: (B, Hkv, Nk, Dv).
        add: row slice -> (B, R, n, Nk) added to far scores, R = 1 or Hkv.
        multiply: row slice -> (B or 1, R, n or 1, Nk or 1) factor of far scores.
        window: keys nearest to the query that stay as they are, itself included.
        sinks: first real keys that stay as they are.
        first_key: (B,) first real key of each left-padded row.
        scale: factor of the scores; 1/sqrt(D) by default.
        softcap: cap of the scores, before any gate.
        backend: ``triton`` (a gate of agreement alone), ``chunked``, or ``auto``: triton on a GPU that can.

    Returns:
        (B, Hq, Nq, Dv); a padded query returns 0. ``chunked`` works in chunks of queries, so no N x N array is held
        unless gradients are wanted; ``triton`` never holds one.

    Raises:
        InvalidInput: for arguments that do not fit.
        NotAvailable: for ``triton`` on a machine that cannot run it.
        Unsupported: for ``triton`` and a call that it does not serve, with the reason.
    """
    if backend not in BACKENDS:
        raise InvalidInput(f"There is no backend {backend!r}.", f"It can be {', '.join(BACKENDS)}.")
    if q.shape[1] % k.shape[1]:
        raise InvalidInput(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads.")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if (fused := _fused_gate(q, k, v, add, multiply, backend)) is not None:
        return soft_triton(
            q,
            k,
            v,
            fused.query_membership,
            fused.key_membership,
            key_topk=fused.key_topk,
            floor=fused.floor,
            window=window,
            sinks=sinks,
            first_key=first_key,
            scale=scale,
            softcap=softcap,
        )
    batch, heads, queries, _ = q.shape
    chunk = max(1, min(queries, _CHUNK_CELLS // max(1, batch * heads * k.shape[2])))
    if q.is_cuda and queries * batch * heads * k.shape[2] <= 2**31:
        chunk = queries
    eager = multiply is not None or softcap is not None
    step = _eager_rows if eager else _sdpa_rows

    def run(start: int) -> torch.Tensor:
        rows = slice(start, min(start + chunk, queries))
        return step(q, k, v, rows, add, multiply, window, sinks, first_key, scale, softcap)

    starts = range(0, queries, chunk)
    recompute = torch.is_grad_enabled() and eager
    parts = [checkpoint(run, s, use_reentrant=False) if recompute else run(s) for s in starts]
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0]


def _fused_gate(q, k, v, add, multiply, backend) -> LogAgreement | None:
    gate = add if isinstance(add, LogAgreement) and multiply is None else None
    if backend == "triton":
        if gate is None:
            raise Unsupported("The soft Triton kernels serve the gate of agreement alone.", "backend='auto' works.")
        return gate
    if backend == "chunked" or gate is None or not q.is_cuda:
        return None
    return gate if soft_refusal(q, k, v, gate.query_membership, gate.key_membership) is None else None


def _near_and_causal(q, k, rows, window, sinks, first_key):
    i = torch.arange(rows.start, rows.stop, device=q.device)[:, None] + (k.shape[2] - q.shape[2])
    j = torch.arange(k.shape[2], device=q.device)[None, :]
    if first_key is None:
        return (i - j < window) | (j < sinks), j <= i
    first = first_key[:, None, None, None]
    return (i - j < window) | (j - first < sinks), (j <= i) & (j >= first)


def _sdpa_rows(q, k, v, rows, add, multiply, window, sinks, first_key, scale, softcap):
    near, causal = _near_and_causal(q, k, rows, window, sinks, first_key)
    bias = torch.where(near, 0.0, add(rows)).masked_fill(~causal, -torch.inf).to(q.dtype)
    share = q.shape[1] // bias.shape[1]
    bias = bias.repeat_interleave(share, 1) if bias.shape[1] > 1 else bias.expand(-1, q.shape[1], -1, -1)
    share = q.shape[1] // k.shape[1]
    # An explicit mask rules out the fused grouped-query kernels, and without them the maths is done unfused.
    k, v = (x.repeat_interleave(share, 1) if share > 1 else x for x in (k, v))
    q = q[:, :, rows]
    if bias.requires_grad and not (q.requires_grad or k.requires_grad or v.requires_grad):
        # The fused kernel keeps the log-sum-exp that the bias's gradient needs only when q, k or v want one.
        q = q.detach().requires_grad_()
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    return out if first_key is None else torch.nan_to_num(out).masked_fill(~causal.any(-1, keepdim=True), 0)


def _eager_rows(q, k, v, rows, add, multiply, window, sinks, first_key, scale, softcap):
    near, causal = _near_and_causal(q, k, rows, window, sinks, first_key)
    batch, heads, _, dim = q.shape
    kv_heads = k.shape[1]
    part = q[:, :, rows].reshape(batch, kv_heads, heads // kv_heads, -1, dim)
    scores = (part @ k[:, :, None].transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    near, causal = (m if m.dim() == 2 else m[:, :, None] for m in (near, causal))
    if add is not None:
        scores = torch.where(near, scores, scores + add(rows)[:, :, None])
    if multiply is not None:
        scores = torch.where(near, scores, scores * _over_heads(multiply(rows)))
    weights = torch.softmax(scores.masked_fill(~causal, -torch.inf), -1)
    if first_key is not None:
        weights = weights.masked_fill(~causal, 0)
    out = weights.to(v.dtype) @ v[:, :, None]
    return out.reshape(batch, heads, -1, v.shape[-1])


def _over_heads(factor: torch.Tensor) -> torch.Tensor:
    return factor if factor.dim() == 0 else factor[:, :, None]
