"""Figures of every head's dense attention, exact for sampled queries, whose N x N matrix never exists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from focus_core.pattern import Pattern

if TYPE_CHECKING:
    import torch

MAX_SAMPLED = 256
SINK_TOKENS = 4
"""First tokens whose attention is called the sink's."""
NEAR_KEYS, FAR_BLOCKS, PROFILE_ROWS = 32, 32, 64
SIMILAR_HOW = (
    f"cosine of the dense attention of at most {PROFILE_ROWS} evenly spaced queries: their {NEAR_KEYS} nearest keys "
    f"one by one, all others summed in {FAR_BLOCKS} blocks"
)


@dataclass(frozen=True)
class HeadStatistics:
    """One layer's figures, means over the sampled queries.

    Attributes:
        mass_kept: (Hq,) float64, dense mass that the pattern keeps.
        entropy: (Hq,) float64, nats.
        sink_mass: (Hq,) float64, dense mass on the first ``SINK_TOKENS`` tokens.
        profile: (Hq, F) float32 of length 1, what heads are compared by (see ``SIMILAR_HOW``).
    """

    mass_kept: np.ndarray
    entropy: np.ndarray
    sink_mass: np.ndarray
    profile: np.ndarray


def sampled_rows(tokens: int, most: int = MAX_SAMPLED) -> slice:
    """At most so many evenly spaced queries, the last one among them."""
    step = -(-tokens // most)
    return slice((tokens - 1) % step, tokens, step)


def head_statistics(
    query: torch.Tensor,
    key: torch.Tensor,
    pattern: Pattern,
    scale: float,
    rows: slice,
    *,
    softcap: float | None = None,
    window: int | None = None,
) -> HeadStatistics:
    """Dense attention of the queries ``rows``, head by head.

    Args:
        query: (Hq, N, D) fp32.
        key: (Hkv, N, D) fp32.
        pattern: what is kept of the same heads and tokens.
        scale: factor of the scores.
        rows: which queries.
        softcap: applied to the scores before the mask; None when the model has none.
        window: the layer's own window: dense attention sees no further.
    """
    import torch

    heads, count = query.shape[:2]
    share = heads // key.shape[0]
    i = torch.arange(count, device=query.device)[rows][:, None]
    j = torch.arange(count, device=query.device)[None, :]
    hidden = j > i if window is None else (j > i) | (i - j >= window)
    profile = _Profile(i, count)
    kept, entropy, sink = np.zeros(heads), np.zeros(heads), np.zeros(heads)
    profiles, tiles = [], {}
    for head in range(heads):
        router = pattern.router_of(head)
        if router not in tiles:
            dropped = ~torch.from_numpy(pattern.tile(0, head, rows, slice(0, count))).to(query.device)
            tiles = {router: dropped}
        scores = query[head, rows] @ key[head // share].T * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        log_mass = scores.masked_fill_(hidden, -torch.inf).log_softmax(-1)
        mass = log_mass.exp()
        # A hidden key's mass is 0, and 0 * -inf is not a number.
        entropy[head] = -(mass * log_mass.masked_fill_(hidden, 0.0)).sum(-1).double().mean().item()
        sink[head] = mass[:, :SINK_TOKENS].sum(-1).double().mean().item()
        profiles.append(profile.of(mass))
        kept[head] = mass.masked_fill_(tiles[router], 0.0).sum(-1).double().mean().item()
    return HeadStatistics(np.minimum(kept, 1.0), entropy, np.minimum(sink, 1.0), torch.stack(profiles).cpu().numpy())


class _Profile:
    """Pools a head's attention: the nearest keys one by one, so that diagonals stay apart, the rest in blocks."""

    def __init__(self, queries: torch.Tensor, count: int) -> None:
        import torch

        self._rows = sampled_rows(len(queries), PROFILE_ROWS)
        i = queries[self._rows]
        back = i - torch.arange(NEAR_KEYS, device=i.device)[None, :]
        self._near, self._absent = back.clamp(min=0), back < 0
        self._is_near = i - torch.arange(count, device=i.device)[None, :] < NEAR_KEYS
        block = -(-count // FAR_BLOCKS)
        self._pad = FAR_BLOCKS * block - count

    def of(self, mass: torch.Tensor) -> torch.Tensor:
        """(F,) of length 1 from the attention (queries, N) of one head."""
        import torch

        mass = mass[self._rows]
        near = mass.gather(1, self._near).masked_fill_(self._absent, 0.0)
        far = torch.nn.functional.pad(mass.masked_fill(self._is_near, 0.0), (0, self._pad))
        pooled = far.view(len(mass), FAR_BLOCKS, -1).sum(-1)
        return torch.nn.functional.normalize(torch.cat([near, pooled], 1).flatten(), dim=0)
