import math

import pytest

from analysis.comparison import (
    BADGES,
    answer,
    badges,
    cache_a_token,
    change_interval,
    lengths,
    losses,
    speed_verdicts,
    table,
    undecided,
)
from analysis.measured import merge
from tests.comparisons import comparison, dense, row


def test_later_rows_replace_earlier_ones_of_the_same_line_and_length():
    early, late = row(ratio=None, complete=False), row(ratio=0.7)
    result = merge([{"about": {"model": "m"}}, {"row": dense(1024)}, {"row": early}, {"row": late}])
    assert result["about"] == {"model": "m"}
    assert result["rows"] == [dense(1024), late]
    assert result["complete"] is False


def test_merging_nothing_gives_an_empty_result_that_every_reader_takes():
    result = merge([])
    assert lengths(result) == []
    assert table(result).empty
    assert speed_verdicts(result) == []
    assert answer(result).startswith("Run a comparison")


def test_the_table_has_a_line_a_row_dense_first_with_spread_and_unit():
    shown = table(comparison())
    assert len(shown) == 12
    assert list(shown["Variant"][:3]) == ["dense", "Focus q4", "window"]
    first = shown.iloc[1]
    assert first["Time / dense"] == "1.30× (1.23× to 1.43×)"
    assert first["Repeats"] == 5
    assert first["Against dense"] == "+1.01 % (+0.602 % to +1.41 %)"
    assert first["Pairs kept"] == "31.0 %"
    assert first["Counted attention / dense"] == "0.310×"
    assert shown.iloc[0]["Against dense"] == "baseline"


def test_an_untimed_row_shows_dashes_and_not_zero():
    shown = table({"rows": [row(ratio=None, complete=False)], "about": {}})
    assert shown.iloc[0]["Prefill"] == "–"
    assert shown.iloc[0]["Peak memory"] == "–"


def test_the_cache_is_the_measured_one_where_there_is_one():
    measured = row(cache_bytes=1024 * 50_000)
    assert cache_a_token(measured) == 50_000
    assert cache_a_token(row(ratio=None)) == 46_080


def test_badges_say_what_a_number_hides():
    assert badges(row(), recorded=False) == ["live"]
    assert badges(row(), recorded=True) == ["recorded"]
    assert "partial" in badges(row(complete=False), recorded=False)
    assert "slower than dense" in badges(row(ratio=1.2), recorded=False)
    assert "too short to judge" in badges(row(scored=199), recorded=False)
    assert "too short to judge" not in badges(row(scored=200), recorded=False)
    leaking = badges(row(served=False, leaks=True, ratio=None), recorded=False)
    assert {"leaks", "not served", "masked dense"} <= set(leaking)
    assert "dense by definition" in badges(row(dense_by_definition=True), recorded=False)
    assert "slower than dense" not in badges(dense(512), recorded=False)


def test_every_badge_is_explained():
    rows = [
        row(complete=False, ratio=1.2, scored=5, dense_by_definition=True),
        row(served=False, leaks=True),
        dense(512),
    ]
    used = {b for r in rows for recorded in (True, False) for b in badges(r, recorded=recorded)}
    assert used <= set(BADGES)
    assert len(used) == len(BADGES)


def test_the_interval_is_two_standard_errors_of_the_paired_change():
    low, high = change_interval(row(change=0.01, error=0.005))
    assert low == pytest.approx(math.expm1(0.0))
    assert high == pytest.approx(math.expm1(0.02))
    assert change_interval(row(error=None)) is None


def test_verdicts_never_hide_where_a_variant_is_slower():
    said = speed_verdicts(comparison())
    assert said[0].startswith("Focus q4 is slower than dense below about ")
    assert "faster above, up to the 2,048 measured" in said[0]
    slow = {"about": {}, "rows": [dense(512), row(length=512, ratio=1.5)]}
    assert speed_verdicts(slow) == ["Focus q4 is slower than dense at every length measured, up to 512 tokens."]


def test_a_time_that_cannot_be_told_from_denses_is_no_loss_and_no_gain():
    rows = [dense(512), row(length=512, change=0.001, error=0.01, ratio=1.08)]
    rows[1]["ratio"] = {"median": 1.08, "p10": 0.93, "p90": 1.2, "n": 5}
    result = {"about": {}, "rows": rows}
    assert losses(result, 512, "time") == []
    assert undecided(result, 512) == ["Focus q4: no clear difference in time (0.930× to 1.20×)."]
    assert "slower than dense" not in badges(rows[1], recorded=False)
    assert "takes 1.08× dense's time, no clear difference in time (0.930× to 1.20×), and changes" in answer(result)
    assert speed_verdicts(result) == ["Focus q4 is not clearly different in time at 512 tokens (0.930× to 1.20×)."]
    # Another cost has no repeats to differ, and quality is judged all the same.
    assert losses(result, 512, "memory") == ["Focus q4 saves nothing here: 1.00× dense's peak memory."]
    rows[1] |= {"nll_change": 0.05, "ppl_change": math.expm1(0.05), "nll_change_se": 0.01}
    assert losses(result, 512, "time")[0].startswith("Focus q4 pays with quality: +5.13 % perplexity")
    assert undecided(comparison(), 2048) == []


def test_losses_tell_cost_quality_and_both_apart():
    both = losses(comparison(), 512, "time")
    assert (
        both[0]
        == "Focus q4 loses on both: 1.30× dense's time (1.23× to 1.43×) and +1.01 % perplexity (+0.602 % to +1.41 %)."
    )
    quality = losses(comparison(), 2048, "time")
    assert quality[0] == "Focus q4 pays with quality: +1.01 % perplexity (+0.602 % to +1.41 %)."
    cost = {"about": {}, "rows": [dense(512), row(length=512, ratio=1.5, change=-0.01)]}
    assert losses(cost, 512, "time") == ["Focus q4 saves nothing here: 1.50× dense's time (1.42× to 1.65×)."]
    noise = {"about": {}, "rows": [dense(512), row(length=512, ratio=0.5, change=0.001, error=0.01)]}
    assert losses(noise, 512, "time") == []
    slow_noise = {"about": {}, "rows": [dense(512), row(length=512, ratio=1.5, change=0.001, error=0.01)]}
    assert losses(slow_noise, 512, "time") == ["Focus q4 saves nothing here: 1.50× dense's time (1.42× to 1.65×)."]


def test_what_is_not_served_never_enters_a_cost_verdict():
    assert not any("soft" in said or "paper" in said for said in losses(comparison(), 1024, "pairs"))
    assert not any("soft" in said or "paper" in said for said in speed_verdicts(comparison()))


def test_the_answer_is_about_the_longest_length_and_counts_its_tokens():
    said = answer(comparison())
    assert said == (
        "On this text at 2,048 tokens, Focus q4 keeps 31.0 % of the pairs, takes 0.600× dense's time and changes "
        "perplexity by +1.01 % (+0.602 % to +1.41 %; 2,047 tokens scored)."
    )
    noise = {"about": {}, "rows": [dense(512), row(length=512, ratio=0.5, change=0.001, error=0.01)]}
    assert "+0.100 %, which is within its own error (−1.88 % to +2.12 %; 511 tokens scored)" in answer(noise)
    assert answer(comparison(), recorded=True).startswith("On the recorded text")
    short = {"about": {}, "rows": [dense(128), row(length=128, ratio=None)]}
    assert "has not been timed yet" in answer(short)
    assert answer(short).endswith("too short to judge quality.")
