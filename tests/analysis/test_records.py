"""Recorded results as lines, and what is made of them on the Choose tab."""

import dataclasses
import json

import pytest

from analysis import choose as words
from analysis import choose_words
from analysis.choose import Ask, Line, choose
from analysis.choose_figures import bytes_on_a_card
from analysis.choose_words import answer, table
from analysis.records import ALONE, WHOLE, documents, full, nearest, records, same_line
from focus_core import assets
from focus_core.models.facts import ModelFacts
from focus_core.variants import make
from tests.comparisons import comparison

FACTS = ModelFacts("tiny", "llama", 2, 4, 2, 16, 64, 8192, 100, (None, None), None, False, 0.25, "float32", "", "", 16)
EVALUATION = {
    "model": "smollm2",
    "variant": "window",
    "config": {"window": 1024, "sinks": 4},
    "adapter_name": None,
    "ppl": 28.3,
    "nll_diff": 0.02,
    "nll_se": 0.001,
    "kept_pairs": 0.44,
    "tokens": 100_000,
    "context": 4096,
    "text": "/somewhere/persuasion",
    "served": True,
    "dtype": "float32",
    "environment": {"device": "NVIDIA H200", "time": "2026-11-20T00:00:00"},
}
BENCH = {
    "rows": [
        {
            "variant": "window",
            "config": {"window": 128, "sinks": 4, "backend": "cpu"} if n < 0 else {"window": 128, "sinks": 4},
            "length": n,
            "phase": phase,
            "speedup": faster,
            "speedup_p10": faster * 0.9,
            "speedup_p90": faster * 1.1,
            "baseline": "sdpa",
            "kept_pairs": 0.1,
            "dtype": "float32",
            "batch": 1,
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 16,
            "activations": "random",
        }
        for n, phase, faster in ((1024, "prefill", 0.8), (8192, "prefill", 3.0), (8192, "decode", 9.0))
    ],
    "environment": {"device": "a CPU", "time": "2026-11-21T00:00:00"},
}


@pytest.fixture
def found(tmp_path):
    for name, document in (("eval-a", EVALUATION), ("bench-a", BENCH), ("compare-a", comparison())):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "other.json").write_text(json.dumps({"rows": [{"anything": 1}], "about": {}}))
    (tmp_path / "gone.json").write_text(json.dumps({**EVALUATION, "variant": "no longer"}))
    (tmp_path / "setting.json").write_text(json.dumps({**EVALUATION, "config": {"width": 3}}))
    return records(documents(tmp_path))


def line(name, config=None, adapter=None, **more):
    return Line(f"{name}{config or ''}", name, make(name, config), full(name, config), adapter, **more)


def rank(found, ask, lines=None, model="smollm2"):
    lines = lines or [line("dense"), line("window"), line("window", {"window": 1024}), line("bigbird")]
    return choose(lines, found, ask, model=model, weights=1_000_000, facts=FACTS)


def test_three_shapes_of_file_are_read_and_the_rest_is_left_aside(found):
    assert {r.file for r in found} == {"eval-a.json", "bench-a.json", "compare-a.json"}
    evaluated = next(r for r in found if r.file == "eval-a.json")
    assert evaluated.where() == "4,096 tokens, persuasion, NVIDIA H200, 2026-11-20"
    assert evaluated.quality.low < evaluated.quality.change < evaluated.quality.high
    whole = [r for r in found if r.speed and r.speed.what == WHOLE]
    assert {r.length for r in whole} == {512, 1024, 2048}
    slow = next(r for r in whole if r.length == 512 and r.variant == "focus")
    assert slow.speed.low < slow.speed.faster < slow.speed.high < 1
    alone = [r for r in found if r.speed and r.speed.what == ALONE]
    assert [(r.model, r.shape) for r in alone] == [(None, (4, 2, 16))] * 3
    # On even groups in place of learned ones, a time holds for every router; a window has no adapter to stand in for.
    (grouped,) = records([{**BENCH, "rows": [{**BENCH["rows"][0], "variant": "focus", "config": {}}]}])
    assert [same_line(r, r.variant, r.config, "some router") for r in (grouped, alone[0])] == [True, False]
    assert same_line(alone[0], "window", alone[0].config, None)


def test_what_ships_can_all_be_asked():
    every = records(documents(assets.DATA / "results"))
    assert {r.file for r in every} >= {"bench-focus-cpu.json", "compare-smollm2-cpu.json"}
    for path in (assets.DATA / "results").glob("eval-*.json"):
        assert any(r.file == path.name for r in every), path.name


def test_the_nearest_length_is_taken_and_none_is_none(found):
    alone = [r for r in found if r.speed and r.speed.what == ALONE and r.speed.phase == "prefill"]
    assert [nearest(alone, n).length for n in (600, 2000, 4096, 100_000)] == [1024, 1024, 8192, 8192]
    assert nearest([], 1024) is None


def test_only_what_was_measured_has_a_rank(found):
    by = {c.line.key: c for c in rank(found, Ask(1024))}
    assert by["window"].rank == 1
    assert by["dense"].rank == 2
    assert by["bigbird"].rank is None
    shown = table(list(by.values()), Ask(1024)).set_index("Variant")
    assert shown.loc["bigbird", "Speed"] == shown.loc["bigbird", "Perplexity"] == "not measured"
    assert shown.loc["dense", "Speed"] == "1×, the baseline"
    # Recorded on random numbers of other heads, it says nothing of a model of this shape.
    other = choose([line("window")], found, Ask(1024), model="another", weights=1, facts=None)
    assert other[0].rank is None


def test_decode_and_quality_have_ranks_of_their_own(found):
    decode = rank(found, Ask(8192, bottleneck="decode"))
    # Dense stands at 1 among them, whether it was a line of that file or not.
    assert [(c.line.key, c.rank) for c in decode if c.rank] == [("window", 1), ("dense", 2)]
    assert decode[1].speed is None
    quality = rank(found, Ask(4096, bottleneck="quality"))
    assert [c.line.key for c in quality if c.rank] == ["dense", "window{'window': 1024}", "window"]
    text = rank(found, Ask(4096, bottleneck="quality", text="persuasion"))
    assert [c.line.key for c in text if c.rank] == ["dense", "window{'window': 1024}"]
    device = rank(found, Ask(4096, device="a CPU"))
    assert next(c for c in device if c.rank).speed.where() == "8,192 tokens, random numbers, a CPU, 2026-11-21"


def test_bytes_are_counted_and_a_small_card_greys_with_the_bytes(found):
    (dense,) = rank(found, Ask(1000, batch=2), [line("dense")], model="another")
    cache = 2 * 2 * 2 * 16 * 4 * 1000 * 2
    assert (dense.weights, dense.cache) == (4_000_000, cache)
    assert dense.workspace == make("dense").cost(words.layer_shape(FACTS, 1000, 4, 2)).bytes
    half = rank(found, Ask(1000, batch=2, itemsize=2), [line("dense")], model="another")[0]
    assert half.needs == dense.needs / 2
    (small,) = rank(found, Ask(1000, batch=2, card=4e6), [line("dense")])
    assert small.rank is None
    assert small.why_not == f"needs {words.memory(small.needs)}, and the card has 4.00 MB"
    (long,) = rank(found, Ask(16384), [line("dense")])
    assert long.why_not == "the model reads at most 8,192 tokens"
    lines = [line("random"), line("dense"), line("window")]
    ranked = rank(found, Ask(1024, bottleneck="memory"), lines, model="another")
    assert [(c.line.key, c.rank) for c in ranked] == [("dense", 1), ("window", 1), ("random", 3)]
    (adapted,) = rank(found, Ask(1000), [line("dense", None, "lora", adapter_bytes=77)])
    assert adapted.weights == 4_000_077


def test_a_measured_cache_is_taken_before_a_counted_one(found):
    dense, window = rank(found, Ask(1024), [line("dense"), line("bigbird")])
    assert dense.cache_token == 46080
    assert dense.cache_record.file == "compare-a.json"
    assert window.cache_record is None


def test_what_cannot_run_comes_last_with_its_reason(found):
    lines = [line("performer", refused="its scores have a soft cap"), line("dense")]
    choices = rank(found, Ask(1024), lines)
    assert [c.line.key for c in choices] == ["dense", "performer"]
    assert table(choices, Ask(1024))["Runs here"].tolist() == ["yes", "its scores have a soft cap"]
    assert choices[1].needs is None
    nothing = rank(found, Ask(1024, card=1.0), [line("dense")])
    assert answer(nothing, Ask(1024, card=1.0), "Tiny").startswith("Nothing runs Tiny")


@pytest.mark.parametrize(
    ("bottleneck", "words"),
    [
        ("prefill", "window is the fastest whole model: 1.39× dense's speed (1.26× to 1.46×), with +35.0 % perplexity"),
        (
            "decode",
            "no whole model was timed; of attention alone window is the fastest: 9.00× dense's speed at 8,192 tokens",
        ),
        (
            "memory",
            "window needs least: 5.31 MB, with +2.02 % perplexity (windows of 4,096); 1 more needs as little.",
        ),
        ("quality", "nothing recorded predicts better than dense. 1 of the 4"),
    ],
)
def test_the_sentence_answers_in_numbers(found, bottleneck, words):
    ask = Ask(1024, bottleneck=bottleneck)
    assert words in answer(rank(found, ask), ask, "Tiny")


def test_the_sentence_says_when_dense_is_best():
    fast, slow = (records([{**BENCH, "rows": [{**BENCH["rows"][2], "speedup": faster}]}]) for faster in (2.0, 0.4))
    whole = [r for r in records([comparison()]) if r.length == 512]
    lines = [line("dense"), line("window"), line("focus", {"gate": "hard", "temperature": 0.1})]
    decode = Ask(8192, bottleneck="decode")
    unsure = [dataclasses.replace(r, speed=dataclasses.replace(r.speed, low=0.9)) for r in fast]
    assert "none is clearly faster than dense: window measured 2.00× dense's speed (0.900× to 9.90×)" in answer(
        rank(unsure, decode, lines[:2]), decode, "Tiny"
    )
    assert "nothing recorded is faster than dense" in answer(rank(slow, decode, lines), decode, "Tiny")
    assert "of attention alone window is the fastest: 2.00× dense's speed (" in answer(
        rank(fast, decode, lines), decode, "Tiny"
    )
    prefill = [dataclasses.replace(r, speed=dataclasses.replace(r.speed, phase="prefill")) for r in fast]
    slower = [r for r in whole if r.variant == "focus"]
    ask = Ask(512)
    said = answer(rank([*slower, *prefill], ask, lines), ask, "Tiny")
    assert "no whole model recorded is faster than dense; of attention alone window is the fastest: 2.00×" in said


def test_a_perplexity_of_other_windows_says_so_and_outranks_none_of_the_asked():
    """The better change of perplexity was read in windows of another length."""
    short = {**EVALUATION, "variant": "bigbird", "config": {}, "nll_diff": 0.001, "context": 1024, "tokens": 10_230}
    both = records([EVALUATION, short, {**short, "config": {"block": 32}, "context": 4096, "nll_diff": 0.3}])
    lines = [line("bigbird"), line("bigbird", {"block": 32}), line("window", {"window": 1024}), line("dense")]
    for asked, order in ((4096, ["dense", "window", "bigbird", "bigbird"]), (1024, ["dense", "bigbird", "window"])):
        ask = Ask(asked, bottleneck="quality")
        shown = table(rank(both, ask, lines), ask)
        assert shown["Variant"].tolist()[: len(order)] == order
        assert shown.columns[:4].tolist() == ["Rank", "Variant", "Perplexity", "Pairs kept"]
        assert "Runs here" not in shown
    shown = table(rank(both, Ask(4096), lines), Ask(4096))
    told = dict(zip(shown["Perplexity"], shown["Perplexity measured"], strict=True))
    assert told["+0.100 % (windows of 1,024)"].startswith("10 windows, 10,230 tokens scored; windows of 1,024 tokens")
    assert "+2.02 %" in told
    ask = Ask(8192, bottleneck="memory")
    shown = table(rank(both, ask, lines), ask)
    assert shown.columns[2:4].tolist() == ["Needs", "Cache a token"]
    assert "+2.02 % (windows of 4,096)" in set(shown["Perplexity"])


def test_pairs_of_the_asked_length_come_before_those_of_another(found):
    """Of the perplexity's run, unless only another has the asked length."""
    (window,) = rank(found, Ask(8192), [line("window")])
    assert (window.pairs.file, window.pairs.length) == ("bench-a.json", 8192)
    (wide,) = rank(found, Ask(8192), [line("window", {"window": 1024})])
    assert choose_words.says_pairs(wide, Ask(8192)) == "44.0 % (windows of 4,096)"


def test_what_is_clearly_faster_leads_before_what_may_be(found):
    """The first may be as slow as dense, the second is not."""
    ask = Ask(1024)
    whole = [r for r in found if r.speed and r.speed.what == WHOLE and r.length == 1024 and r.variant == "window"]
    sure = dataclasses.replace(whole[0].speed, faster=1.2, low=1.1, high=1.3)
    doubt = dataclasses.replace(whole[0].speed, faster=1.5, low=0.9, high=2.0)
    both = [
        dataclasses.replace(whole[0], speed=doubt),
        dataclasses.replace(whole[0], variant="bigbird", config=full("bigbird", {}), speed=sure),
    ]
    said = answer(rank(both, ask), ask, "Tiny")
    assert "bigbird is the fastest whole model that is clearly faster than dense: 1.20× dense's speed (1.10×" in said
    said = answer(rank(both[:1], ask), ask, "Tiny")
    assert "no whole model is clearly faster than dense: window measured 1.50× dense's speed (0.900× to 2.00×)" in said


def test_performers_pairs_are_not_a_share(found):
    (choice,) = rank(found, Ask(1024), [line("performer")])
    assert table([choice], Ask(1024))["Pairs kept"].tolist() == ["computes none"]


def test_the_figure_shows_what_fits(found):
    ask = Ask(1000, card=4.1e6)
    figure = bytes_on_a_card(rank(found, ask, [line("dense"), line("window"), line("window", {"window": 7})]), ask)
    assert len(figure.data) == 3
    assert len(set(figure.data[0].y)) == 3
    assert figure.layout.shapes[0].x0 == pytest.approx(0.0041)
    assert bytes_on_a_card([], ask).layout.annotations[0].text.startswith("The model's shape")


def test_a_number_that_is_none_was_not_measured(tmp_path):
    (tmp_path / "bench-a.json").write_text('{"rows": [{"speedup": NaN, "ms": {"median": -Infinity, "n": 3}}]}')
    (tmp_path / "bench-b.json").write_text('{"rows": [')
    (tmp_path / "bench-c.json").write_text("[" * 100_000)
    [found] = documents(tmp_path, "bench-")
    assert found["rows"] == [{"speedup": None, "ms": {"median": None, "n": 3}}]
