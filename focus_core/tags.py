"""Brown part-of-speech tags folded to a small universal set."""

from __future__ import annotations

UNIVERSAL = ("NOUN", "VERB", "ADJ", "ADV", "PRON", "DET", "ADP", "NUM", "CONJ", "PRT", "INTJ", ".", "X")
"""Every universal tag that :func:`universal_tag` gives."""

_BY_PREFIX = {
    "nn": "NOUN",
    "nr": "NOUN",
    "np": "NOUN",
    "jj": "ADJ",
    "ap": "ADJ",
    "od": "ADJ",
    "at": "DET",
    "dt": "DET",
    "ab": "DET",
    "wd": "DET",
    "in": "ADP",
    "cs": "ADP",
    "cc": "CONJ",
    "vb": "VERB",
    "be": "VERB",
    "do": "VERB",
    "hv": "VERB",
    "md": "VERB",
    "rp": "PRT",
    "to": "PRT",
    "rb": "ADV",
    "rn": "ADV",
    "ql": "ADV",
    "wr": "ADV",
    "wq": "ADV",
    "wp": "PRON",
    "pp": "PRON",
    "pn": "PRON",
    "ex": "PRON",
    "cd": "NUM",
    "uh": "INTJ",
}


def universal_tag(brown_tag: str) -> str:
    """Fold a Brown tag to its universal one.

    Suffixes (``-tl`` title, ``-hl`` headline, ``-nc`` cited) do not count, and a contraction such
    as ``ppss+bem`` takes the tag of its first part. ``not`` (``*``) is an adverb, a word of a
    foreign language (``fw-``) is ``X``, punctuation is ``.``.

    Args:
        brown_tag: a tag as the Brown corpus writes it, in any case.

    Returns:
        One of :data:`UNIVERSAL`.
    """
    tag = brown_tag.lower()
    if tag.startswith("*"):
        return "ADV"
    if tag.startswith("fw-"):
        return "X"
    if not tag[:1].isalpha():
        return "."
    return _BY_PREFIX.get(tag[:2], "X")
