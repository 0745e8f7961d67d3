"""The public entry of Performer's attention: checks, then one of the backends."""

from __future__ import annotations

import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.checks import check_first_key, check_qkv, scale_of
from focus_core.kernels.performer.linear import Prefix, performer_linear
from focus_core.kernels.performer.reference import performer_reference

BACKENDS = ("auto", "reference", "linear")


def performer_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    projection: torch.Tensor,
    *,
    first_key: torch.Tensor | None = None,
    scale: float | None = None,
    prefix: Prefix | None = None,
    backend: str = "auto",
    return_prefix: bool = False,
):
    """Causal attention whose softmax weights are estimated by FAVOR+ features (arXiv 2009.14794).

    The weight of a pair (i, j) with ``first_key <= j <= i`` is ``phi(q_i) . phi(k_j)``, an unbiased and positive
    estimate of ``exp(scale * q_i . k_j)``; weights are divided by their sum over j. Every causal pair counts: nothing
    is masked, and no weight of a pair is ever held beyond a chunk of 64 tokens.

    Args:
        q: (B, Hq, Nq, D), the last Nq of the Nk positions.
        k: (B, Hkv, Nk, D); Hq is a multiple of Hkv.
        v: (B, Hkv, Nk, Dv).
        projection: (m, D), see ``orthogonal_projection``.
        first_key: (B,) first real key of a left-padded row; None when no row is padded.
        scale: factor of the scores, more than 0; ``1 / sqrt(D)`` when None.
        prefix: the sums over the Nk - Nq earlier keys, which are then not read; None to read those keys.
        backend: ``auto`` and ``linear`` (linear in the length), or ``reference`` (the specification, N x N x m).
        return_prefix: also return the sums over all Nk keys; not of the reference.

    Returns:
        (B, Hq, Nq, Dv), and with ``return_prefix`` a ``Prefix``. A padded query gives 0. Sums are in fp32 (fp64 for
        fp64). Results do not depend on how a text is cut into calls, up to rounding.

    Raises:
        InvalidInput: for arguments that do not fit, shown as they are.
    """
    check_qkv(q, k, v)
    check_first_key(first_key, q.shape[0])
    factor = scale_of(q, scale)
    if not factor > 0:
        raise InvalidInput(f"The scale of the scores is {factor}.", "Features estimate scores of a positive scale.")
    if projection.dim() != 2 or projection.shape[1] != q.shape[3] or not len(projection):
        raise InvalidInput(f"The projection {tuple(projection.shape)} does not fit heads of {q.shape[3]}.")
    if backend not in BACKENDS:
        raise InvalidInput(f"There is no backend {backend!r}.", f"It can be {', '.join(BACKENDS)}.")
    if backend == "reference":
        if prefix is not None or return_prefix:
            raise InvalidInput("The reference keeps no sums.", "backend='linear' does.")
        return performer_reference(q, k, v, projection, first_key=first_key, scale=factor)
    if prefix is not None:
        wanted = (*k.shape[:2], projection.shape[0])
        if prefix.peak.shape != wanted or prefix.sums.shape != (*wanted, v.shape[3] + 1):
            raise InvalidInput(
                f"Sums {tuple(prefix.sums.shape)} do not fit key {tuple(k.shape)}, value {tuple(v.shape)} and "
                f"{projection.shape[0]} features."
            )
    # Autocast would put the sums into 16 bits.
    with torch.autocast(q.device.type, enabled=False):
        out, after = performer_linear(q, k, v, projection, first_key=first_key, scale=factor, prefix=prefix)
    return (out, after) if return_prefix else out
