"""The public entry of Slim attention: checks, the order of operations, then one of the backends."""

from __future__ import annotations

from typing import Any

import torch

from focus_core.errors import InvalidInput, NotAvailable, Unsupported
from focus_core.kernels.checks import check_first_key, check_softcap, scale_of
from focus_core.kernels.focus.triton import machine_refusal
from focus_core.kernels.slim.cluster_applies import cluster_machine_refusal, cluster_refusal
from focus_core.kernels.slim.cpu import slim_values, slim_weights
from focus_core.kernels.slim.operands import Finish, Operands, work_of
from focus_core.kernels.slim.reference import slim_reference
from focus_core.kernels.slim.triton_applies import slim_triton_refusal
from focus_core.kernels.slim.turned import Turned
from focus_core.kernels.slim_work import ORDERS

_REFUSALS = {"cuda": cluster_refusal, "triton": slim_triton_refusal}
"""Of the GPU kernels, the fastest first."""
BACKENDS = ("auto", "reference", "cpu", "triton", "cuda", "flash")


def slim_attention(
    q: torch.Tensor,
    state: torch.Tensor,
    *,
    key_weight: torch.Tensor | None = None,
    value_weight: torch.Tensor | None = None,
    key_bias: torch.Tensor | None = None,
    value_bias: torch.Tensor | None = None,
    finish: Finish | None = None,
    new_key: torch.Tensor | None = None,
    new_value: torch.Tensor | None = None,
    causal: bool = True,
    first_key: torch.Tensor | None = None,
    key_mask: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    order: str = "auto",
    backend: str = "auto",
    return_lse: bool = False,
):
    """Attention whose keys and values are linear in one state a token, shared by all heads (arXiv 2503.05840).

    ``keys = state @ key_weight + key_bias`` and ``values = state @ value_weight + value_bias``; a missing weight is the
    identity. The K-cache is ``state = K``, ``value_weight = W_K^-1 W_V``; the V-cache ``state = V``, ``key_weight =
    W_V^-1 W_K``; the X-cache ``state = X`` with both projections.

    Args:
        q: (B, H, Nq, D), the last Nq of the Nk positions where attention is causal.
        state: (B, Nk, w), the new tokens included. Without a key weight w = H * D, head after head; without a value
            weight likewise.
        key_weight: (w, H * D); None when the state is the keys.
        value_weight: (w, H * Dv); None when the state is the values.
        key_bias: (H * D,), added to the keys.
        value_bias: (H * Dv,), added to the values.
        finish: ``finish(keys, rows, tokens)`` is what is still done to the keys (R, H, n, D) of two slices of the
            state: a rotation, a norm. A key weight then cannot be absorbed into the query.
        new_key: (B, H, Nq, D), the last Nq keys, finished; made from the state when None.
        new_value: (B, H, Nq, Dv), the last Nq values; made from the state when None.
        causal: whether a query sees no later token.
        first_key: (B,) first real key of a left-padded row; None when no row is padded.
        key_mask: (B, Nk) bool, keys that exist; None for all.
        scale: factor of the scores; ``1 / sqrt(D)`` when None.
        softcap: soft cap of the scores, before masking; None for none.
        order: ``values`` makes keys and values of all cached tokens first; ``weights`` weights states and applies the
            matrices to the sums, of each query, of which only those of a key that is not finished come before; ``auto``
            takes what has fewer operations.
        backend: ``auto``, ``reference`` (the specification, one order), ``cpu`` (any device) or ``triton`` (one new
            token over a K-cache on a GPU, whose keys are ready or rotated by ``Turned``; forward only) or ``cuda``
            (the same by clusters of blocks on a Hopper GPU, in fp16 and bf16; compiled on first use).
        return_lse: also return the natural-log log-sum-exp.

    Returns:
        (B, H, Nq, Dv), and with ``return_lse`` (B, H, Nq) in fp32 (fp64 for fp64). A query with nothing to attend to
        gives 0 and -inf.

    Raises:
        InvalidInput: for arguments that do not fit, shown as they are.
        NotAvailable: for a backend that is not on this machine.
        Unsupported: for a call that the triton or cuda backend does not serve, with the reason.
    """
    _check(q, state, key_weight, value_weight, key_bias, value_bias, new_key, new_value, key_mask, causal)
    _check_places(q, state, key_weight, value_weight, key_bias, value_bias, new_key, new_value, key_mask, finish)
    check_first_key(first_key, q.shape[0])
    check_softcap(softcap)
    for name, value, allowed in (("backend", backend, BACKENDS), ("order", order, ORDERS)):
        if value not in allowed:
            raise InvalidInput(f"There is no {name} {value!r}.", f"It can be {', '.join(allowed)}.")
    if backend == "flash":
        raise NotAvailable("The flash backend of slim_attention is not in this build.", "backend='auto' works.")
    operands = Operands(
        q,
        state,
        key_weight,
        value_weight,
        key_bias,
        value_bias,
        finish,
        new_key,
        new_value,
        causal,
        first_key,
        key_mask,
    )
    options: dict[str, Any] = {"scale": scale_of(q, scale), "softcap": softcap}
    if backend == "auto" and q.is_cuda and work_of(operands).order(order) == "weights":
        backend = next((name for name in _REFUSALS if _serves(name, operands, order, options)), backend)
    if backend in _REFUSALS:
        reason = _REFUSALS[backend](operands, order)
        if reason is not None:
            machine = cluster_machine_refusal if backend == "cuda" else machine_refusal
            problem = NotAvailable if machine(q.device) is not None else Unsupported
            raise problem(reason, "backend='auto' works.")
        from focus_core.kernels.slim.triton_decode import slim_decode

        if backend == "cuda":
            from focus_core.kernels.slim.cluster_decode import cluster_states

            options["states"] = cluster_states
        out, lse = slim_decode(operands, **options)
    elif backend == "reference":
        out, lse = slim_reference(operands, **options)
    elif work_of(operands).order(order) == "values":
        out, lse = slim_values(operands, **options, return_lse=return_lse)
    else:
        out, lse = slim_weights(operands, **options)
    return (out, lse) if return_lse else out


def _serves(backend: str, operands: Operands, order: str, options: dict[str, Any]) -> bool:
    if _REFUSALS[backend](operands, order) is not None:
        return False
    if backend == "triton":
        return True
    # It needs Triton, so it is imported late.
    from focus_core.kernels.slim.cluster_decode import build_refusal

    return build_refusal(operands, **options) is None


def _check(q, state, key_weight, value_weight, key_bias, value_bias, new_key, new_value, key_mask, causal) -> None:
    shapes = f"query {tuple(q.shape)}, state {tuple(state.shape)}"
    if q.dim() != 4 or state.dim() != 3 or q.shape[0] != state.shape[0]:
        raise InvalidInput(f"Slim attention needs (B, H, Nq, D) queries and a (B, Nk, w) state: {shapes}.")
    if causal and not 1 <= q.shape[2] <= state.shape[1]:
        raise InvalidInput(
            f"Queries must be the last 1 to {state.shape[1]} of the {state.shape[1]} positions: {shapes}."
        )
    heads, size, width = q.shape[1], q.shape[1] * q.shape[3], state.shape[2]
    if key_weight is None and width != size:
        raise InvalidInput(
            f"Without a key weight the state is the keys, of {size} numbers for {heads} heads of {q.shape[3]}; it has "
            f"{width}: {shapes}."
        )
    for name, weight in (("key_weight", key_weight), ("value_weight", value_weight)):
        if weight is not None and (weight.dim() != 2 or weight.shape[0] != width or weight.shape[1] % heads):
            raise InvalidInput(f"{name} is {tuple(weight.shape)} for a state of {width} and {heads} heads: {shapes}.")
    if key_weight is not None and key_weight.shape[1] != size:
        raise InvalidInput(f"key_weight makes {key_weight.shape[1]} numbers and queries have {size}: {shapes}.")
    value_size = width if value_weight is None else value_weight.shape[1]
    if value_size % heads:
        raise InvalidInput(f"{value_size} numbers of a value cannot be shared evenly by {heads} heads: {shapes}.")
    for name, bias, wanted in (("key_bias", key_bias, size), ("value_bias", value_bias, value_size)):
        if bias is not None and bias.shape != (wanted,):
            raise InvalidInput(f"{name} is {tuple(bias.shape)}, not ({wanted},).")
    for name, new, wanted in (("new_key", new_key, q.shape[3]), ("new_value", new_value, value_size // heads)):
        if new is not None and (not causal or new.shape != (*q.shape[:3], wanted)):
            raise InvalidInput(
                f"{name} is {tuple(new.shape)}, not {(*q.shape[:3], wanted)} of causal attention: {shapes}."
            )
    if key_mask is not None and (key_mask.shape != state.shape[:2] or key_mask.dtype != torch.bool):
        raise InvalidInput(
            f"key_mask must be {tuple(state.shape[:2])} bool, not {tuple(key_mask.shape)} {key_mask.dtype}."
        )
    if not (q.dtype == state.dtype and q.is_floating_point()):
        raise InvalidInput(f"Query and state need one float type, not {q.dtype} and {state.dtype}.")


def _check_places(q, *others) -> None:
    """Kernels take addresses: a tensor of another device, or angles of too few rows, would be read past their end."""
    *given, finish = others
    for x in given:
        if x is not None and x.device != q.device:
            raise InvalidInput(
                f"Slim attention's tensors are on {q.device} and {x.device}.", "Move them to one device."
            )
    if isinstance(finish, Turned) and finish.cos.shape[0] not in (1, q.shape[0]):
        raise InvalidInput(f"There are angles of {finish.cos.shape[0]} rows for {q.shape[0]} sequences.")
