"""Part-of-speech tags for any English text, from a tagger that ships with the project.

The tagger is NLTK's averaged perceptron (Honnibal 2013; ``nltk.tag.perceptron``), trained on the Brown
corpus by ``data/build/tagger.py``. Texts that come with tags made by hand need none of this:
``focus_core.assets.load_text(name).tags``.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from focus_core.assets import DATA
from focus_core.errors import NotAvailable

if TYPE_CHECKING:
    from nltk.tag.perceptron import PerceptronTagger

MODEL_FILE = DATA / "tagger" / "brown_universal.json"
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


def unpack(document: dict[str, Any]) -> PerceptronTagger:
    """Make NLTK's tagger from the shipped form: class numbers and whole-number weights."""
    try:
        from nltk.tag.perceptron import PerceptronTagger
    except ImportError as error:
        raise NotAvailable("Tagging needs the package nltk.", "pip install -r requirements.txt") from error
    classes: list[str] = document["classes"]
    weights = {
        feature: {classes[c]: w / WEIGHT_SCALE for c, w in zip(pairs[::2], pairs[1::2], strict=True)}
        for feature, pairs in document["weights"].items()
    }
    known = {word: tag for tag, listed in document["known_words"].items() for word in listed}
    tagger = PerceptronTagger(load=False)
    tagger.decode_json_params((weights, known, classes))
    return tagger


@cache
def _tagger() -> PerceptronTagger:
    if not MODEL_FILE.exists():
        raise NotAvailable(f"The tagger's file {MODEL_FILE.name} is missing.", "Restore data/tagger from the project.")
    return unpack(json.loads(MODEL_FILE.read_text(encoding="utf-8")))


@cache
def accuracy() -> dict[str, Any]:
    """Return how the shipped tagger did on Brown files that it was not trained on."""
    return dict(json.loads(MODEL_FILE.read_text(encoding="utf-8"))["record"])


def tag_sentences(tagger: PerceptronTagger, text: str) -> list[TaggedWord]:
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
        NotAvailable: nltk is not installed, or the tagger's file is missing.
    """
    return tag_sentences(_tagger(), text)
