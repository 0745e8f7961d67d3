"""Parts of speech for tokens: whose tags, to which token a word's tag goes, and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from focus_core import assets, tagging
from focus_core.errors import NotAvailable
from focus_core.tags import UNIVERSAL

PIECE, SPACE = len(UNIVERSAL), len(UNIVERSAL) + 1
"""Kinds beyond the tags: a token that goes on with a word, and one that is white space."""

KINDS = (
    "nouns",
    "verbs",
    "adjectives",
    "adverbs",
    "pronouns",
    "determiners",
    "prepositions",
    "numbers",
    "conjunctions",
    "particles",
    "interjections",
    "punctuation",
    "other words",
    "word pieces",
    "spaces",
)
"""Plain names of the universal tags, in their order, and of the two kinds beyond them."""

RULE = "A word's tag goes to its first piece; later pieces and white space have none."
RULE_ALL = "A word's tag goes to all its pieces; white space has none."


@dataclass(frozen=True)
class Parts:
    """What each token is.

    Attributes:
        tags: (N,) index into ``UNIVERSAL`` of the word that begins in the token; -1 where none does.
        all_pieces: (N,) the same, and later pieces of a word have its tag too.
        kinds: (N,) index into ``KINDS``: the tag, or ``PIECE`` or ``SPACE``; -1 where nothing is known.
        sentence: (N,) number of the sentence, ascending.
        gold: whether people made the tags; else the shipped tagger did.
        source: one sentence about where the tags come from.
    """

    tags: np.ndarray
    all_pieces: np.ndarray
    kinds: np.ndarray
    sentence: np.ndarray
    gold: bool
    source: str

    def of(self, *, pieces: bool) -> np.ndarray:
        """(N,) the tags by the rule that was asked for."""
        return self.all_pieces if pieces else self.tags

    def first(self, count: int) -> Parts:
        """Those of the first ``count`` tokens."""
        arrays = self.tags[:count], self.all_pieces[:count], self.kinds[:count], self.sentence[:count]
        return Parts(*arrays, self.gold, self.source)


def tagged_parts(text: str, spans: np.ndarray, shipped: assets.Text | None = None) -> Parts | None:
    """The parts of speech of a text's tokens: gold tags where the shipped text has them, else the shipped tagger's.

    Args:
        text: the text that the tokens are of.
        spans: (N, 2) bytes of each token.
        shipped: the shipped text of the same name; its tags are used where ``text`` is it or its beginning.

    Returns:
        None when no tags can be had.
    """
    if shipped is not None and shipped.tags is not None and shipped.text.startswith(text):
        words = [(t.byte_start, t.byte_end, t.word, t.universal_tag) for t in shipped.tags]
        gold, source = True, "The tags are the Brown corpus's own, made by people and folded to 13 universal ones."
    else:
        try:
            words = [(w.byte_start, w.byte_end, w.word, w.universal_tag) for w in tagging.tag(text)]
        except NotAvailable:
            return None
        share = 100 * tagging.accuracy()["accuracy_on_running_text"]
        gold, source = False, f"The tags are the shipped tagger's, right for {share:.0f} % of running words in Brown."
    return align(text, spans, words, gold=gold, source=source)


def align(
    text: str, spans: np.ndarray, words: Sequence[tuple[int, int, str, str]], *, gold: bool = False, source: str = ""
) -> Parts:
    """Give the tags of words to tokens by their bytes.

    Args:
        text: the text that tokens and words are of.
        spans: (N, 2) bytes of each token; empty for tokens that are not in the text.
        words: ``(first byte, end byte, word, universal tag)`` in reading order, not overlapping.
        gold: whether people made the tags.
        source: said about them.
    """
    raw, n = text.encode("utf-8"), len(spans)
    begins = np.array([w[0] for w in words], np.int64)
    number = {tag: i for i, tag in enumerate(UNIVERSAL)}
    tag_of = np.array([number[w[3]] for w in words], np.int16)
    sentence_of = _sentences(raw, words)
    tags, pieces = np.full(n, -1, np.int16), np.full(n, -1, np.int16)
    kinds, sentence = np.full(n, -1, np.int16), np.zeros(n, np.int32)
    last = 0
    for t, (begin, end) in enumerate(np.asarray(spans).tolist()):
        piece = raw[begin:end]
        first = begin + len(piece) - len(piece.lstrip(b" \t\r\n\f\v"))
        if first < end:
            w = int(np.searchsorted(begins, first, "right")) - 1
            inside = w >= 0 and words[w][1] > first
            starts = inside and words[w][0] >= begin
            if not starts and w + 1 < len(words) and begins[w + 1] < end:
                # The token goes on with one word and begins another: the new word is what it is tagged by.
                w, inside, starts = w + 1, True, True
            if inside:
                pieces[t], last = tag_of[w], int(sentence_of[w])
                kinds[t] = tag_of[w] if starts else PIECE
            if starts:
                tags[t] = tag_of[w]
        elif end > begin:
            kinds[t] = SPACE
        sentence[t] = last
    return Parts(tags, pieces, kinds, np.maximum.accumulate(sentence), gold, source)


def _sentences(raw: bytes, words: Sequence[tuple[int, int, str, str]]) -> np.ndarray:
    """Sentence of each word: one ends after ``.``, ``!`` or ``?`` and what closes it, and at an empty line."""
    found = np.zeros(len(words), np.int32)
    current, ended = 0, False
    for i, (begin, _, word, _) in enumerate(words):
        gap = raw[words[i - 1][1] : begin] if i else b""
        closes = word in "\"'”’)]''" and not gap.strip() and not gap
        if i and ((ended and not closes) or gap.count(b"\n") > 1):
            current += 1
            ended = False
        found[i] = current
        ended = word in (".", "!", "?") or (ended and closes)
    return found
