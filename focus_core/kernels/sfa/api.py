"""The public entry of SFA: checks, selection, then one of the backends."""

from __future__ import annotations

import torch

from focus_core.errors import InvalidInput, NotAvailable, Unsupported
from focus_core.kernels.checks import check_first_key, check_qkv, check_softcap, scale_of
from focus_core.kernels.focus.triton import machine_refusal
from focus_core.kernels.sfa.codes import Codes, check_selection, encode, sparsify, top_features
from focus_core.kernels.sfa.cpu import DECODE_QUERIES, sfa_from_codes, sfa_scattered
from focus_core.kernels.sfa.reference import sfa_reference
from focus_core.kernels.sfa.tiled import sfa_tiled
from focus_core.kernels.sfa.triton_applies import sfa_triton_refusal

BACKENDS = ("auto", "reference", "tiled", "scatter", "codes", "triton", "flash")
SPARSE = ("both", "keys")
NO_OVERLAP = ("zero", "exclude")


def sfa_attention(
    q: torch.Tensor,
    k: torch.Tensor | Codes,
    v: torch.Tensor,
    *,
    features: int,
    sparse: str = "both",
    select: str = "features",
    no_overlap: str = "zero",
    leak: bool = False,
    first_key: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
):
    """Causal attention whose queries and keys keep their top features alone (arXiv 2603.22300).

    Args:
        q: (B, Hq, Nq, D) dense, the last Nq of the Nk positions (bottom-right causal).
        k: (B, Hkv, Nk, D) dense, or their codes. Each KV head has its own support, and each query head.
        v: (B, Hkv, Nk, Dv), dense.
        features: how many of the D features survive.
        sparse: ``both`` queries and keys, or ``keys`` alone.
        select: how they are chosen, of ``SELECTIONS``.
        no_overlap: ``zero`` gives a pair without a shared feature the score 0, as the paper's algorithm does;
            ``exclude`` drops it, as its appendix can be read.
        leak: see ``sparsify``.
        first_key: (B,) first real key of a left-padded row; None when no row is padded.
        scale: factor of the scores; ``1 / sqrt(D)`` of the FULL head size when None.
        softcap: soft cap of the scores, before masking; None for none.
        backend: ``auto``, ``reference`` (the specification), ``tiled`` (FlashSFA's algorithm, in plain loops),
            ``scatter`` (dense work on the codes, any device and length), ``codes`` (reads the codes alone) or
            ``triton`` (the same on a GPU, for a few queries; forward only).
        return_lse: also return the natural-log log-sum-exp.

    Returns:
        (B, Hq, Nq, Dv), and with ``return_lse`` (B, Hq, Nq) in fp32 (fp64 for fp64). A query with nothing to attend
        to gives 0 and -inf.

    Raises:
        InvalidInput: for arguments that do not fit, shown as they are.
        NotAvailable: for a backend that is not on this machine.
        Unsupported: for a call that the triton backend does not serve, with the reason.
    """
    coded = isinstance(k, Codes)
    if coded:
        shape = k.values
        if k.values.shape[-1] != features or k.select != select:
            raise InvalidInput(
                f"The keys' codes hold {k.values.shape[-1]} {k.select}, and {features} {select} are asked for."
            )
        check_qkv(q, shape.new_empty(1).expand(*shape.shape[:-1], k.dim), v)
    else:
        check_qkv(q, k, v)
    check_first_key(first_key, q.shape[0])
    check_softcap(softcap)
    check_selection(q.shape[-1], features, select)
    for name, value, allowed in (
        ("backend", backend, BACKENDS),
        ("sparse", sparse, SPARSE),
        ("no_overlap", no_overlap, NO_OVERLAP),
    ):
        if value not in allowed:
            raise InvalidInput(f"There is no {name} {value!r}.", f"It can be {', '.join(allowed)}.")
    tensors = (q, k.values if isinstance(k, Codes) else k, v)
    training = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if backend == "auto":
        few = q.shape[2] <= DECODE_QUERIES and not training
        backend = "codes" if few and q.device.type == "cpu" else "scatter"
        if few and coded and q.device.type == "cuda" and sfa_triton_refusal(q, k, v, select) is None:
            backend = "triton"
    if backend == "flash":
        raise NotAvailable("The flash backend of sfa_attention is not in this build.", "backend='auto' works.")
    if backend in ("tiled", "codes") and training:
        raise InvalidInput(f"The {backend} backend of sfa_attention has no backward.", "backend='auto' trains.")

    shared = {"exclude": no_overlap == "exclude", "first_key": first_key, "softcap": softcap}
    shared["scale"] = scale_of(q, scale)
    if backend == "triton":
        return _by_triton(q, k, v, features, sparse, select, return_lse=return_lse, **shared)
    query_support = _support(q, features, select) if sparse == "both" else torch.ones_like(q, dtype=torch.bool)
    if backend in ("reference", "tiled"):
        key_support = k.support() if coded else _support(k, features, select)
        compute = sfa_reference if backend == "reference" else sfa_tiled
        out, lse = compute(q, k.dense() if coded else k, v, query_support, key_support, **shared)
        return (out, lse) if return_lse else out
    # With a leak the values are the same, and the gradient goes around the support.
    thin = _sparse(q, features, select, leak) if sparse == "both" else q
    if backend == "codes":
        codes = k if coded else encode(k, features, select)
        return sfa_from_codes(thin, codes, v, query_support, return_lse=return_lse, **shared)
    keys = k.dense() if coded else _sparse(k, features, select, leak)
    key_support = torch.empty(0)
    if shared["exclude"]:
        key_support = k.support() if coded else _support(k, features, select)
    return sfa_scattered(thin, keys, v, query_support, key_support, return_lse=return_lse, **shared)


def _by_triton(q, k, v, features: int, sparse: str, select: str, **shared):
    reason = sfa_triton_refusal(q, k, v, select)
    if reason is not None:
        problem = NotAvailable if machine_refusal(q.device) is not None else Unsupported
        raise problem(reason, "backend='auto' works.")
    from focus_core.kernels.sfa.triton_decode import sfa_decode

    codes = k if isinstance(k, Codes) else encode(k, features, select)
    if sparse == "keys":
        return sfa_decode(q, codes, v, None, choose=None, **shared)
    if select == "features":
        return sfa_decode(q, codes, v, None, choose=features, **shared)
    return sfa_decode(
        _sparse(q, features, select, False), codes, v, _support(q, features, select), choose=None, **shared
    )


def _sparse(x: torch.Tensor, features: int, select: str, leak: bool) -> torch.Tensor:
    """``sparsify``, by one kernel where nothing but the values is needed and a GPU is there."""
    served = select == "features" and x.dtype in (torch.float16, torch.bfloat16, torch.float32)
    if not x.is_cuda or not served or (torch.is_grad_enabled() and x.requires_grad):
        return sparsify(x, features, select, leak=leak)
    if machine_refusal(x.device) is not None:
        return sparsify(x, features, select, leak=leak)
    from focus_core.kernels.sfa.triton_thin import thin

    return thin(x, features)


def _support(x: torch.Tensor, features: int, select: str) -> torch.Tensor:
    kept = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    return kept.scatter_(-1, top_features(x, features, select), True)
