"""What else a token is beside its part of speech: everything that a group might turn out to be about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from focus_core.interpret.parts import KINDS
from focus_core.interpret.sample import Sample
from focus_core.tags import UNIVERSAL

PART_OF_SPEECH = "part of speech"
_LENGTHS = (1, 2, 3, 4, 6, 9)
_NEAR = 64


@dataclass(frozen=True)
class Attribute:
    """One property with a few values.

    Attributes:
        name: of the property. values: plain names of its values.
        codes: (N,) index into ``values`` of each token.
        ranged: names the range from one value to another, both included, where values have an order; else None.
    """

    name: str
    values: tuple[str, ...]
    codes: np.ndarray
    ranged: Callable[[int, int], str] | None = None


def attributes(sample: Sample) -> list[Attribute]:
    """All attributes of a sample's tokens: each token has one value of each."""
    bare = [token.strip() for token in sample.tokens]
    types, tags = sample.types, sample.parts.all_pieces.astype(np.int64)
    white = np.array([not b for b in bare])
    none = len(UNIVERSAL)
    return [
        Attribute(PART_OF_SPEECH, (*KINDS[:none], "white space"), np.where(tags >= 0, tags, none)),
        Attribute("punctuation", ("other tokens", "punctuation"), np.array([int(_is_punctuation(b)) for b in bare])),
        Attribute(
            "capitals",
            ("small letters", "a capital first", "capitals alone", "no letters"),
            np.array([_case(b) for b in bare]),
        ),
        _position(sample),
        _frequency(types),
        _sentence(sample),
        _length(bare),
        _piece(sample, white),
        _repeated(sample, types),
    ]


def _is_punctuation(token: str) -> bool:
    return bool(token) and not any(map(str.isalnum, token))


def _case(token: str) -> int:
    letters = [c for c in token if c.isalpha()]
    if not letters:
        return 3
    if not letters[0].isupper():
        return 0
    return 2 if len(letters) > 1 and all(c.isupper() for c in letters) else 1


def _position(sample: Sample) -> Attribute:
    context = int(sample.position.max()) + 1
    step = max(1, context // 8)
    edges = [0]
    width = 16
    while width < step:
        edges.append(width)
        width *= 2
    edges += [e for e in range(step, context, step) if e > edges[-1]]
    ends = [*edges[1:], context]
    codes = np.searchsorted(edges, sample.position, "right") - 1
    return _ordered("position", codes, len(edges), lambda a, b: f"tokens {edges[a] + 1:,} to {ends[b]:,}")


def _frequency(types: np.ndarray) -> Attribute:
    count = np.bincount(types)[types]
    band = np.floor(np.log2(count)).astype(np.int64)

    def ranged(a: int, b: int) -> str:
        return "words seen once" if b == 0 else f"words seen {2**a:,} to {2 ** (b + 1) - 1:,} times"

    return _ordered("frequency", band, int(band.max()) + 1, ranged)


def _ordered(name: str, codes: np.ndarray, count: int, ranged: Callable[[int, int], str]) -> Attribute:
    return Attribute(name, tuple(ranged(v, v) for v in range(count)), codes, ranged)


def _sentence(sample: Sample) -> Attribute:
    sentence = sample.parts.sentence
    first = np.diff(sentence, prepend=-1) != 0
    last = np.diff(sentence, append=sentence[-1] + 1) != 0
    codes = np.where(first, 1, np.where(np.roll(first, 1), 2, np.where(last, 3, 0)))
    values = "inside a sentence", "a sentence's first token", "a sentence's second token", "a sentence's last token"
    return Attribute("sentence boundary", values, codes)


def _length(bare: list[str]) -> Attribute:
    last = len(_LENGTHS) - 1

    def ranged(a: int, b: int) -> str:
        if b == last:
            return f"{_LENGTHS[a]} characters and more"
        low, high = _LENGTHS[a], _LENGTHS[b + 1] - 1
        return f"{low} to {high} characters" if low != high else f"{low} character{'s' if low != 1 else ''}"

    codes = np.searchsorted(_LENGTHS, [max(1, len(b)) for b in bare], "right") - 1
    return _ordered("token length", codes, len(_LENGTHS), ranged)


def _piece(sample: Sample, white: np.ndarray) -> Attribute:
    key = sample.text.astype(np.int64) * (int(sample.word.max()) + 2) + sample.word
    starts = np.diff(key, prepend=key[0] - 1) != 0
    number = np.cumsum(starts)
    alone = np.bincount(number)[number] == 1
    codes = np.where(white, 3, np.where(alone, 0, np.where(starts, 1, 2)))
    values = "whole words", "first pieces of words", "later pieces of words", "white space"
    return Attribute("word piece", values, codes)


def _repeated(sample: Sample, types: np.ndarray) -> Attribute:
    codes = np.zeros(len(sample), np.int64)
    seen: dict[tuple[int, int], int] = {}
    for i, key in enumerate(zip(sample.window.tolist(), types.tolist(), strict=True)):
        if key in seen:
            codes[i] = 1 if i - seen[key] <= _NEAR else 2
        seen[key] = i
    values = "new in the window", f"seen within {_NEAR} tokens before", f"last seen over {_NEAR} tokens before"
    return Attribute("repeated token", values, codes)
