"""Whether the GPU kernels of block-sparse attention can serve a call, and the reason where they cannot."""

from __future__ import annotations

import importlib.util

import torch

from focus_core.kernels.focus.triton.applies import machine_refusal

_DIMS = 256
_COLUMNS = 16_384
_FLASH_BLOCK = 128
_FLASH_DIMS = 128


def triton_refusal(q: torch.Tensor, v: torch.Tensor, block: int, keys: int) -> str | None:
    """Why the Triton kernels do not serve a call: one sentence, or None where they do.

    Args:
        q: (B, Hq, Nq, D).
        v: (B, Hkv, Nk, Dv).
        block: tokens a side of a block.
        keys: number of keys.
    """
    machine = machine_refusal(q.device)
    if machine is not None:
        return machine
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"The Triton kernels compute in float16, bfloat16 and float32, not {q.dtype}."
    if max(q.shape[3], v.shape[3]) > _DIMS:
        return f"The Triton kernels serve heads of up to {_DIMS} numbers; these have {max(q.shape[3], v.shape[3])}."
    if block & (block - 1) or not 16 <= block <= 128:
        return f"The Triton kernels serve blocks of 16, 32, 64 or 128 tokens, not {block}."
    if -(-keys // block) > _COLUMNS:
        return f"The Triton kernels serve rows of up to {_COLUMNS} blocks, not {-(-keys // block)}."
    return _trains(q, v)


def flash_refusal(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block: int,
    causal: bool,
    first: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> str | None:
    """Why flash-attn-4 does not serve a call: one sentence, or None where it does; arguments as the backends'."""
    machine = machine_refusal(q.device)
    if machine is not None:
        return machine
    if not _hopper(q.device):
        return "The flash backend is written and checked for Hopper GPUs."
    if not _installed():
        return "The flash backend needs the package flash-attn-4 (requirements-gpu.txt)."
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"flash-attn-4 computes in float16 and bfloat16, not {q.dtype}."
    if block != _FLASH_BLOCK:
        return f"flash-attn-4's blocks have {_FLASH_BLOCK} tokens on this GPU, not {block}."
    dim = q.shape[3]
    if dim != v.shape[3] or dim % 8 or dim > _FLASH_DIMS:
        return f"The flash backend serves equal heads of up to {_FLASH_DIMS} numbers; these have {dim}, {v.shape[3]}."
    if not causal or first is not None or softcap is not None or scale <= 0:
        return "The flash backend serves causal attention without left padding, soft cap or negative scale."
    if (k.shape[2] - q.shape[2]) % block:
        return f"flash-attn-4 counts blocks from the first query: {k.shape[2] - q.shape[2]} tokens come before it."
    return _trains(q, k, v)


def _trains(*tensors: torch.Tensor) -> str | None:
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return "The GPU kernels of block_sparse_attention have no backward."
    return None


def _hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def _installed() -> bool:
    try:
        return importlib.util.find_spec("flash_attn.cute") is not None
    except ModuleNotFoundError:
        return False
