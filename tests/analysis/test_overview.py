import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from analysis import overview as words
from tests.app.synthetic import make_trace

LONG = "Some words that go on and on, as words in a long text do. " * 30


def with_change(trace, change: float):
    return dataclasses.replace(trace, arrays={**trace.arrays, "nll": trace.arrays["dense_nll"] + np.float32(change)})


def test_figures_are_means_and_the_change_is_that_of_perplexity():
    trace = with_change(make_trace(LONG), 0.05)
    found = words.figures(trace)
    assert found.change == pytest.approx(np.exp(0.05) - 1, rel=1e-3)
    assert found.kept_pairs == pytest.approx(trace.arrays["kept_pairs"].mean())
    assert found.scored == len(trace) - 1
    assert found.spread == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "change, start", [(-0.02, "No:"), (0.0, "No:"), (0.05, "Hardly:"), (0.5, "These tokens do need more:")]
)
def test_the_answer_follows_the_figures(change, start):
    assert words.answer(words.figures(with_change(make_trace(LONG), change))).startswith(start)


@pytest.mark.parametrize(
    "ppl, said",
    [
        (37.8003, "perplexity stays at 37.8 (0.00 % ± 1.2 %)."),
        (38.1, "perplexity moves within its own error, from 37.8 to 38.1 (+0.79 % ± 1.2 %)."),
        (37.4, "perplexity moves within its own error, from 37.8 to 37.4 (−1.06 % ± 1.2 %)."),
        (38.3, "perplexity goes from 37.8 to 38.3 (+1.32 % ± 1.2 %)."),
    ],
)
def test_a_change_inside_its_own_error_is_said_as_such(ppl, said):
    assert words.answer(words.Figures(0.432, 0.9, ppl, 37.8, 1141, 0.0119)) == f"No: with 43.2 % of the pairs, {said}"


def test_a_short_text_is_not_judged_and_dense_is_said_to_be_dense():
    found = words.figures(make_trace("only a few words here, so nothing can be said", window=2, sinks=0))
    assert not found.judged
    assert "too few to judge" in words.answer(found)
    two = words.figures(make_trace("two words", window=1, sinks=0))
    assert "1 scored token is too few" in words.answer(two)
    assert "all pairs" in words.answer(words.figures(make_trace(LONG, window=10**6)))


def test_all_pairs_with_other_weights_are_not_taken_for_dense_attention():
    dense = "Here every token sees every earlier one: all pairs are computed"
    assert words.answer(words.Figures(1.0, 1.0, 37.8, 37.8, 1141, 0.0)) == f"{dense}."
    assert words.answer(words.Figures(1.0, 1.0, 1316.0, 37.8, 1141, 2.9)) == (
        f"{dense}, with other weights: perplexity goes from 37.8 to 1,320 (+3,380 % ± 290 %)."
    )


def test_rounding_is_no_difference_and_more_is_said():
    recorded = make_trace(LONG)
    assert words.difference(recorded, recorded) == ""
    assert words.difference(with_change(recorded, 0.0001), with_change(recorded, 0.0)) == ""
    assert "perplexity" in words.difference(with_change(recorded, 0.1), with_change(recorded, 0.0))
    moved = dataclasses.replace(recorded, arrays={**recorded.arrays, "key_bits": recorded.arrays["key_bits"] * 2})
    assert "memberships moved" in words.difference(moved, recorded)
    assert "tokens" in words.difference(make_trace(LONG, limit=50), recorded)


def test_many_parts_of_characters_are_said():
    assert words.partial_warning(make_trace(LONG)) == ""
    assert "parts of characters" in words.partial_warning(make_trace("모든 토큰이 다른 토큰을 봅니다. " * 5))


def test_most_hurt_names_the_token_that_was_predicted():
    trace = with_change(make_trace(LONG), 0.0)
    trace.arrays["nll"][41] += 3
    assert words.most_hurt(trace)[0] == (42, pytest.approx(-3, abs=1e-4))


def test_a_small_change_has_two_decimals_and_none_has_no_sign():
    said = [words.change_text(x) for x in (0.0123, -0.0321, 0.00321, 7.7e-6, -7.7e-6)]
    assert said == ["+1.23 %", "−3.21 %", "+0.32 %", "0.00 %", "0.00 %"]


def test_what_cannot_be_hurt_is_the_part_that_sees_all():
    trace = make_trace(LONG, window=20, sinks=3)
    assert words.untouched(trace).startswith("The first 23 tokens")
    assert words.untouched(make_trace(LONG, window=10**6)) == ""
    assert words.untouched(make_trace(LONG, variant="dense")) == ""


def test_a_nat_is_said_as_a_factor():
    assert words.nats_help(-3.1).endswith("3.10 nats are 22.2 times.")


@pytest.mark.parametrize(
    ("variant", "config", "reach"),
    [
        ("dense", {}, 0),
        ("window", {"window": 8, "sinks": 2}, 10),
        ("focus", {"window": 8, "sinks": 2}, 10),
        ("performer", {}, 0),
        ("sfa", {}, 0),
        ("focus_sfa", {"window": 8, "sinks": 2}, 0),
        ("window", {"gone": 1}, 0),
    ],
)
def test_only_a_mask_is_dense_by_definition_not_what_changes_every_pair(variant, config, reach):
    trace = SimpleNamespace(provenance={"variant": variant, "config": config, "window": 99, "sinks": 0})
    assert words.dense_within(trace) == reach
