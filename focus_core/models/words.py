"""Divides a text into words by Unicode's categories: no language model, no dictionary."""

from __future__ import annotations

import functools
import unicodedata

import numpy as np

JOINERS = "\u200c\u200d"
INSIDE_WORDS = "'’·"
INSIDE_NUMBERS = ".,"


def word_of_byte(text: str) -> np.ndarray:
    """The word that each byte of a text belongs to.

    Letters, digits and their marks up to the next white space or punctuation are a word; an apostrophe between
    letters and a point between digits do not end it. Every Han character is a word, and so are runs of hiragana, runs
    of katakana, runs of one punctuation mark, and an emoji with all that joins to it.

    Returns:
        (bytes,) int32 indices that count from 0, -1 for white space.
    """
    words = np.empty(len(text), np.int32)
    current, last, previous = -1, "space", ""
    joined = flag = False
    for i, c in enumerate(text):
        kind = _kind(c)
        following = _kind(text[i + 1]) if i + 1 < len(text) else "space"
        if kind == "space":
            words[i] = -1
            last, previous, joined, flag = kind, c, False, False
            continue
        if kind == "attached":
            goes_on = last != "space"
        elif kind == "flag":
            goes_on = flag
            flag = last != "flag" or not flag
        elif kind == "other":
            inside = last == following == "letter" and (c in INSIDE_WORDS or _number(previous, c, text[i + 1]))
            repeats = last == "other" and c == previous and unicodedata.category(c) != "So"
            goes_on = joined or inside or repeats
            if inside:
                kind = "letter"
        else:
            goes_on = joined or (kind == last and kind != "han")
        if not goes_on:
            current += 1
        words[i] = current
        joined = c in JOINERS and last == "other"
        if kind != "attached" or last == "space":
            last, previous = kind, c
    lengths = np.fromiter((len(c.encode()) for c in text), np.int64, len(text))
    return np.repeat(words, lengths)


def _number(before: str, point: str, after: str) -> bool:
    return point in INSIDE_NUMBERS and before.isdigit() and after.isdigit()


@functools.lru_cache(maxsize=4096)
def _kind(c: str) -> str:
    if c.isspace():
        return "space"
    code = ord(c)
    if c in JOINERS or 0x1F3FB <= code <= 0x1F3FF or 0xE0020 <= code <= 0xE007F:
        return "attached"
    category = unicodedata.category(c)
    if category[0] == "M":
        return "attached"
    if 0x1F1E6 <= code <= 0x1F1FF:
        return "flag"
    if code in (0x3005, 0x3007) or unicodedata.name(c, "").startswith("CJK "):
        return "han" if category[0] in "LN" else "other"
    if 0x3041 <= code <= 0x309F:
        return "hiragana"
    if 0x30A1 <= code <= 0x30FF and c != "・":
        return "katakana"
    return "letter" if category[0] in "LN" or category == "Pc" else "other"
