"""Part-of-speech tags for any English text, from a tagger that ships with the project.

The tagger is NLTK's averaged perceptron (Honnibal 2013; ``nltk.tag.perceptron``), trained on the Brown
corpus by ``data/build/tagger.py``. Texts that come with tags made by hand need none of this:
``focus_core.assets.load_text(name).tags``.
"""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from typing import Any, NamedTuple, Protocol

from focus_core.assets import DATA
from focus_core.errors import NotAvailable

MODEL_FILE = DATA / "tagger" / "brown_universal.json.gz"
WEIGHT_SCALE = 100
"""Weights are stored as whole numbers of 1/100."""

_ABBREVIATIONS = (
    " mr mrs ms dr prof rev hon st jr sr gen col capt lt sgt gov sen rep pres atty messrs mme mlle esq"
    " jan feb mar apr jun jul aug sep sept oct nov dec no vol pp ed eds fig inc co corp ltd dept univ"
    " vs etc al e.g i.e cf viz ca ave blvd rd a.m p.m u.s u.n u.k d.c b.c a.d ph.d ala calif mass pa va "
)
_TOKEN = re.compile(
    r"""
    \$?\d[\d,.:/]*\d%?(?:st|nd|rd|th|s)?(?:-\w+)*   # numbers: 1,200.50  8:30  25th  $3  30-year
  | \$?\d%?(?:st|nd|rd|th|s)?(?:-\w+)*
  | (?:[^\W\d_]\.){2,}                              # U.S.  J.D.
  | [^\W_]+(?:['’\-&][^\W_]+)*(?:(?<=s)['’](?=\s))?      # words, don't, well-known
  | --+ | \.\.+ | —|–
  | \S
    """,
    re.VERBOSE,
)
_END = {".", "!", "?"}


class SentenceTagger(Protocol):
    """What tags one sentence: the shipped tagger, or NLTK's."""

    def tag(self, words: list[str]) -> list[tuple[str, str]]:
        """``(word, tag)`` of every word."""


class Tagger:
    """The shipped weights and NLTK's rule for using them, without importing NLTK, which takes over a second.

    A test holds it against ``nltk.tag.perceptron.PerceptronTagger``.
    """

    _START, _END = ("-START-", "-START2-"), ("-END-", "-END2-")

    def __init__(self, document: dict[str, Any]) -> None:
        """Take the shipped form: class numbers and whole-number weights."""
        self.classes: list[str] = document["classes"]
        self.weights: dict[str, list[int]] = document["weights"]
        self.known = {word: tag for tag, listed in document["known_words"].items() for word in listed}

    def tag(self, words: list[str]) -> list[tuple[str, str]]:
        """Tag one sentence."""
        context = [*self._START, *map(self._normal, words), *self._END]
        before, two_before = self._START
        tagged = []
        for i, word in enumerate(words):
            tag = self.known.get(word) or self._predict(word, context, i + 2, before, two_before)
            tagged.append((word, tag))
            before, two_before = tag, before
        return tagged

    def _predict(self, word: str, context: list[str], i: int, before: str, two_before: str) -> str:
        scores = [0] * len(self.classes)
        for feature in (
            "bias",
            f"i suffix {word[-3:]}",
            f"i pref1 {word[:1]}",
            f"i-1 tag {before}",
            f"i-2 tag {two_before}",
            f"i tag+i-2 tag {before} {two_before}",
            f"i word {context[i]}",
            f"i-1 tag+i word {before} {context[i]}",
            f"i-1 word {context[i - 1]}",
            f"i-1 suffix {context[i - 1][-3:]}",
            f"i-2 word {context[i - 2]}",
            f"i+1 word {context[i + 1]}",
            f"i+1 suffix {context[i + 1][-3:]}",
            f"i+2 word {context[i + 2]}",
        ):
            pairs = self.weights.get(feature, ())
            for c, weight in zip(pairs[::2], pairs[1::2], strict=True):
                scores[c] += weight
        return max(zip(scores, self.classes, strict=True))[1]

    @staticmethod
    def _normal(word: str) -> str:
        if "-" in word and word[0] != "-":
            return "!HYPHEN"
        if word.isdigit() and len(word) == 4:
            return "!YEAR"
        return "!DIGITS" if word[:1].isdigit() else word.lower()


class TaggedWord(NamedTuple):
    """One word: its bytes in the UTF-8 text, the word, and its universal tag."""

    byte_start: int
    byte_end: int
    word: str
    universal_tag: str


def split_words(text: str) -> list[list[tuple[int, int, str]]]:
    """Split a text into sentences of words, the way the Brown corpus does.

    Contractions and possessives stay whole, punctuation stands alone, an abbreviation keeps its point.

    Args:
        text: any text.

    Returns:
        Sentences of ``(first character, end character, word)``; everything but white space is in one word.
    """
    words: list[tuple[int, int, str]] = []
    for match in _TOKEN.finditer(text):
        start, end, word = match.start(), match.end(), match.group()
        if word == "." and words and words[-1][1] == start:
            before = words[-1][2]
            initial = len(before) == 1 and before.isalpha() and before.isupper() and before != "I"
            if f" {before.lower()} " in _ABBREVIATIONS or initial:
                words[-1] = (words[-1][0], end, before + ".")
                continue
        words.append((start, end, word))
    sentences: list[list[tuple[int, int, str]]] = [[]]
    for index, item in enumerate(words):
        gap = text[words[index - 1][1] : item[0]] if index else ""
        ended = bool(sentences[-1]) and sentences[-1][-1][2] in _END and bool(gap)
        closing = bool(sentences[-1]) and sentences[-1][-1][2] in "\"'”’)" and len(sentences[-1]) > 1
        ended |= closing and bool(gap) and sentences[-1][-2][2] in _END
        if sentences[-1] and (ended or gap.count("\n") > 1):
            sentences.append([])
        sentences[-1].append(item)
    return [sentence for sentence in sentences if sentence]


def shipped() -> dict[str, Any]:
    """The shipped file: ``record``, and what ``Tagger`` takes."""
    if not MODEL_FILE.exists():
        raise NotAvailable(f"The tagger's file {MODEL_FILE.name} is missing.", "Restore data/tagger from the project.")
    return dict(json.loads(gzip.decompress(MODEL_FILE.read_bytes())))


@cache
def _tagger() -> Tagger:
    return Tagger(shipped())


@cache
def accuracy() -> dict[str, Any]:
    """Return how the shipped tagger did on Brown files that it was not trained on."""
    return dict(shipped()["record"])


def tag_sentences(tagger: SentenceTagger, text: str) -> list[TaggedWord]:
    """Tag a text with a given tagger; see :func:`tag`."""
    tagged: list[TaggedWord] = []
    place, byte = 0, 0
    for sentence in split_words(text):
        shown = ['"' if word in "“”" else word.replace("’", "'") for _, _, word in sentence]
        for (start, end, word), (_, tag) in zip(sentence, tagger.tag(shown), strict=True):
            byte += len(text[place:start].encode("utf-8"))
            size = len(word.encode("utf-8"))
            tagged.append(TaggedWord(byte, byte + size, word, tag))
            place, byte = end, byte + size
    return tagged


def tag(text: str) -> list[TaggedWord]:
    """Tag an English text.

    Args:
        text: any text; in other languages the tags mean little.

    Returns:
        Every word and punctuation mark in reading order, with a tag of ``focus_core.tags.UNIVERSAL``.

    Raises:
        NotAvailable: the tagger's file is missing.
    """
    return tag_sentences(_tagger(), text)
