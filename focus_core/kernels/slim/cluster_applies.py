"""Whether Slim attention's kernel of block clusters can serve a call, and the reason where it cannot."""

from __future__ import annotations

import functools

import torch

from focus_core.kernels.slim.operands import Operands
from focus_core.kernels.slim.triton_applies import slim_triton_refusal
from focus_core.kernels.slim.turned import Turned

COLUMNS = 512
"""Columns of the states that one block owns."""
_DIMS, _HEADS, _BLOCKS = (64, 128), 32, 8


def cluster_machine_refusal(device: torch.device) -> str | None:
    """Why a device does not run the kernel: one sentence, or None where it does."""
    return _machine(device.type, device.index)


@functools.lru_cache
def _machine(kind: str, index: int | None) -> str | None:
    if kind != "cuda":
        return f"Slim attention's cluster kernel needs an NVIDIA Hopper GPU; these tensors are on {kind}."
    major, minor = torch.cuda.get_device_capability(index)
    if major != 9:
        return f"Slim attention's cluster kernel needs a Hopper GPU (capability 9.0); this one has {major}.{minor}."
    from focus_core.kernels.cuda import compiler_refusal

    return compiler_refusal()


def cluster_refusal(o: Operands, order: str) -> str | None:
    """Why the cluster kernel does not serve a call: one sentence, or None where it does.

    Args:
        o: the call's operands.
        order: the order that was asked for.
    """
    # Its parts are put together by a Triton kernel, and it serves a part of what those serve.
    reason = cluster_machine_refusal(o.q.device) or slim_triton_refusal(o, order)
    return reason or shape_refusal(o)


def shape_refusal(o: Operands) -> str | None:
    """Why operands do not suit the kernel on any machine; None where they do."""
    heads, dim = o.q.shape[1], o.q.shape[3]
    if o.q.dtype not in (torch.float16, torch.bfloat16) or o.state.dtype != o.q.dtype:
        return f"Slim attention's cluster kernel computes in float16 and bfloat16, not {o.state.dtype}."
    if o.key_bias is not None:
        return "Slim attention's cluster kernel adds no bias to keys."
    width = heads * dim
    if dim not in _DIMS or heads > _HEADS or width % COLUMNS or width > COLUMNS * _BLOCKS:
        return (
            f"Slim attention's cluster kernel serves up to {_HEADS} heads of 64 or 128 numbers whose states have "
            f"1 to {_BLOCKS} times {COLUMNS}, not {heads} of {dim}."
        )
    steps = o.state.stride()
    if steps[2] != 1 or steps[0] % 8 or steps[1] % 8 or o.state.data_ptr() % 16:
        return f"Slim attention's cluster kernel copies rows from places that 16 bytes divide: strides {steps}."
    turned = o.finish
    if isinstance(turned, Turned) and turned.cos.shape[1:] != (o.state.shape[1], dim // 2):
        return f"Slim attention's cluster kernel needs angles of every token: {tuple(turned.cos.shape)}."
    return None
