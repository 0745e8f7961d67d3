"""Writes tagged Brown tokens as natural text, and keeps the place of each."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int, str]
"""First byte, end byte and Brown tag of one word."""

_CLOSING = {",", ".", ";", ":", "?", "!", ")", "]", "''"}
_OPENING = {"(", "[", "``"}
_DOUBLED = {";", "?", "!"}  # the corpus repeats these where a sentence ends at one
_SHOWN = {"``": '"', "''": '"'}


def sentence_pieces(sentence: Iterable[tuple[str, str]]) -> list[tuple[str, str, bool]]:
    """Return ``(shown word, tag, whether a space stands before it)`` for one sentence."""
    pieces: list[tuple[str, str, bool]] = []
    glue, open_single, previous = False, False, ""
    for word, tag in sentence:
        if (word == previous and word in _DOUBLED) or (word == "." and previous.endswith(".")):
            continue
        closes = word in _CLOSING or (word == "'" and open_single)
        opens = word in _OPENING or (word == "'" and not open_single)
        pieces.append((_SHOWN.get(word, word), tag, not (glue or closes)))
        glue = opens
        if word == "'":
            open_single = not open_single
        previous = word
    return pieces


def split_headlines(paragraph: list[list[tuple[str, str]]]) -> list[list[list[tuple[str, str]]]]:
    """Give a headline (every tag ends in ``-hl``) its own paragraph, unless a dash ties it to the text."""
    blocks: list[list[list[tuple[str, str]]]] = [[]]
    for index, sentence in enumerate(paragraph):
        following = paragraph[index + 1] if index + 1 < len(paragraph) else []
        blocks[-1].append(sentence)
        if following and all(tag.endswith("-hl") for _, tag in sentence) and following[0][0] != "--":
            blocks.append([])
    return blocks


def write(paragraphs: list[list[list[tuple[str, str]]]], start: int = 0) -> tuple[str, list[Span]]:
    """Write paragraphs as text: sentences apart by a space, paragraphs by an empty line.

    Args:
        paragraphs: paragraphs of sentences of ``(word, Brown tag)``.
        start: the byte at which the text will stand in its file.

    Returns:
        The text, which ends in an empty line, and the byte span and tag of every word in it.
    """
    parts: list[str] = []
    spans: list[Span] = []
    place = start
    for paragraph in (block for each in paragraphs for block in split_headlines(each)):
        first = True
        for sentence in paragraph:
            for index, (word, tag, space) in enumerate(sentence_pieces(sentence)):
                gap = " " if space and not (first and index == 0) else ""
                size = len(word.encode())
                place += len(gap)
                spans.append((place, place + size, tag))
                place += size
                parts.append(gap + word)
            first = False
        parts.append("\n\n")
        place += 2
    return "".join(parts), spans
