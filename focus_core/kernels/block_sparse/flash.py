"""Block-sparse attention by flash-attn-4's own block sparsity. Forward only, Hopper."""

from __future__ import annotations

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

    The kernel is told that the call is causal: it then takes the longest rows of blocks first.
    """
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
    from flash_attn.cute.interface import flash_attn_func

    room = -(-k.shape[2] // block)
    heads = q.shape[1]
    own = lists.own(q.shape[2], k.shape[2], block)
    sparse = BlockSparseTensorsTorch(
        mask_block_cnt=lists.edges,
        mask_block_idx=own,
        full_block_cnt=lists.counts,
        full_block_idx=lists.columns[..., :room],
        block_size=(block, block),
    )
    if lists.counts.shape[1] not in (1, heads):
        sparse = sparse._replace(
            **{
                name: getattr(sparse, name).repeat_interleave(heads // lists.counts.shape[1], 1)
                for name in ("mask_block_cnt", "full_block_cnt", "full_block_idx")
            }
        )
    out, lse = flash_attn_func(
        *(x.transpose(1, 2) for x in (q, k, v)),
        softmax_scale=scale,
        causal=True,
        pack_gqa=False,
        block_sparse_tensors=sparse,
        return_lse=return_lse,
    )[:2]
    return (out.transpose(1, 2), lse) if return_lse else out.transpose(1, 2)
