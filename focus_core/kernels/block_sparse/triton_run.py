"""Block-sparse attention by Triton kernels: lists of kept blocks, then one pass over them. Forward only."""

from __future__ import annotations

from dataclasses import replace

import torch

from focus_core.errors import NotAvailable, Unsupported
from focus_core.kernels.block_sparse.triton_applies import triton_refusal
from focus_core.kernels.focus.triton.applies import machine_refusal


def block_sparse_triton(q, k, v, block_mask, *, block, causal, first, scale, softcap, return_lse, tile=None):
    """Attention over kept blocks; arguments as in ``block_sparse_attention``, already checked.

    Raises:
        NotAvailable: on a machine that cannot run the kernels.
        Unsupported: for a call that they do not serve, with the reason.
    """
    machine = machine_refusal(q.device)
    if machine is not None:
        raise NotAvailable(machine, "backend='auto' works.")
    reason = triton_refusal(q, v, block, k.shape[2])
    if reason is not None:
        raise Unsupported(reason, "backend='auto' works.")
    from focus_core.kernels.block_sparse.triton_lists import list_blocks
    from focus_core.kernels.block_sparse.triton_pass import pass_tile, sparse_pass
    from focus_core.kernels.focus.triton.tiles import padded, scores_of, shared_memory

    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    first = None if first is None else first.to(q.device, torch.int32)
    shape = (*q.shape[:3], v.shape[3])
    # Only a padded query lies in no row of blocks.
    out = q.new_empty(shape) if first is None else q.new_zeros(shape)
    lse = None
    if return_lse:
        lse = torch.full(q.shape[:3], float("-inf"), dtype=torch.float32, device=q.device)
    lists = list_blocks(block_mask, q.shape[2], k.shape[2], block, causal, first)
    tile = tile or pass_tile(q.dtype, max(q.shape[3], v.shape[3]))
    line, room = padded(max(q.shape[3], v.shape[3])) * q.element_size(), shared_memory(q.device)
    while tile.stages > 1 and (tile.rows + 2 * tile.keys * tile.stages) * line > room:
        tile = replace(tile, stages=tile.stages - 1)
    sparse_pass(q, k, v, out, lse, lists, first, block, causal, scores_of(scale, softcap), tile)
    return (out, lse) if return_lse else out
