"""Block-sparse attention by flash-attn-4's own block sparsity. Forward only, Hopper."""

from __future__ import annotations

import functools
from typing import Any

from focus_core.errors import NotAvailable, Unsupported
from focus_core.kernels.block_sparse.triton_applies import flash_refusal
from focus_core.kernels.focus.triton.applies import machine_refusal


def block_sparse_flash(q, k, v, block_mask, *, block, causal, first, scale, softcap, return_lse):
    """Attention over kept blocks; arguments as in ``block_sparse_attention``, already checked.

    Raises:
        NotAvailable: on a machine that cannot run it.
        Unsupported: for a call that it does not serve, with the reason.
    """
    machine = machine_refusal(q.device)
    if machine is not None:
        raise NotAvailable(machine, "backend='auto' works.")
    reason = flash_refusal(q, k, v, block, causal, first, scale, softcap)
    if reason is not None:
        kind = NotAvailable if "needs the package" in reason else Unsupported
        raise kind(reason, "backend='auto' works.")
    from focus_core.kernels.block_sparse.triton_lists import list_blocks

    lists = list_blocks(block_mask, q.shape[2], k.shape[2], block, causal, None)
    return flash_pass(q, k, v, lists, block, scale, return_lse)


def flash_pass(q, k, v, lists, block: int, scale: float, return_lse: bool):
    """The attention of every row of blocks, causal inside its own block; ``lists`` from ``list_blocks``.

    Where queries and keys are the same tokens, the kernel is not told that the call is causal, for it would mask every
    kept block: a function of the pair masks the row's own block, and all others are taken whole.
    """
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
    from flash_attn.cute.interface import flash_attn_func

    after_others = k.shape[2] > q.shape[2]
    counts, edges, columns = lists.counts, lists.edges, lists.columns
    if counts.shape[1] not in (1, q.shape[1]):
        counts, edges, columns = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (counts, edges, columns))
    sparse = BlockSparseTensorsTorch(
        mask_block_cnt=edges,
        mask_block_idx=lists.own(q.shape[2], k.shape[2], block),
        full_block_cnt=counts,
        full_block_idx=columns[..., : -(-k.shape[2] // block)],
        block_size=(block, block),
    )
    out, lse = flash_attn_func(
        *(x.transpose(1, 2) for x in (q, k, v)),
        softmax_scale=scale,
        causal=after_others,
        mask_mod=None if after_others else _not_later(),
        pack_gqa=False,
        block_sparse_tensors=sparse,
        return_lse=return_lse,
    )[:2]
    return (out.transpose(1, 2), lse) if return_lse else out.transpose(1, 2)


@functools.cache
def _not_later() -> Any:
    """Whether a key is no later than a query, in flash-attn-4's language; both count from the first token."""
    import cutlass.cute as cute

    @cute.jit
    def not_later(batch, head, query, key, lengths, tensors):
        return key <= query

    return not_later
