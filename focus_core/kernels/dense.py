"""Dense causal attention, optionally in a sliding window: torch's fused kernel wherever it is exact."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from focus_core.errors import InvalidInput
from focus_core.kernels.checks import check_first_key, check_qkv, check_softcap, scale_of
from focus_core.kernels.masked import causal_tile, masked_attention


def dense_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    window: int | None = None,
    first_key: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
):
    """Causal attention over all pairs, or over those of a sliding window.

    Pair (i, j) is kept iff ``first_key <= j <= i`` and ``i - j < window``.

    Args:
        q: (B, Hq, Nq, D), the last Nq of the Nk positions (bottom-right causal).
        k: (B, Hkv, Nk, D); Hq is a multiple of Hkv.
        v: (B, Hkv, Nk, Dv).
        window: keys nearest to the query that are kept, itself included; None keeps all.
        first_key: (B,) first real key of a left-padded row; None when no row is padded.
        scale: factor of the scores; ``1 / sqrt(D)`` when None.
        softcap: soft cap of the scores, before masking; None for none.
        return_lse: also return the natural-log log-sum-exp.

    Returns:
        (B, Hq, Nq, Dv), and with ``return_lse`` (B, Hq, Nq) in fp32 (fp64 for fp64). A padded query gives 0 and -inf.

    Raises:
        InvalidInput: for shapes that do not fit, shown as they are.
    """
    check_qkv(q, k, v)
    check_first_key(first_key, q.shape[0])
    check_softcap(softcap)
    if window is not None and window < 1:
        raise InvalidInput(f"window is {window}.", "It counts the token itself, so it is at least 1.")
    queries, keys, factor = q.shape[2], k.shape[2], scale_of(q, scale)
    if window is not None and window >= keys:
        window = None
    if window is None and first_key is None and softcap is None and not return_lse and queries in (1, keys):
        return F.scaled_dot_product_attention(q, k, v, is_causal=queries > 1, scale=factor, enable_gqa=True)

    def keep(start: int, stop: int, last: int) -> torch.Tensor:
        distance, _, causal = causal_tile(start, stop, last, keys, queries, first_key, q.device)
        return causal if window is None else causal & (distance < window)

    return masked_attention(q, k, v, keep, scale=factor, softcap=softcap, return_lse=return_lse)
