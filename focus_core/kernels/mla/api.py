"""The public entry of MLA: checks, then one of its forms."""

from __future__ import annotations

import torch

from focus_core.errors import InvalidInput, NotAvailable, Unsupported
from focus_core.kernels.checks import check_first_key, check_softcap, scale_of
from focus_core.kernels.focus.triton import machine_refusal
from focus_core.kernels.mla.forms import mla_absorbed, mla_naive
from focus_core.kernels.mla.reference import mla_reference
from focus_core.kernels.mla.triton_applies import mla_triton_refusal
from focus_core.kernels.sizes import absorbs

FORMS = ("auto", "naive", "absorbed")
BACKENDS = ("auto", "reference", "cpu", "triton", "flash")


def mla_attention(
    q: torch.Tensor,
    latent: torch.Tensor,
    k_rope: torch.Tensor,
    up_k: torch.Tensor,
    up_v: torch.Tensor,
    *,
    bias_k: torch.Tensor | None = None,
    bias_v: torch.Tensor | None = None,
    first_key: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    form: str = "auto",
    backend: str = "auto",
    return_lse: bool = False,
):
    """Causal multi-head latent attention over what its cache holds (arXiv 2405.04434, section 2.1 and appendix C).

    Keys are ``[W_UK c + b_K; k_R]`` and values ``W_UV c + b_V``, with one latent c a token for all heads.

    Args:
        q: (B, H, Nq, Dn + Dr), ``[q_C; q_R]``, the last Nq of the Nk positions (bottom-right causal); q_R is rotated.
        latent: (B, 1, Nk, r), normalised where the model normalises it.
        k_rope: (B, Hr, Nk, Dr), rotated; Hr is 1 where all heads share it, and divides Hu. Dr may be 0.
        up_k: (Hu, Dn, r), W_UK a head; Hu divides H.
        up_v: (Hu, Dv, r), W_UV.
        bias_k: (Hu, Dn), or None for none.
        bias_v: (Hu, Dv), or None for none.
        first_key: (B,) first real key of a left-padded row; None when no row is padded.
        scale: factor of the scores; ``1 / sqrt(Dn + Dr)`` when None.
        softcap: soft cap of the scores, before masking; None for none.
        form: ``naive`` makes keys and values, ``absorbed`` folds W_UK and W_UV into queries and outputs; both are the
            same numbers up to rounding. ``auto`` takes the one with fewer operations.
        backend: ``cpu`` (plain torch, any device, in stripes), ``reference`` (the specification), ``triton`` (the
            absorbed form for a few queries on a GPU; forward only) or ``auto``.
        return_lse: also return the natural-log log-sum-exp.

    Returns:
        (B, H, Nq, Dv), and with ``return_lse`` (B, H, Nq) in fp32 (fp64 for fp64). A padded query gives 0 and -inf.

    Raises:
        InvalidInput: for arguments that do not fit, shown as they are.
        NotAvailable: for a backend that is not on this machine.
        Unsupported: for a call that the triton backend does not serve, with the reason.
    """
    _check(q, latent, k_rope, up_k, up_v, bias_k, bias_v)
    check_first_key(first_key, q.shape[0])
    check_softcap(softcap)
    for name, value, allowed in (("form", form, FORMS), ("backend", backend, BACKENDS)):
        if value not in allowed:
            raise InvalidInput(f"There is no {name} {value!r}.", f"It can be {', '.join(allowed)}.")
    if backend == "flash":
        raise NotAvailable("The flash backend of mla_attention is not in this build.", "backend='auto' works.")
    shared = {"bias_k": bias_k, "bias_v": bias_v, "first_key": first_key, "softcap": softcap}
    shared["scale"] = scale_of(q, scale)
    if backend == "reference":
        out, lse = mla_reference(q, latent, k_rope, up_k, up_v, **shared)
        return (out, lse) if return_lse else out
    if form == "auto" and backend == "triton":
        form = "absorbed"
    if form == "auto":
        heads, nope, rank = up_k.shape
        sizes = {"heads": q.shape[1], "up_heads": heads, "nope": nope, "rank": rank}
        sizes |= {"rope": k_rope.shape[3], "value": up_v.shape[1]}
        form = "absorbed" if absorbs(queries=q.shape[2], keys=latent.shape[2], **sizes) else "naive"
    refusal = mla_triton_refusal(q, latent, k_rope, up_k, up_v, bias_k, bias_v)
    if backend == "triton":
        if form == "naive":
            raise Unsupported("The triton backend computes the absorbed form.", "backend='auto' works.")
        if refusal is not None:
            problem = NotAvailable if machine_refusal(q.device) is not None else Unsupported
            raise problem(refusal, "backend='auto' works.")
    compute = mla_naive if form == "naive" else mla_absorbed
    if backend == "triton" or (backend == "auto" and form == "absorbed" and q.is_cuda and refusal is None):
        from focus_core.kernels.mla.triton_decode import mla_decode

        compute = mla_decode
    return compute(q, latent, k_rope, up_k, up_v, return_lse=return_lse, **shared)


def _check(q, latent, k_rope, up_k, up_v, bias_k, bias_v) -> None:
    shapes = (
        f"query {tuple(q.shape)}, latent {tuple(latent.shape)}, rotated key {tuple(k_rope.shape)}, "
        f"W_UK {tuple(up_k.shape)}, W_UV {tuple(up_v.shape)}"
    )
    if not (q.dim() == latent.dim() == k_rope.dim() == 4 and up_k.dim() == up_v.dim() == 3):
        raise InvalidInput(f"MLA needs (batch, heads, tokens, dim) tensors and (heads, dim, rank) weights: {shapes}.")
    if latent.shape[1] != 1 or not q.shape[0] == latent.shape[0] == k_rope.shape[0]:
        raise InvalidInput(f"MLA needs one latent a token and equal batch sizes: {shapes}.")
    if latent.shape[2] != k_rope.shape[2] or not 1 <= q.shape[2] <= latent.shape[2]:
        raise InvalidInput(
            f"Latent and rotated key need one entry a token, and queries are the last of them: {shapes}."
        )
    if up_k.shape[0] != up_v.shape[0] or not up_k.shape[2] == up_v.shape[2] == latent.shape[3]:
        raise InvalidInput(f"W_UK and W_UV need equal heads and the latent's size: {shapes}.")
    if not up_k.shape[0] or q.shape[1] % up_k.shape[0] or up_k.shape[0] % max(1, k_rope.shape[1]):
        raise InvalidInput(f"Query heads cannot share the heads of W_UK, or those the rotated keys, evenly: {shapes}.")
    if q.shape[3] != up_k.shape[1] + k_rope.shape[3]:
        raise InvalidInput(f"A query needs {up_k.shape[1]} + {k_rope.shape[3]} dimensions: {shapes}.")
    for name, bias, weight in (("b_K", bias_k, up_k), ("b_V", bias_v, up_v)):
        if bias is not None and bias.shape != weight.shape[:2]:
            raise InvalidInput(f"{name} must be {tuple(weight.shape[:2])}, not {tuple(bias.shape)}.")
    kinds = {x.dtype for x in (q, latent, k_rope, up_k, up_v, bias_k, bias_v) if x is not None}
    if len(kinds) > 1 or not q.is_floating_point():
        raise InvalidInput(f"MLA needs one float type, not {', '.join(sorted(map(str, kinds)))}.")
