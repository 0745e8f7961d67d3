"""What is said and drawn of caches: grades, both orders of Slim, cards, encoder-decoders."""

import math

import pytest

from analysis import cache as words
from analysis import cache_card as card
from analysis import cache_cross as cross
from analysis import cache_latent as latent
from analysis import cache_orders as orders
from analysis.cache_figures import bars, layer_errors, layer_map
from analysis.measured import merge
from focus_core.benchmark.cache_lines import counted_bytes
from focus_core.variants import make
from tests.app.fake_cache import DENSE, about, row

SFA = {"variant": "sfa", "config": {}, "adapter": None, "label": "SFA <16>"}


def result(*rows):
    request = {"model": "tiny", "prompt": 24, "decoded": 4, "text_name": None}
    return {"about": about(request), "rows": [row(DENSE, 0.0), *rows], "complete": True}


@pytest.mark.parametrize(
    ("errors", "words_by_format"),
    [
        ((0.0, 0.0, 0.0), ("exact", "exact", "exact")),
        ((9e-4, 0.03, 0.004), ("to rounding", "to rounding", "to rounding")),
        ((9e-4, 0.06, None), ("to rounding", "lost to rounding", "lost to rounding")),
        ((2e-3, 0.03, 0.004), ("approximate", "approximate", "approximate")),
    ],
)
def test_a_cache_is_judged_by_whether_its_error_goes_away_in_a_finer_format(errors, words_by_format):
    one = row(SFA)
    for dtype, error in zip(one["layers"], errors, strict=True):
        one["layers"][dtype]["error"] = [0.0, error]
    found = [words.grade(result(one), one, dtype) for dtype in one["layers"]]
    assert tuple(grade.word for grade in found) == words_by_format
    assert words.error_text(found[2].error) == ("overflows" if errors[2] is None else words.error_text(errors[2]))
    assert words.grade(result(one), {"layers": {}}) is None


def test_errors_have_one_notation():
    said = [words.error_text(e) for e in (0, 3e-9, 2.34e-7, 2.346e-5, 0.5, math.inf)]
    assert said == ["0 %", "< 0.000001 %", "0.00002 %", "0.00235 %", "50.0 %", "overflows"]
    whole = result(row(SFA), row({**SFA, "config": {"features": 8}}, 0.0))
    said = {bar.text[0].split(" · ")[1] for bar in bars(whole, "float32").data if bar.text and "·" in bar.text[0]}
    assert said == {"counted", "● exact", "≈ error 50.0 %"}
    ticks = [*layer_map(whole, "float16").data[0].colorbar.ticktext]
    ticks += layer_errors(whole, whole["rows"][1]["key"]).layout.yaxis.ticktext
    assert ticks
    assert all(tick.endswith(" %") for tick in ticks)
    assert [words.fraction(n) for n in (2, 3, 4.5)] == ["half of", "a third of", "1/4.50 of"]


def test_the_answer_names_the_smallest_cache_of_each_kind_and_says_when_none_is_exact():
    said = words.answer(result(row(SFA)))
    assert "None of the smaller caches measured is exact." in said
    other = {**SFA, "config": {"features": 32}, "label": "SFA 32"}
    said = words.answer(result(row(SFA), row(other, 1e-5)))
    assert "SFA 32 keeps 4.99 kB (81.2 %) and is exact to rounding (0.00100 %); it says" in said
    assert "None of" not in said
    assert words.answer(merge([])).startswith("Measure the caches")
    assert "No other cache" in words.answer(result())


def test_rows_replace_earlier_ones_of_the_same_key():
    first, later = row(SFA), {**row(SFA), "agree": 0.9}
    merged = merge([{"about": {"model": "a"}}, {"row": first}, {"row": later}])
    assert [r["agree"] for r in merged["rows"]] == [0.9]
    assert merged["about"] == {"model": "a"}


def test_figures_escape_names_and_say_what_is_missing():
    whole = result(row(SFA, None), row({**SFA, "config": {"features": 8}, "label": "eight"}))
    names = [bar.y[0] for bar in bars(whole).data]
    assert "SFA &lt;16&gt;" in names
    drawn = layer_map(whole, "float16").data[0]
    assert drawn.z[drawn.y.index("SFA &lt;16&gt;")][0] == 0.0
    named = {**row(SFA), "label": "SFA, 8 (an-adapter)"}
    assert "SFA, 8<br>(an-adapter)" in bars(result(named)).layout.yaxis.ticktext
    key = whole["rows"][1]["key"]
    assert {bar.name for bar in bars(whole, "float16").data} >= {"✕ lost to rounding", "≈ approximate"}
    assert any("overflows" in trace.name for trace in layer_errors(whole, key).data)
    (limit,) = layer_errors(whole, key).layout.annotations
    assert (limit.text, limit.y) == ("5 %", pytest.approx(math.log10(0.05)))
    for empty in (bars(merge([])), layer_errors(whole, "none"), layer_map(whole, "int8")):
        assert empty.layout.annotations[0].text
    assert len(words.layer_table(whole)) == 3 * 3 * 4


def test_operations_and_bytes_of_both_orders_are_the_papers():
    d, h, n = 4096, 32, 1000
    assert orders.work(orders.FIRST, d, h, n).operations == (2 * n + 6) * d**2 + 4 * n * d
    assert orders.work(orders.SECOND, d, h, n).operations == 8 * d**2 + 2 * n * d * (h + 1)
    dense, second = (orders.work(o, d, h, n, batch=3, itemsize=2) for o in (orders.DENSE, orders.SECOND))
    assert dense.bytes - second.bytes == 3 * n * d * 2
    # Far beyond the weights order 2 reads half, and is bound by reading while 2h + 2 < operations a byte.
    assert orders.ratio(orders.SECOND, d, h, 1 << 24, 1, 413) == pytest.approx(0.5, abs=0.001)
    assert orders.slower_from(orders.SECOND, d, h, 1, 93) is None
    assert orders.slower_from(orders.SECOND, d, h, 1, orders.enough(h) / 2 * 0.9) > 1
    cross_at = orders.crossover(d, h, 1, 413)
    assert orders.ratio(orders.FIRST, d, h, cross_at, 1, 413) <= orders.ratio(orders.SECOND, d, h, cross_at, 1, 413)
    assert orders.ratio(orders.FIRST, d, h, 2 * cross_at, 1, 413) > orders.ratio(
        orders.SECOND, d, h, 2 * cross_at, 1, 413
    )
    assert orders.crossover(d, h, 64, 413) < cross_at
    points = [{"order": orders.SECOND, "cached": 256, "ratio": {"median": 0.9, "p10": 0.8, "p90": 1.0, "n": 5}}]
    assert any("measured" in trace.name for trace in orders.figure(d, h, 1, 413.0, points).data)


@pytest.mark.parametrize(
    ("batch", "intensity", "said"),
    [
        (1, 413.0, "Order 2 never loses to dense here: 1.91× as fast at 131,072 tokens."),
        (64, 93.0, "Order 2 loses to dense up to 55 cached tokens, while so large a batch keeps the card computing."),
        (16, 10.0, "Order 2 loses to dense from 1 cached token on: it needs 66.0 operations a byte and the card has"),
    ],
)
def test_where_order_two_loses_is_said_as_it_is(batch, intensity, said):
    assert said in orders.sentence(3072, 32, batch, intensity)
    slow = [n for n in range(1, 200) if orders.ratio(orders.SECOND, 3072, 32, n, batch, intensity) > 1 + 1e-9]
    assert len(slow) == {413.0: 0, 93.0: 55, 10.0: 199}[intensity]


def test_the_lines_of_the_orders_part_at_their_crossover():
    first, second = orders.figure(3072, 32, 1, 413.0).data
    at = list(first.x).index(orders.crossover(3072, 32, 1, 413.0))
    assert first.y[at] == pytest.approx(second.y[at])
    assert first.y[at + 1] > second.y[at + 1] * 1.1


def test_presets_have_the_cached_numbers_that_the_paper_gives():
    numbers = {p.title: counted_bytes(make("dense"), p.shape, 1) for p in card.PRESETS}
    published = {"Phi-3-mini-128k": (25.8e9, 131_072), "CodeLlama-7B": (4.3e9, 16_384)}
    published |= {"GPT-2 XL": (157e6, 1024), "SmolLM2-1.7B": (0.8e9, 8192)}
    for title, (total, tokens) in published.items():
        assert numbers[title] * tokens == pytest.approx(total, rel=0.01)


def test_a_card_holds_what_is_left_beside_the_weights():
    assert card.hold(100.0, 10_000.0, 2, 10) == (50, 10)
    assert card.room(1e9, 1e9, 2) == 0
    shape = card.PRESETS[0].shape
    held = card.holdings("", shape, 24e9, 2, 1, 4096, lambda line: line["variant"], {"dense": 1000.0})
    assert (held[0].origin, held[0].context) == ("measured", int((24e9 - 7.6e9) // 1000))
    assert all(one.origin == "counted" for one in held[1:])
    assert len(card.figure(held, 131_072).data) > 2
    assert "do not fit" in card.figure([card.Held("dense", 1.0, "counted", 0, 0)], 1).layout.annotations[0].text


def test_encoder_decoders_have_the_papers_factors_and_its_failures():
    whisper, _, eleven = cross.ENCODERS
    assert cross.layer_ratio(eleven) == 32
    assert cross.layer_ratio(whisper) == 2
    assert cross.cross_ratio(whisper) == 8
    assert cross.numbers(whisper, "dense") == 2 * 4 * 384 * 1948
    # The published 8.7 is keys and values of both over the decoder's keys alone.
    assert cross.numbers(whisper, "dense") / (4 * 448 * 384) == pytest.approx(8.7, abs=0.01)
    assert sum(passed[0] for _, _, passed, *_ in cross.FAILURES) == 71
    assert len(cross.failure_figure().data) == 3
    assert list(cross.formula_table()["Model"]) == [e.title for e in cross.ENCODERS]
    row = {"model": "a", "cache": "x", "reason": "", "bytes": 5, "dense_bytes": 10, "same_tokens": 3, "tokens": 4}
    refused = {**dict.fromkeys(row), "model": "b", "cache": "k", "reason": "no inverse"}
    table = cross.measured_table([{**row, "max_difference": 1e-7}, refused])
    assert list(table["Of keys and values"]) == ["0.500×", "–"]
    assert list(table["Same tokens"]) == ["3 of 4", "–"]


def test_a_latent_is_drawn_by_rank_beside_dense_and_the_published_ones_are_the_papers():
    rows = [{"rank": None, "numbers": 384.0, "bytes_per_token": 9216.0, "ppl": 20.0}]
    rows += [{"rank": r, "numbers": float(r), "bytes_per_token": 24.0 * r, "ppl": 20.0 + 96 / r} for r in (192, 96, 48)]
    rows[-1]["healed"] = {"ppl": 20.5, "step": 400, "tokens": 3_000_000}
    drawn = latent.figure({"rows": rows})
    assert (list(drawn.data[1].x), list(drawn.data[1].y)) == ([1.152], [20.5])
    assert list(drawn.data[0].x) == [1.152, 2.304, 4.608]
    assert "rank 48 keeps 1.15 kB a token (12.5 %) at perplexity 22.0, where dense has 20.0" in latent.sentence(
        {"rows": rows}
    )
    assert latent.LATENT + latent.ROTARY == latent.WIDTH
    assert list(latent.native_table()["Of it"]) == ["14.1 %", "4.02 %"]


def test_an_overflow_is_larger_than_any_error():
    assert words.worst(row(SFA, None), "float32") == (math.inf, 0)
    assert words.worst({}, "float32") == (None, 0)
