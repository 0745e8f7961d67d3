"""Minimal pairs in the manner of BLiMP (arXiv 1912.00582), generated from templates and a lexicon of the project's own.

Of two sentences that differ in one or two words one is grammatical; a model is right where it gives that one the higher
probability. Nothing is taken from BLiMP's data.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from focus_core.errors import InvalidInput
from focus_core.evaluation.abilities import lexicon as words

PAIRS = 50
"""Pairs of each phenomenon."""
_GIVEN_UP = 5000
"""Draws in a row that were known already, after which a phenomenon has no more pairs."""


class Pair(NamedTuple):
    """A grammatical sentence, and one that is not."""

    good: str
    bad: str


def minimal_pairs(phenomenon: str, count: int = PAIRS, seed: int = 0) -> list[Pair]:
    """Different pairs of one phenomenon, the same ones for the same seed.

    Args:
        phenomenon: one of ``PHENOMENA``.
        count: how many.
        seed: of the choice.

    Raises:
        InvalidInput: there is no such phenomenon, or it has fewer pairs.
    """
    make = PHENOMENA.get(phenomenon)
    if make is None:
        raise InvalidInput(f"There is no phenomenon {phenomenon!r}.", f"There are {', '.join(PHENOMENA)}.")
    dice = random.Random(f"{seed} {phenomenon}")
    found: dict[Pair, None] = {}
    known = 0
    while known < _GIVEN_UP:
        if len(found) == count:
            return list(found)
        before = len(found)
        found[Pair(*(_sentence(side) for side in make(dice)))] = None
        known = known + 1 if len(found) == before else 0
    raise InvalidInput(f"{phenomenon} has not {count} different pairs.", f"Ask for up to {len(found)}.")


def _sentence(words_: str) -> str:
    return f"{words_[:1].upper()}{words_[1:]}."


def _both(form: str, good: str, bad: str) -> Pair:
    return Pair(form.format(good), form.format(bad))


def _two(dice: random.Random, nouns: Sequence[tuple[str, str]], number: int) -> tuple[str, str]:
    """Two different nouns, the first in the number, the second in the other one."""
    one, other = dice.sample(nouns, 2)
    return one[number], other[1 - number]


def _agreement_across(dice: random.Random) -> Pair:
    number, of_people = dice.randrange(2), dice.random() < 0.5
    head, attractor = _two(dice, words.PEOPLE if of_people else words.THINGS, number)
    how = dice.choice(words.OF_PEOPLE if of_people else words.OF_THINGS)
    verbs = dice.choice((("is", "are"), ("was", "were")))
    form = f"the {head} {dice.choice(words.NEAR)} the {attractor} {{}} {how}"
    return _both(form, verbs[number], verbs[1 - number])


def _agreement_relative(dice: random.Random) -> Pair:
    number = dice.randrange(2)
    head, attractor = _two(dice, words.PEOPLE, number)
    verbs = dice.choice((("is", "are"), ("was", "were"), ("has been", "have been")))
    form = f"the {head} that the {attractor} {dice.choice(words.SELF_VERBS[1:])} {{}} {dice.choice(words.OF_PEOPLE)}"
    return _both(form, verbs[number], verbs[1 - number])


def _determiner_noun(dice: random.Random) -> Pair:
    number, noun = dice.randrange(2), dice.choice(words.THINGS)
    determiner = dice.choice((("this", "these"), ("that", "those")))[number]
    who = dice.choice((*words.FEMALE_NAMES, *words.MALE_NAMES))
    return _both(f"{who} {dice.choice(words.OBJECT_VERBS)} {determiner} {{}}", noun[number], noun[1 - number])


def _determiner_adjective(dice: random.Random) -> Pair:
    number, noun = dice.randrange(2), dice.choice(words.THINGS)
    determiner = dice.choice((("this", "these"), ("that", "those")))
    who = dice.choice((*words.FEMALE_NAMES, *words.MALE_NAMES))
    form = f"{who} {dice.choice(words.OBJECT_VERBS)} {{}} {dice.choice(words.OF_THINGS)} {noun[number]}"
    return _both(form, determiner[number], determiner[1 - number])


def _reflexive_gender(dice: random.Random) -> Pair:
    sides = [("herself", words.WOMEN), ("himself", words.MEN)]
    dice.shuffle(sides)
    (good, heads), (bad, others) = sides
    pair = f"the {dice.choice(heads)[0]} {dice.choice(words.NEAR)} the {dice.choice(others)[0]}"
    return _both(f"{pair} {dice.choice(words.SELF_VERBS)} {{}}", good, bad)


def _reflexive_number(dice: random.Random) -> Pair:
    number = dice.randrange(2)
    own, nouns = dice.choice(((("herself", "themselves"), words.WOMEN), (("himself", "themselves"), words.MEN)))
    head, attractor = _two(dice, nouns, number)
    form = f"the {head} who knew the {attractor} {dice.choice(words.SELF_VERBS)} {{}}"
    return _both(form, own[number], own[1 - number])


def _polarity(dice: random.Random) -> Pair:
    good, bad = dice.choice((("no", "some"), ("none of the", "some of the"), ("nobody", "somebody")))
    if good == "nobody":
        form = f"{{}} in the {dice.choice(words.PLACES)} has ever {dice.choice(words.EVER)}"
    else:
        form = f"{{}} {dice.choice(words.PEOPLE)[1]} have ever {dice.choice(words.EVER)}"
    return _both(form, good, bad)


def _filler_gap(dice: random.Random) -> Pair:
    gap = dice.random() < 0.5
    who, person = dice.choice((*words.FEMALE_NAMES, *words.MALE_NAMES)), dice.choice(words.PEOPLE)[0]
    verb = dice.choice(words.OBJECT_VERBS)
    what = "" if gap else f" the {dice.choice(words.THINGS)[0]}"
    form = f"{who} {dice.choice(words.KNOW)} {{}} the {person} {verb}{what} in the {dice.choice(words.PLACES)}"
    return _both(form, *(("what", "that") if gap else ("that", "what")))


def _irregular(dice: random.Random) -> Pair:
    past, participle, what = dice.choice(words.IRREGULAR)
    who = dice.choice(words.PEOPLE)[0]
    if dice.random() < 0.5:
        return _both(f"yesterday the {who} {{}} {what}", past, participle)
    return _both(f"the {who} has {{}} {what}", participle, past)


def _verb_form(dice: random.Random) -> Pair:
    plain, third, what = dice.choice(words.ACTIONS)
    who = dice.choice(words.PEOPLE)[0]
    if dice.random() < 0.5:
        return _both(f"the {who} {dice.choice(words.MODALS)} {{}} {what}", plain, third)
    return _both(f"every morning the {who} {{}} {what}", third, plain)


def _pronoun_case(dice: random.Random) -> Pair:
    subject, object_ = dice.choice((("he", "him"), ("they", "them"), ("we", "us"), ("I", "me"), ("she", "her")))
    person, when = dice.choice(words.PEOPLE)[1], dice.choice(("yesterday", "last week", "on Sunday", "this morning"))
    verb = dice.choice(words.SELF_VERBS[1:])
    if dice.random() < 0.5:
        return _both(f"the {person} {verb} {{}} {when}", object_, subject)
    return _both(f"{when} {{}} {verb} the {person}", subject, object_)


def _countable(dice: random.Random) -> Pair:
    who, verb = dice.choice((*words.FEMALE_NAMES, *words.MALE_NAMES)), dice.choice(("needed", "wanted", "had", "found"))
    pair = dice.choice((("much", "many"), ("little", "few")))
    if dice.random() < 0.5:
        return _both(f"{who} {verb} too {{}} {dice.choice(words.MASS)}", *pair)
    return _both(f"{who} {verb} too {{}} {dice.choice(words.THINGS)[1]}", *pair[::-1])


PHENOMENA: dict[str, Callable[[random.Random], Pair]] = {
    "agreement across a phrase": _agreement_across,
    "agreement across a clause": _agreement_relative,
    "determiner and noun": _determiner_noun,
    "determiner, adjective, noun": _determiner_adjective,
    "reflexive, gender": _reflexive_gender,
    "reflexive, number": _reflexive_number,
    "polarity items": _polarity,
    "filler and gap": _filler_gap,
    "irregular past": _irregular,
    "verb form": _verb_form,
    "pronoun case": _pronoun_case,
    "countable nouns": _countable,
}
"""Every phenomenon and what makes one pair of it."""
