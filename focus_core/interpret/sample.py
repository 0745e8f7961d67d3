"""The tokens that groups are judged on: windows of one or more texts, one after another, with all that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from focus_core.interpret.parts import Parts
from focus_core.interpret.words import word_type


@dataclass(frozen=True)
class Sample:
    """Tokens of several windows.

    Attributes:
        tokens: (N) the token strings, as shown.
        position: (N,) place in the window, from 0. window: (N,) number of the window. text: (N,) number of the text.
        word: (N,) number of the word in its text, -1 for white space.
        parts: parts of speech; sentences are numbered through all windows.
        sinks: first tokens of a window that all see; they are left out of everything.
    """

    tokens: list[str]
    position: np.ndarray
    window: np.ndarray
    text: np.ndarray
    word: np.ndarray
    parts: Parts
    sinks: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def counted(self) -> np.ndarray:
        """(N,) bool: tokens that groups decide about."""
        return self.position >= self.sinks

    @property
    def types(self) -> np.ndarray:
        """(N,) number of each token's type, from 0; see ``words.word_type``."""
        return np.unique(np.array([word_type(t) for t in self.tokens]), return_inverse=True)[1]


@dataclass(frozen=True)
class Piece:
    """One text's whole windows: what ``join`` takes.

    Attributes:
        tokens: (W * C) strings. word: (W * C,) number of the word. parts: of these tokens.
        context: C, tokens a window.
    """

    tokens: list[str]
    word: np.ndarray
    parts: Parts
    context: int


def join(pieces: Sequence[Piece], sinks: int = 0) -> Sample:
    """Put texts after one another. A sentence that two windows share counts as two."""
    sizes = [len(piece.tokens) for piece in pieces]
    position = np.concatenate([np.arange(n) % p.context for n, p in zip(sizes, pieces, strict=True)])
    window = np.cumsum(position == 0) - 1
    cuts = [np.flatnonzero(np.diff(p.parts.sentence, prepend=-1) != 0) for p in pieces]
    begins = np.zeros(sum(sizes), bool)
    for start, cut in zip(np.cumsum([0, *sizes[:-1]]), cuts, strict=True):
        begins[start + cut] = True
    tags, every, kinds = (
        np.concatenate([getattr(p.parts, name) for p in pieces]) for name in ("tags", "all_pieces", "kinds")
    )
    parts = Parts(
        tags,
        every,
        kinds,
        np.cumsum(begins | (position == 0)) - 1,
        all(p.parts.gold for p in pieces),
        " ".join(dict.fromkeys(p.parts.source for p in pieces)),
    )
    text = np.repeat(np.arange(len(pieces)), sizes)
    return Sample(
        [t for p in pieces for t in p.tokens],
        position,
        window,
        text,
        np.concatenate([p.word for p in pieces]),
        parts,
        sinks,
    )


def members(bits: np.ndarray, groups: int) -> np.ndarray:
    """(..., N) int64 sets as (..., N, groups) bool."""
    return (bits[..., None] >> np.arange(groups, dtype=np.int64)) & 1 != 0
