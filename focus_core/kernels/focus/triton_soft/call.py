"""One call of the soft kernels: its tensors as the kernels take them, and what all launches are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from focus_core.kernels.focus.triton.tiles import dot_precision, padded, scores_of


@dataclass(frozen=True)
class Settings:
    """What a call is told beside its tensors.

    Attributes:
        key_topk: groups of a key; with one, agreement is a sum.
        floor: chance that an ungrouped pair keeps.
        window: keys nearest to the query without a gate, itself included.
        sinks: first real keys without a gate.
        scale: factor of the scores.
        softcap: their soft cap, before the gate, or None.
    """

    key_topk: int
    floor: float
    window: int
    sinks: int
    scale: float
    softcap: float | None


@dataclass(frozen=True)
class Call:
    """Tensors and settings of a call.

    Attributes:
        q: (B, Hq, Nq, D), as ``k`` and ``v`` with the last stride 1.
        k: (B, Hkv, Nk, D).
        v: (B, Hkv, Nk, Dv).
        xq: query memberships (B, R, Nq, KP) from ``packed``.
        xk: key memberships (B, R, Nk, KP) from ``packed``.
        first: (B,) int32 first real key of each row, or None.
        groups: groups that are not padding.
        settings: the rest.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    xq: torch.Tensor
    xk: torch.Tensor
    first: torch.Tensor | None
    groups: int
    settings: Settings

    @property
    def share(self) -> int:
        """Query heads of a key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def size(self) -> float:
        """Absolute factor of the scores' gradient."""
        return max(abs(self.settings.scale), 1e-30)

    @property
    def factors(self) -> tuple[float, ...]:
        """unit, cap_in, cap_out, floor, rest."""
        scores = scores_of(self.settings.scale, self.settings.softcap)
        return scores.unit, scores.cap_in, scores.cap_out, self.settings.floor, 1 - self.settings.floor

    @property
    def sizes(self) -> tuple[int, ...]:
        """queries, keys, heads, routers, window, sinks."""
        keys = self.k.shape[2]
        near = min(self.settings.window, keys), min(self.settings.sinks, keys)
        return self.q.shape[2], keys, self.q.shape[1], self.xk.shape[1], *near

    @property
    def constants(self) -> dict[str, Any]:
        """What the kernels are compiled for, tiles apart."""
        dim, wide = self.q.shape[3], self.v.shape[3]
        return {
            "SHARE": self.share,
            "D": dim,
            "DV": wide,
            "DP": padded(dim),
            "DVP": padded(wide),
            "GROUPS": self.groups,
            "KP": self.xk.shape[3],
            "NEGATIVE": self.settings.scale < 0,
            "CAPPED": self.settings.softcap is not None,
            "PADDED": self.first is not None,
            "PRODUCT": self.settings.key_topk > 1,
            "DOT": dot_precision(self.q.dtype),
        }


def packed(membership: torch.Tensor, key_topk: int, dtype: torch.dtype) -> torch.Tensor:
    """Memberships as the kernels read them: groups padded by 0 to a power of two.

    For 16-bit heads and a sum they are bfloat16, whose error of 0.4 % moves a gate less than the rounding of its
    logarithm would; float16 has too little range for the gradient under a small floor. On a CPU they stay fp32: the
    interpreter has no bfloat16.
    """
    groups = membership.shape[-1]
    exact = key_topk > 1 or dtype == torch.float32 or membership.device.type == "cpu"
    kind = torch.float32 if exact else torch.bfloat16
    return F.pad(membership.detach().to(kind), (0, padded(groups) - groups)).contiguous()
