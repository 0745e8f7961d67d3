"""Gain against loss: the pairing with dense, its intervals, and the words and figure that come of them."""

import json

import pytest

from analysis import forgetting as words
from analysis.forgetting_arms import arm_key, trained_tokens
from analysis.forgetting_figures import gain_and_loss
from tests.probe_documents import document, documents


@pytest.fixture(scope="module")
def found():
    return words.arms(documents())


def test_arms_that_were_asked_something_else_are_left_out():
    docs = documents()
    dense, others = words.arms([docs[2], docs[1], docs[0], {**docs[1], "items": "other"}, {"rows": []}])
    assert not dense["adapter_name"]
    assert [arm_key(d) for d in others] == ["smollm2-directed-k16", "smollm2-lora-r8"]
    assert words.arms([docs[1]]) == (None, [])


def test_shares_are_paired_item_by_item():
    assert words.paired("1100", "1100")[0] == 0
    change, low, high = words.paired("1111100000" * 4, "1111111111" * 4)
    assert change == -0.5
    assert low < -0.5 < high < -0.3
    # Without a single difference a few items are not certain.
    _, low, high = words.paired("1" * 10, "1" * 10)
    assert low < -0.1
    assert high > 0.1
    with pytest.raises(ValueError, match="cannot be paired"):
        words.paired("1", "10")


def test_a_change_is_better_to_the_right_and_what_cannot_change_is_marked(found):
    dense, (focus, lora) = found
    changes = {c.measure.key: c for c in words.changes(dense, lora)}
    novel, code = changes["texts", "persuasion", "domain"], changes["texts", "code", "general"]
    assert novel.change == pytest.approx(1 - 2.718281828**-0.15)
    assert novel.low < novel.change < novel.high
    assert code.change < 0
    assert code.clear
    changes = {c.measure.key: c for c in words.changes(dense, focus)}
    assert changes["needle", "all", "2048"].change < -0.2
    assert changes["pairs", "all", words.BARE].by_definition
    assert changes["pairs", "all", words.BARE].change == 0
    assert not changes["pairs", "all", words.BEHIND].by_definition
    # To refuse a harmless request is worse, so that more of it lies to the left.
    harmless = changes["refusal", "harmless", words.BEHIND]
    assert harmless.change == pytest.approx(harmless.dense - harmless.value)


def test_the_sentence_names_gain_and_worst_loss_and_says_when_there_is_none(found):
    said = words.answer(*found)
    assert "Focus K=16 q4k1 lowers perplexity on the novel by 1.98 % and loses most on" in said
    assert "needles in" in said
    assert "dense 100 %" in said
    same = document("focus", "twin")
    assert "loses nothing that these tests could tell" in words.answer(document(), [same])
    assert "probe" in words.answer(None, [])


def test_tables_show_values_counts_and_intervals(found):
    dense, others = found
    table = words.table(dense, others)
    assert table[0]["What"] == "Persuasion"
    assert {"Dense", "LoRA (smollm2-lora-r8)", "Items", "How"} <= table[0].keys()
    bare = next(row for row in table if row["What"] == "Grammar, short")
    assert "dense by definition" in bare["Focus K=16 q4k1 (smollm2-directed-k16)"]
    pairs = words.parts(dense, others, "pairs", words.BEHIND)
    assert len(pairs) == 12
    assert " of 20 (" in pairs[0]["Dense"]
    assert "mean rank" in words.parts(dense, others, "needle", "512")[0]["Dense"]
    assert len({row["Before"] for row in words.hashes(dense, others)}) == 1


def test_the_figure_has_a_mark_for_every_ability_and_hollow_ones_where_nothing_could_change(found):
    figure = gain_and_loss(*found)
    focus, lora = (json.loads(trace.to_json()) for trace in figure.data)
    assert focus["name"].startswith("Focus")
    assert len(lora["x"]) == len(figure.layout.yaxis.ticktext)
    assert not any("harmless" in words for words in figure.layout.yaxis.ticktext)
    assert any(symbol.endswith("-open") for symbol in focus["marker"]["symbol"])
    assert not any(symbol.endswith("-open") for symbol in lora["marker"]["symbol"])
    assert focus["marker"]["color"] != lora["marker"]["color"]
    assert gain_and_loss(None, []).layout.annotations


def test_a_few_windows_have_students_interval():
    from scipy.stats import t

    for degrees in (1, 2, 5, 9, 10, 15, 40):
        assert words.students(degrees) == pytest.approx(t.ppf(0.975, degrees), rel=3e-3)


def test_trained_tokens_are_those_of_the_step_that_ships():
    assert trained_tokens({"step": 200, "settings": {"steps": 550, "batch": 2, "context": 4096}}) == 1638400
    assert trained_tokens({"step": 1}) is None


def test_where_a_reply_departs_from_dense():
    assert words.departs("a b c", "a b c").startswith("Word for word")
    assert "for 2 words" in words.departs("a b x", "a b c")
    assert "first word" in words.departs("x", "a")
