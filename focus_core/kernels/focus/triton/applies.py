"""Whether the Triton kernels can serve a call, and the reason where they cannot."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch

KEY_MEMBERS = 8
"""The most groups of one key: its row is copied once for each."""
_DIMS = 256
_ROWS = 65_535
_CAPABILITY = (8, 0)


def triton_refusal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None = None, members: tuple[int, int] | None = None
) -> str | None:
    """Why the Triton kernels do not serve a call: one sentence, or None where they do.

    Args:
        q: (B, Hq, Nq, D).
        k: (B, Hkv, Nk, D).
        v: (B, Hkv, Nk, Dv), where known.
        members: the most groups of a query and of a key, where known.
    """
    machine = machine_refusal(q.device)
    if machine is not None:
        return machine
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"The Triton kernels compute in float16, bfloat16 and float32, not {q.dtype}."
    widest = max(q.shape[3], 0 if v is None else v.shape[3])
    if widest > _DIMS:
        return f"The Triton kernels serve heads of up to {_DIMS} numbers; these have {widest}."
    if q.shape[0] * q.shape[1] > _ROWS:
        return f"The Triton kernels serve {_ROWS} heads of all sequences together, not {q.shape[0] * q.shape[1]}."
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v)):
        return "The Triton kernels have no backward."
    if members is not None and members[1] > KEY_MEMBERS:
        return f"The Triton kernels copy a key once a group: up to {KEY_MEMBERS} groups, not {members[1]}."
    return None


def machine_refusal(device: torch.device) -> str | None:
    """Why the Triton kernels do not run on a device: one sentence, or None where they do."""
    return _machine(device.type, device.index)


@functools.lru_cache
def _machine(kind: str, index: int | None) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "The triton backend needs the triton package, which a CUDA build of torch brings."
    if kind == "cpu":
        if os.environ.get("TRITON_INTERPRET") == "1":
            return None
        return "The triton backend needs a GPU; on a CPU it only runs interpreted, with TRITON_INTERPRET=1."
    if kind != "cuda":
        return f"The triton backend needs an NVIDIA GPU; these tensors are on {kind}."
    if torch.version.hip is not None:
        return "The triton backend is written and checked for NVIDIA GPUs."
    found = torch.cuda.get_device_capability(index)
    if found < _CAPABILITY:
        return f"The triton backend needs compute capability 8.0; this GPU has {found[0]}.{found[1]}."
    return None
