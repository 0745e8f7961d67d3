"""flash-attn-4's attention over sequences of different length in one buffer."""

from __future__ import annotations

from functools import lru_cache

import torch

from focus_core.kernels.focus.flash.direct import Call, Direct


@lru_cache(maxsize=1)
def _function() -> Direct:
    from flash_attn.cute import flash_attn_varlen_func, interface

    return Direct(flash_attn_varlen_func, getattr(interface, "_flash_attn_fwd", None))


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
    used_q, used_k = used or (None, None)
    return _function()(Call(q, k, v, *cuts, used_q, used_k, scale, softcap or 0.0, True))


_CALLS = 65_535
"""The most tiles of one call: its grid holds no more."""


def attend_tiles(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    used: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of tiles of queries, each over some rows of the keys in a run, all of them.

    Args:
        q: (tiles, rows, share, D).
        k: (key rows, 1, D).
        v: (key rows, 1, Dv).
        start: (tiles + 1,) int32 first key row of each tile; the last entry says nothing.
        used: (tiles,) int32 key rows of each tile; with 0 its result says nothing.
        scale: factor of the scores.
        softcap: soft cap of the scores, or None.

    Returns:
        (tiles, rows, share, Dv) and the natural-log log-sum-exp (tiles, share, rows).
    """
    found = []
    for low in range(0, len(q), _CALLS):
        high = min(low + _CALLS, len(q))
        call = q[low:high], k, v, None, start[low : high + 1], None, used[low:high]
        found.append(_function()(Call(*call, scale, softcap or 0.0, False)))
    if len(found) == 1:
        return found[0]
    return torch.cat([out for out, _ in found]), torch.cat([lse for _, lse in found])
