"""Block-sparse attention with a mask, a stripe of queries at a time: any device, and it trains."""

from __future__ import annotations

import torch

from focus_core.kernels.block_sparse.grid import grids
from focus_core.kernels.block_sparse.reference import block_sparse_reference
from focus_core.kernels.masked import masked_attention


def block_sparse_chunked(q, k, v, block_mask, *, block, causal, first, scale, softcap, return_lse):
    """Arguments as in ``block_sparse_attention``, already checked."""
    settings = {"scale": scale, "softcap": softcap, "return_lse": return_lse}
    if not causal:
        # Stripes of ``masked_attention`` end at the diagonal: whole stripes of the specification instead.
        return _not_causal(q, k, v, block_mask, block, first, **settings)
    batch, heads, queries, _ = q.shape
    keys, masks = k.shape[2], block_mask.shape[1]
    if masks not in (1, k.shape[1]):
        # One mask a query head: each is its own group, with its group's keys.
        k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    start = torch.tensor([[g.first, g.row] for g in grids(batch, queries, keys, block, first)], device=q.device)
    begin, row0 = start[:, :1], start[:, 1:]
    each = torch.arange(batch, device=q.device)[:, None, None]

    def keep(low: int, high: int, last: int) -> torch.Tensor:
        i = torch.arange(keys - queries + low, keys - queries + high, device=q.device) - begin
        j = torch.arange(last, device=q.device) - begin
        row, column = i.clamp_min(0) // block - row0, j.clamp_min(0) // block
        held = block_mask.transpose(1, 2)[each[..., 0], row].transpose(1, 2)
        held = held.gather(3, column[:, None, None].expand(-1, held.shape[1], held.shape[2], -1))
        return held & ((j[:, None] <= i[:, :, None]) & (j >= 0)[:, None])[:, None]

    return masked_attention(q, k, v, keep, **settings)


def _not_causal(q, k, v, block_mask, block, first, *, scale, softcap, return_lse):
    """Rows of blocks by themselves; each is a small whole of the specification."""
    batch, heads, queries, _ = q.shape
    every = grids(batch, queries, k.shape[2], block, first)
    outs = []
    for b, g in enumerate(every):
        out = q.new_zeros(1, heads, queries, v.shape[3])
        lse = torch.full((1, heads, queries), float("-inf"), device=q.device)
        parts = [(out[:, :, : g.skip], lse[:, :, : g.skip])]
        at, kb, vb = g.skip, k[b : b + 1, :, g.first :], v[b : b + 1, :, g.first :]
        for r in range(g.rows):
            stop = min((g.row + r + 1) * block, g.length) - g.begin + g.skip
            count = stop - at
            # The block row's queries as the last of a whole whose only row of blocks is theirs.
            held = block_mask[b : b + 1, :, r : r + 1, : g.columns].repeat_interleave(block, 3)[..., : g.length]
            parts.append(
                block_sparse_reference(
                    q[b : b + 1, :, at:stop],
                    kb,
                    vb,
                    held.expand(-1, -1, count, -1),
                    block=1,
                    causal=False,
                    first=None,
                    scale=scale,
                    softcap=softcap,
                    return_lse=True,
                )
            )
            at = stop
        outs.append((torch.cat([p[0] for p in parts], 2), torch.cat([p[1].to(parts[-1][1].dtype) for p in parts], 2)))
    out, lse = (torch.cat(x) for x in zip(*outs, strict=True))
    return (out, lse) if return_lse else out
