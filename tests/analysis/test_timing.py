import pytest

from analysis.timing import crossover, line_verdict, too_close, verdict
from tests.comparisons import spread


def ratios(**at):
    return {int(n.removeprefix("n")): spread(r) if isinstance(r, float) else r for n, r in at.items()}


UNSURE = {"median": 1.08, "p10": 0.93, "p90": 1.2, "n": 5}


def test_a_verdict_needs_the_whole_spread_on_one_side_of_one():
    assert verdict(spread(1.3)) == "slower"
    assert verdict(spread(0.8)) == "faster"
    assert verdict(UNSURE) == "unclear"
    assert verdict({**UNSURE, "median": 0.95}) == "unclear"
    assert verdict(spread(1.3, n=2)) == "unclear"
    assert verdict(None) is None
    assert too_close(UNSURE) == "no clear difference in time (0.930× to 1.20×)"
    assert too_close(spread(1.3, n=1)) == "too few repeats to judge the time (1.30×)"


def test_crossover_lies_where_the_ratio_is_one():
    assert crossover(ratios(n512=1.2, n2048=0.8)) == pytest.approx(1024)
    assert crossover(ratios(n512=1.2, n1024=1.1)) is None
    assert crossover(ratios(n512=0.9, n1024=0.8)) is None
    assert crossover({}) is None
    # A dip that does not last is not yet a crossover: only from the last loss on is it faster.
    assert crossover(ratios(n256=0.9, n512=1.5, n1024=1.5, n2048=0.5)) == pytest.approx(1024 * 2**0.5)


def test_there_is_no_crossover_beside_a_length_that_is_unclear():
    assert crossover(ratios(n512=1.2, n1024=UNSURE, n2048=0.8)) is None
    assert crossover(ratios(n512=UNSURE, n1024=0.8)) is None
    assert crossover(ratios(n512=1.2, n1024=UNSURE)) is None


def test_a_line_is_told_length_by_length_where_no_crossover_is_clear():
    said = line_verdict("F", ratios(n512=1.2, n1024=UNSURE, n2048=0.8, n4096=0.6))
    assert said == (
        "F is slower than dense at 512 tokens, faster than dense at 2,048 and 4,096 tokens and not clearly different "
        "in time at 1,024 tokens (0.930× to 1.20×)."
    )
    said = line_verdict("F", ratios(n256=0.8, n512=1.5, n2048=0.5))
    assert said == "F is slower than dense at 512 tokens and faster than dense at 256 and 2,048 tokens."
    assert line_verdict("F", ratios(n256=0.8)) == "F is faster than dense at every length measured."
    assert line_verdict("F", ratios(n256=UNSURE, n512=UNSURE)) == (
        "F is not clearly different in time at 256 and 512 tokens."
    )
