"""Finding what was read: sentences hidden in a shipped text at several depths, each asked for at its end.

One text holds a needle at every depth, so that the other needles' answers are distractors that were read as well (as
in RULER's multi-key retrieval, arXiv 2404.06654); the rest of the candidates were not. A model is asked for all of
them behind one prefill.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from focus_core.errors import InvalidInput, TooLarge

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of the text that stand before each needle."""
LENGTHS = (512, 1024, 2048)
HAYSTACKS = 4
"""Texts of each length."""

_THINGS = (
    "the green gate",
    "the old lighthouse",
    "the silver box",
    "the north tower",
    "the village school",
    "the blue boat",
    "the stone cottage",
    "the winter garden",
    "the red carriage",
    "the music room",
)
ANSWERS = (
    "apple",
    "bread",
    "cloud",
    "dream",
    "eagle",
    "flame",
    "glass",
    "horse",
    "island",
    "lemon",
    "mirror",
    "night",
    "ocean",
    "paper",
    "river",
    "tiger",
)
"""What the passwords can be."""
SHORTEST = 256
"""Tokens of the shortest text that needles are hidden in."""


@dataclass(frozen=True)
class Haystack:
    """A text with needles in it, and the questions at its end.

    Attributes:
        ids: (N,) token ids.
        questions: (depth, ids of the question, place of its answer among ``candidates``) of every needle.
        candidates: ids of every answer that there could be.
    """

    ids: list[int]
    questions: tuple[tuple[float, list[int], int], ...]
    candidates: tuple[list[int], ...]


def haystack(
    tokenizer: Any, text: Sequence[int], length: int, number: int, seed: int = 0, depths: Sequence[float] = DEPTHS
) -> Haystack:
    """Hide a needle at each depth of a part of a text.

    Args:
        tokenizer: a transformers tokenizer.
        text: token ids of the whole text.
        length: tokens of the text with its needles and one question, at most.
        number: which part: the ``number``-th of that length, from the start again where the text ends.
        seed: of the needles.
        depths: shares of the part before each needle.

    Raises:
        InvalidInput: too short a length for the needles, or too many of them.
        TooLarge: the text is shorter.
    """
    if length < SHORTEST or not 0 < len(depths) <= len(_THINGS):
        raise InvalidInput(
            f"{len(depths)} needles in {length} tokens are asked for.",
            f"Take {SHORTEST} tokens or more, and 1 to {len(_THINGS)} needles.",
        )
    if len(text) < length:
        raise TooLarge(f"The text has {len(text):,} tokens, fewer than {length:,}.", "Take a longer text.")

    def ids(words: str) -> list[int]:
        return list(tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"])

    dice = random.Random(f"{seed} {length} {number}")
    things, answers = dice.sample(_THINGS, len(depths)), dice.sample(range(len(ANSWERS)), len(depths))
    needles = [ids(f" The password of {t} is {ANSWERS[a]}.") for t, a in zip(things, answers, strict=True)]
    asked = [ids(f"\n\nThe password of {thing} is") for thing in things]
    room = length - sum(map(len, needles)) - max(map(len, asked))
    start = number * room % (len(text) - room + 1)
    part = list(text[start : start + room])
    found: list[int] = []
    before = 0
    for depth, needle in sorted(zip(depths, needles, strict=True)):
        cut = round(depth * room)
        found += [*part[before:cut], *needle]
        before = cut
    found += part[before:]
    questions = tuple(zip(depths, asked, answers, strict=True))
    return Haystack(found, questions, tuple(ids(f" {answer}") for answer in ANSWERS))


def ask(model: Any, stack: Haystack) -> list[dict[str, Any]]:
    """Ask for every needle.

    Returns:
        Of each: ``depth``, ``rank`` of the right answer among the candidates (1 is best), ``logp`` (natural logarithm
        of its probability, all tokens), ``margin`` over the best wrong candidate, and ``exact``: whether greedy
        decoding says it.
    """
    import torch

    from focus_core.evaluation.abilities.continuations import Read

    read, found = Read(model, torch.tensor(stack.ids)), []
    asked = [torch.tensor(question) for _, question, _ in stack.questions]
    behind = read.score_behind(asked, [torch.tensor(answer) for answer in stack.candidates])
    for (depth, _, right), scored in zip(stack.questions, behind, strict=True):
        own, best_wrong = scored[right], max(one.logp for place, one in enumerate(scored) if place != right)
        found.append(
            {
                "depth": depth,
                "rank": 1 + sum(one.logp > own.logp for one in scored),
                "logp": own.logp,
                "margin": own.logp - best_wrong,
                "exact": own.greedy,
            }
        )
    return found
