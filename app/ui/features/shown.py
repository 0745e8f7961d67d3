"""What the page and its tabs draw from: one head of one Trace, how its codes are made, and the picked pair."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from analysis.features.codes import Change, Codes, Head, change
from app.ui.bars import shown as as_read
from app.ui.view import Page
from focus_core.trace import Trace


@dataclass(frozen=True)
class Shown:
    """Everything that is on screen.

    Attributes:
        page: the page.
        trace: whose queries and keys.
        layer, head: which.
        rotary: dimensions that rotate in pairs.
        codes: how codes are made.
        maps: the adapter whose maps come first, or ``none``.
        data: the head.
        query, key: the picked tokens.
    """

    page: Page
    trace: Trace
    layer: int
    head: int
    rotary: int
    codes: Codes
    maps: str
    data: Head
    query: int
    key: int

    @property
    def where(self) -> str:
        """The layer and head in words."""
        return f"layer {self.layer}, head {self.head}"

    def token(self, at: int) -> str:
        """A token as people read it."""
        return as_read(self.trace.tokens[at], 14)

    def change(self) -> Change:
        """What the codes do to the whole head."""
        p = self.trace.provenance
        mark = (p.get("text_hash"), p["model"], p.get("time"), self.layer, self.head, self.maps, self.codes)
        return _change(mark, self.data, self.codes)


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs={Head: lambda _: 0})
def _change(mark: tuple, head: Head, codes: Codes) -> Change:
    return change(head, codes)
