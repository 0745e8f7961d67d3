"""The public entry of Focus's attention: checks, then one of the backends."""

from __future__ import annotations

import torch

from focus_core.errors import InvalidInput
from focus_core.kernels.checks import check_first_key, check_qkv, check_softcap, scale_of
from focus_core.kernels.dense import dense_attention
from focus_core.kernels.focus.choose import choose_backend
from focus_core.kernels.focus.chunked import focus_chunked
from focus_core.kernels.focus.cpu import focus_cpu
from focus_core.kernels.focus.flash import focus_flash
from focus_core.kernels.focus.reference import focus_reference
from focus_core.kernels.focus.triton import focus_triton

BACKENDS = ("auto", "reference", "chunked", "cpu", "triton", "flash")
_KERNELS = {"reference": focus_reference, "chunked": focus_chunked, "cpu": focus_cpu}


def focus_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_bits: torch.Tensor,
    key_bits: torch.Tensor,
    *,
    window: int,
    sinks: int = 0,
    first_key: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
    members: tuple[int, int] | None = None,
    equal: bool = False,
):
    """Attention over a window, a few first tokens, and the tokens that share a group.

    Pair (i, j) is kept iff ``first_key <= j <= i`` and (``i - j < window`` or ``j - first_key < sinks`` or
    ``query_bits[i] & key_bits[j] != 0``).

    Args:
        q: (B, Hq, Nq, D), the last Nq of the Nk positions (bottom-right causal).
        k: (B, Hkv, Nk, D); Hq is a multiple of Hkv.
        v: (B, Hkv, Nk, Dv).
        query_bits: (B, R, Nq) int64 group sets, R = 1 (all heads share) or Hkv (one router a KV head).
        key_bits: (B, R, Nk) int64 group sets.
        window: keys nearest to the query that are always kept, itself included (1 keeps only itself).
        sinks: first real keys that are always kept.
        first_key: (B,) first real key of a left-padded row; None when no row is padded.
        scale: factor of the scores; ``1 / sqrt(D)`` when None.
        softcap: soft cap of the scores, before masking and the log-sum-exp; None for none.
        backend: ``auto`` (see ``choose_backend``), ``reference`` (the specification), ``chunked`` (masked, any device),
            ``cpu`` (does only the kept work), ``triton`` (the same on a GPU; forward only) or ``flash`` (the same with
            flash-attn-4 in the groups; a pair may share one group).
        return_lse: also return the natural-log log-sum-exp.
        members: the most groups of a query and of a key, where known: the GPU backends then need not wait for the
            GPU to tell. Where a set holds more, every output is NaN; (0, 0) says that no token has a group.
        equal: the set of every query is that of the key at its position, where known; the same memory for both says so
            too. The flash backend is then faster where a token is in one group, and gives NaN where it does not hold.

    Returns:
        (B, Hq, Nq, Dv), and with ``return_lse`` (B, Hq, Nq) in fp32 (fp64 for fp64). A padded query gives 0 and -inf.

    Raises:
        InvalidInput: for arguments that do not fit, shown as they are.
        NotAvailable: for a backend that is not on this machine.
        Unsupported: for a call that the triton or flash backend does not serve, with the reason.
    """
    check_qkv(q, k, v)
    check_first_key(first_key, q.shape[0])
    check_softcap(softcap)
    _check_groups(q, k, query_bits, key_bits, window, sinks)
    _check_members(members)
    if backend not in BACKENDS:
        raise InvalidInput(f"There is no backend {backend!r}.", f"It can be {', '.join(BACKENDS)}.")
    name = backend
    if backend == "auto":
        name = choose_backend(
            q, k, query_bits, key_bits, window=window, sinks=sinks, members=members, equal=equal
        ).backend
    if name == "dense":
        return dense_attention(q, k, v, first_key=first_key, scale=scale, softcap=softcap, return_lse=return_lse)
    arguments = {"window": window, "sinks": sinks, "first_key": first_key, "scale": scale_of(q, scale)}
    arguments |= {"softcap": softcap, "return_lse": return_lse}
    if name == "triton":
        return focus_triton(q, k, v, query_bits, key_bits, members=members, **arguments)
    if name == "flash":
        return focus_flash(q, k, v, query_bits, key_bits, members=members, equal=equal, **arguments)
    return _KERNELS[name](q, k, v, query_bits, key_bits, **arguments)


def _check_members(members: tuple[int, int] | None) -> None:
    if members is not None and not all(0 <= most <= 64 for most in members):
        raise InvalidInput(f"members is {members}.", "A token is in 0 to 64 groups.")


def _check_groups(q, k, query_bits, key_bits, window: int, sinks: int) -> None:
    batch, kv_heads = k.shape[:2]
    shapes = (
        f"query {tuple(q.shape)}, key {tuple(k.shape)}, query_bits {tuple(query_bits.shape)}, "
        f"key_bits {tuple(key_bits.shape)}"
    )
    if query_bits.dtype != torch.int64 or key_bits.dtype != torch.int64:
        raise InvalidInput(f"Group sets must be int64, not {query_bits.dtype} and {key_bits.dtype}.")
    if query_bits.dim() != 3 or key_bits.dim() != 3:
        raise InvalidInput(f"Group sets must be (batch, routers, tokens): {shapes}.")
    routers = key_bits.shape[1]
    if query_bits.shape != (batch, routers, q.shape[2]) or key_bits.shape != (batch, routers, k.shape[2]):
        raise InvalidInput(f"Group sets do not fit query and key: {shapes}.")
    if routers not in (1, kv_heads):
        raise InvalidInput(
            f"{routers} routers cannot serve {kv_heads} key heads: {shapes}.", "Use 1 or one a key head."
        )
    if not (query_bits.device == key_bits.device == q.device):
        raise InvalidInput(f"Group sets are on {query_bits.device} and {key_bits.device}, query on {q.device}.")
    if window < 1:
        raise InvalidInput(f"window is {window}.", "It counts the token itself, so it is at least 1.")
    if sinks < 0:
        raise InvalidInput(f"sinks is {sinks}.", "It can be 0 or more.")
