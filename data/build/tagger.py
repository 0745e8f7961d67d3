"""Trains the tagger that ships, on Brown with universal tags, and writes ``data/tagger``.

Run from the repository's root, after ``data.build.texts`` has fetched the corpus::

    python -m data.build.tagger --work build/focus-texts

50 of the 500 files are kept out of the training: those whose text ships, so that the app's tagged texts
are new to the tagger, and every 26th of the others. It takes about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nltk.tag.perceptron import PerceptronTagger

from data.build import detokenise, sources
from data.build.texts import BROWN
from focus_core.tagging import MODEL_FILE, WEIGHT_SCALE, tag_sentences
from focus_core.tags import universal_tag

HELD_OUT = 50
MAX_BYTES = 5_000_000
Sentence = list[tuple[str, str]]


def split_files(files: list[str]) -> tuple[list[str], list[str]]:
    """Return the training files and the held-out ones."""
    shipped = [name for names in BROWN.values() for name in names]
    others = [name for name in files if name not in shipped]
    extra = others[:: len(others) // (HELD_OUT - len(shipped))][: HELD_OUT - len(shipped)]
    held_out = sorted(shipped + extra)
    return [name for name in files if name not in held_out], held_out


def sentences(folder: Path, files: Iterable[str]) -> list[Sentence]:
    """Return the sentences of files as ``(shown word, universal tag)``."""
    return [
        [(word, universal_tag(tag)) for word, tag, _ in detokenise.sentence_pieces(sentence)]
        for name in files
        for paragraph in sources.brown(folder, name)
        for sentence in paragraph
    ]


def pack(tagger: PerceptronTagger, floor: float) -> dict[str, Any]:
    """Return the tagger in the shipped form, without weights smaller than ``floor``."""
    classes = sorted(tagger.classes)
    number = {tag: index for index, tag in enumerate(classes)}
    weights = {}
    for feature, by_tag in sorted(tagger.model.weights.items()):
        whole = [(number[tag], round(w * WEIGHT_SCALE)) for tag, w in sorted(by_tag.items()) if abs(w) >= floor]
        pairs = [value for pair in whole if pair[1] for value in pair]
        if pairs:
            weights[feature] = pairs
    known: dict[str, list[str]] = {tag: [] for tag in classes}
    for word, tag in sorted(tagger.tagdict.items()):
        known[tag].append(word)
    return {"classes": classes, "known_words": known, "weights": weights}


def word_accuracy(tagger: PerceptronTagger, test: list[Sentence]) -> tuple[int, int, int, int]:
    """Count right tags and all, first over every word, then over words only, given the corpus's own words."""
    right = total = right_words = words = 0
    for sentence in test:
        for (_, guess), (_, gold) in zip(tagger.tag([word for word, _ in sentence]), sentence, strict=True):
            right, total = right + (guess == gold), total + 1
            if gold != ".":
                right_words, words = right_words + (guess == gold), words + 1
    return right, total, right_words, words


def span_accuracy(tagger: PerceptronTagger, folder: Path, files: list[str]) -> float:
    """Return the share of gold words that are found by byte span in running text and tagged right."""
    right = total = 0
    for name in files:
        text, spans = detokenise.write(sources.brown(folder, name))
        found = {(w.byte_start, w.byte_end): w.universal_tag for w in tag_sentences(tagger, text)}
        right += sum(found.get((start, end)) == universal_tag(tag) for start, end, tag in spans)
        total += len(spans)
    return right / total


def unpack(document: dict[str, Any]) -> PerceptronTagger:
    """Make NLTK's tagger from the shipped form: class numbers and whole-number weights."""
    classes: list[str] = document["classes"]
    weights = {
        feature: {classes[c]: w / WEIGHT_SCALE for c, w in zip(pairs[::2], pairs[1::2], strict=True)}
        for feature, pairs in document["weights"].items()
    }
    known = {word: tag for tag, listed in document["known_words"].items() for word in listed}
    tagger = PerceptronTagger(load=False)
    tagger.decode_json_params((weights, known, classes))
    return tagger


def main() -> None:
    """Train, prune to the size limit, measure what ships, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder with the corpus")
    parser.add_argument("--iterations", type=int, default=5)
    arguments = parser.parse_args()
    folder = arguments.work.resolve()
    training, held_out = split_files(sources.brown_files(folder))
    random.seed(0)  # NLTK shuffles the sentences with the global generator
    began = time.monotonic()
    tagger = PerceptronTagger(load=False)
    tagger.train(sentences(folder, training), nr_iter=arguments.iterations)
    seconds = time.monotonic() - began
    test = sentences(folder, held_out)
    right, total, right_words, words = word_accuracy(tagger, test)
    record: dict[str, Any] = {
        "corpus": sources.BROWN_PACKAGE,
        "training_files": len(training),
        "held_out_files": held_out,
        "iterations": arguments.iterations,
        "seed": 0,
        "held_out_tokens": total,
        "accuracy_before_pruning": round(right / total, 4),
    }
    floor = 0.0
    while True:
        document = pack(tagger, floor)
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        if len(text.encode()) < MAX_BYTES:
            break
        floor += 0.1
    shipped = unpack(document)
    right, total, right_words, words = word_accuracy(shipped, test)
    record |= {
        "smallest_weight": round(floor, 2),
        "accuracy": round(right / total, 4),
        "accuracy_without_punctuation": round(right_words / words, 4),
        "accuracy_on_running_text": round(span_accuracy(shipped, folder, held_out), 4),
    }
    MODEL_FILE.parent.mkdir(exist_ok=True)
    text = json.dumps({"record": record, **document}, ensure_ascii=False, separators=(",", ":"))
    # Without a time in it, the same weights are the same file.
    MODEL_FILE.write_bytes(gzip.compress(f"{text}\n".encode(), 9, mtime=0))
    print(json.dumps(record, indent=1), f"{len(text) / 1e6:.2f} MB, trained in {seconds:.0f} s", sep="\n")


if __name__ == "__main__":
    main()
