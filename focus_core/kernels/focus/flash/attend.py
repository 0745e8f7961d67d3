"""flash-attn-4's attention over sequences of different length in one buffer."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch


@lru_cache(maxsize=1)
def _function() -> Any:
    from flash_attn.cute import flash_attn_varlen_func

    return flash_attn_varlen_func


def attend_groups(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cuts: tuple[torch.Tensor, torch.Tensor],
    used: tuple[torch.Tensor, torch.Tensor] | None,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention within each segment; the queries of a segment are the last ones of its tokens.

    Lengths stay on the GPU: without bounds given, flash-attn-4 sizes its grid by the number of rows.

    Args:
        q: (rows, Hq, D).
        k: (key rows, Hkv, D).
        v: (key rows, Hkv, Dv).
        cuts: (segments + 1,) int32 first row of each segment, of queries and of keys.
        used: (segments,) int32 rows of each segment, where segments do not end where the next one starts.
        scale: factor of the scores.
        softcap: soft cap of the scores, or None.

    Returns:
        (rows, Hq, Dv) and the natural-log log-sum-exp (Hq, rows); nothing in rows of no segment.
    """
    out, lse = _function()(
        q, k, v, cu_seqlens_q=cuts[0], cu_seqlens_k=cuts[1],
        seqused_q=None if used is None else used[0], seqused_k=None if used is None else used[1],
        softmax_scale=scale, causal=True, softcap=softcap or 0.0, return_lse=True,
    )  # fmt: skip
    return out, lse
