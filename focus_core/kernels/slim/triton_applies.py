"""Whether Slim attention's Triton kernels can serve a call, and the reason where they cannot."""

from __future__ import annotations

import torch

from focus_core.kernels.focus.triton import machine_refusal
from focus_core.kernels.slim.operands import Operands
from focus_core.kernels.slim.turned import Turned

_HEADS, _DIM = 64, 256


def slim_triton_refusal(o: Operands, order: str) -> str | None:
    """Why the Triton kernels do not serve a call: one sentence, or None where they do.

    Args:
        o: the call's operands.
        order: the order that was asked for.
    """
    reason = machine_refusal(o.q.device)
    if reason is not None:
        return reason
    queries, dim = o.q.shape[2:]
    if o.q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"Slim attention's Triton kernels compute in float16, bfloat16 and float32, not {o.q.dtype}."
    if order == "values":
        return "Slim attention's Triton kernels weight states: order=values is plain matrix products."
    if queries != 1 or not o.causal or o.key_mask is not None:
        return f"Slim attention's Triton kernels serve one new token, causal and without a key mask, not {queries}."
    if o.key_weight is not None or o.value_weight is None:
        return "Slim attention's Triton kernels serve the K-cache: states that are keys, and a matrix for values."
    if (o.new_key is None) != (o.new_value is None):
        return "Slim attention's Triton kernels take the new token's own key and value, or neither."
    if o.finish is not None and not isinstance(o.finish, Turned):
        return "Slim attention's Triton kernels finish keys by a rotation by halves (Turned), and by nothing else."
    if o.q.shape[1] > _HEADS or dim > _DIM:
        return f"Slim attention's Triton kernels serve {_HEADS} heads of {_DIM}, not {o.q.shape[1]} of {dim}."
    given = (o.q, o.state, o.value_weight, o.key_bias, o.value_bias, o.new_key, o.new_value)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        return "Slim attention's Triton kernels have no backward."
    return None
