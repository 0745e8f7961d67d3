"""Longformer as a retrofit: a sliding window and global first tokens (arXiv 2004.05150)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from focus_core.variants.base import option
from focus_core.variants.window import Window


@dataclass(frozen=True)
class Longformer(Window):
    """The published window looks both ways; a causal model has the half that lies behind.

    Global tokens are read by all. That they read all themselves means little where nobody reads later tokens: their
    own projections, which the paper adds as copies of the pretrained ones, would only change what the first tokens
    read of each other, and are left out. So are the dilated windows of some heads, and a window that grows with depth.
    """

    name: ClassVar[str] = "longformer"
    summary: ClassVar[str] = "Longformer: a wide window, and first tokens that every token sees."

    window: int = option(
        256, "Nearest tokens that are always seen, the token itself included: half of the published 512.", minimum=1
    )
    sinks: int = option(16, "Global tokens: the first ones, which every token sees.", minimum=0)
