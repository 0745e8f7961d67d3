"""Whether flash-attn-4 can serve a call's groups, and the reason where it cannot."""

from __future__ import annotations

import functools
import importlib.util

import torch

from focus_core.kernels.focus.triton.applies import triton_refusal

_DIMS = 256
_STEP = 8
_HOPPER = 9


def flash_refusal(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None = None,
    members: tuple[int, int] | None = None,
    scale: float | None = None,
) -> str | None:
    """Why the flash backend does not serve a call: one sentence, or None where it does.

    Args:
        q: (B, Hq, Nq, D).
        k: (B, Hkv, Nk, D).
        v: (B, Hkv, Nk, Dv), where known.
        members: the most groups of a query and of a key, where known.
        scale: factor of the scores; None for the usual one.
    """
    return triton_refusal(q, k, v, members) or package_refusal(q.device) or call_refusal(q, k, v, members, scale)


def call_refusal(q, k, v, members, scale) -> str | None:
    """The same for the call alone, wherever it runs."""
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"flash-attn-4 computes in float16 and bfloat16, not {q.dtype}."
    dims = [q.shape[3], q.shape[3] if v is None else v.shape[3]]
    if any(dim % _STEP or not _STEP <= dim <= _DIMS for dim in dims):
        return f"flash-attn-4 serves heads of a multiple of {_STEP} numbers up to {_DIMS}; these have {dims}."
    if members is not None and min(members) > 1:
        return f"flash-attn-4 counts a pair once a shared group; here a query has {members[0]}, a key {members[1]}."
    if scale is not None and scale <= 0:
        return f"flash-attn-4 needs a scale above 0, not {scale}."
    if k.shape[0] * k.shape[1] * k.shape[2] >= 1 << 31:
        return f"The flash backend counts rows in 32 bits: {k.shape[0]} x {k.shape[1]} x {k.shape[2]} are too many."
    return None


def package_refusal(device: torch.device) -> str | None:
    """Why flash-attn-4 does not run on a device: one sentence, or None where it does."""
    return _package(device.type, device.index)


@functools.lru_cache
def _package(kind: str, index: int | None) -> str | None:
    if kind != "cuda":
        return f"The flash backend needs a Hopper GPU; these tensors are on {kind}."
    found = torch.cuda.get_device_capability(index)
    if found[0] != _HOPPER:
        return f"The flash backend is checked on compute capability 9.0 only; this GPU has {found[0]}.{found[1]}."
    try:
        there = importlib.util.find_spec("flash_attn.cute") is not None
    except ModuleNotFoundError:
        there = False
    if not there:
        return "The flash backend needs flash-attn-4, which requirements-gpu.txt installs."
    return None


def same_memory(query_bits: torch.Tensor, key_bits: torch.Tensor) -> bool:
    """Whether the sets of the queries are those of their keys by lying in the same memory."""
    start = key_bits.shape[2] - query_bits.shape[2]
    return (
        query_bits.stride() == key_bits.stride()
        and query_bits.data_ptr() == key_bits.data_ptr() + start * key_bits.stride(2) * key_bits.element_size()
    )


def same_sets(query_bits: torch.Tensor, key_bits: torch.Tensor) -> bool:
    """Whether the sets of the queries are those of their keys.

    Sets of different memory are compared, which waits for the GPU: inside a CUDA graph's capture the answer is no, and
    the caller says ``equal``.
    """
    if same_memory(query_bits, key_bits):
        return True
    if not query_bits.is_cuda or torch.cuda.is_current_stream_capturing():
        return False
    return torch.equal(query_bits, key_bits[:, :, key_bits.shape[2] - query_bits.shape[2] :])
