"""Whether the Triton kernels can choose a call's blocks, and the reason where they cannot."""

from __future__ import annotations

import torch

from focus_core.kernels.focus.triton.applies import machine_refusal

MODES = ("antidiagonal", "diagonal")
_COLUMNS = 16_384
_HEADS = 65_535


def scoring_refusal(q: torch.Tensor, block: int, stride: int, mode: str, keys: int) -> str | None:
    """Why the Triton kernels do not choose the blocks of a call: one sentence, or None where they do.

    Args:
        q: (B, Hq, Nq, D).
        block: tokens a side of a block.
        stride: tokens a side of a tile.
        mode: which pairs are sampled.
        keys: number of keys.
    """
    machine = machine_refusal(q.device)
    if machine is not None:
        return machine
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"The Triton kernels score in float16, bfloat16 and float32, not {q.dtype}."
    if mode not in MODES:
        return f"The Triton kernels sample by {' or '.join(MODES)}, not {mode}."
    if block & (block - 1) or stride & (stride - 1) or not 4 <= stride <= block <= 128:
        return f"The Triton kernels score strides and blocks of powers of two from 4 to 128, not {stride} and {block}."
    if -(-keys // block) > _COLUMNS:
        return f"The Triton kernels choose among up to {_COLUMNS} blocks, not {-(-keys // block)}."
    if q.shape[0] * q.shape[1] > _HEADS:
        return f"The Triton kernels serve {_HEADS} heads of all sequences together, not {q.shape[0] * q.shape[1]}."
    return None
