import numpy as np
import pytest

from analysis import groups as words
from analysis.examples import concordance, spread_out
from analysis.parts import KINDS, PIECE, SPACE, align, parts_of
from focus_core import assets
from focus_core.tags import UNIVERSAL
from focus_core.trace import Trace
from tests.app.synthetic import make_trace

TEXT = 'The old man saw it. "He saw\n\nthe naïve cat!" ok'


def number(tag: str) -> int:
    return UNIVERSAL.index(tag)


def trace_of(tokens: list[str], keys: list[int], queries: list[int] | None = None, **facts) -> Trace:
    """A Trace of one layer and router: each token's key group, and the group it looks into."""
    text = "".join(tokens)
    ends = np.cumsum([len(t.encode()) for t in tokens])
    spans = np.stack([np.concatenate([[0], ends[:-1]]), ends], 1).astype(np.int32)
    bits = [np.int64(1) << np.array(side, np.int64)[None, None] for side in (keys, queries or keys)]
    provenance = {"layers": 1, "heads": 2, "native": [None], "window": 1, "sinks": 0, "groups": 3, "text_name": None}
    return Trace(
        {**provenance, **facts}, text, tokens, {"key_bits": bits[0], "query_bits": bits[1], "byte_span": spans}
    )


def test_a_words_tag_goes_to_its_first_piece():
    tokens = ["The", " o", "ld", " ", "man", "\n"]
    spans = np.array([[0, 3], [3, 5], [5, 7], [7, 8], [8, 11], [11, 12]])
    found = align("The old man\n", spans, [(0, 3, "The", "DET"), (4, 7, "old", "ADJ"), (8, 11, "man", "NOUN")])
    assert len(tokens) == len(spans)
    assert found.tags.tolist() == [number("DET"), number("ADJ"), -1, -1, number("NOUN"), -1]
    assert found.all_pieces.tolist() == [number("DET"), number("ADJ"), number("ADJ"), -1, number("NOUN"), -1]
    assert found.kinds.tolist() == [number("DET"), number("ADJ"), PIECE, SPACE, number("NOUN"), SPACE]


def test_a_token_that_ends_one_word_and_begins_another_has_the_new_ones_tag():
    found = align("x.)", np.array([[0, 1], [1, 3]]), [(0, 2, "x.", "NOUN"), (2, 3, ")", ".")])
    assert found.tags.tolist() == [number("NOUN"), number(".")]


def test_parts_of_characters_and_tokens_outside_the_text():
    # The first byte of a character of two begins the word; the second goes on with it.
    found = align("é a", np.array([[0, 1], [1, 2], [2, 4], [4, 4]]), [(0, 2, "é", "X"), (3, 4, "a", "DET")])
    assert found.tags.tolist() == [number("X"), -1, number("DET"), -1]
    assert found.kinds.tolist() == [number("X"), PIECE, number("DET"), -1]


def test_sentences_end_at_marks_with_what_closes_them_and_at_empty_lines():
    words_of = []
    place = 0
    for word in ["He", "ran", ".", '"', "No", "!", '"', "Title", "Next"]:
        at = TEXT2.index(word, place)
        place = at + len(word)
        words_of.append((at, place, word, "X"))
    spans = np.array([[a, b] for a, b, _, _ in words_of])
    assert align(TEXT2, spans, words_of).sentence.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 3]


TEXT2 = 'He ran. "No!" Title\n\nNext'


def test_gold_tags_are_used_where_the_text_has_them_and_the_tagger_elsewhere():
    name = "brown fiction opening"
    gold = parts_of(make_trace(assets.load_text(name).text, text_name=name))
    assert gold.gold
    assert "Brown" in gold.source
    mine = parts_of(make_trace("The old man sat down. He was tired."))
    assert not mine.gold
    assert "tagger" in mine.source
    # Another text under a gold text's name is not given that text's tags.
    assert not parts_of(make_trace("Quite another text.", text_name=name)).gold


def test_log_odds_prefers_what_is_typical_to_what_is_frequent():
    # "the" is the commonest word of both groups; "cat" is only in the first.
    z = words.log_odds(np.array([[50, 10, 0], [50, 0, 10]]))
    assert z[0].argmax() == 1
    assert z[1].argmax() == 2
    assert abs(z[0, 0]) < 1e-9
    np.testing.assert_allclose(z[0], -z[1], atol=1e-9)


def test_log_odds_against_the_formula():
    counts = np.array([[8.0, 2.0], [1.0, 9.0]])
    prior = np.array([9, 11]) / 20 * 2
    inside, outside = counts[0] + prior, counts[1] + prior
    delta = np.log(inside / inside[::-1]) - np.log(outside / outside[::-1])
    np.testing.assert_allclose(words.log_odds(counts)[0], delta / np.sqrt(1 / inside + 1 / outside))


def test_the_table_counts_names_and_judges():
    tokens = [" the", " cat", " a", " dog", " the", " ran"]
    trace = trace_of(tokens, [0, 1, 0, 1, 0, 1])
    kinds = np.array([number(t) for t in ("DET", "NOUN", "DET", "NOUN", "DET", "VERB")])
    parts = align(trace.text, trace.arrays["byte_span"], [])
    parts = type(parts)(kinds, kinds, kinds, parts.sentence, True, "")
    first, second, third = words.group_table(trace, 0, 0, parts)
    assert (first.size, first.share, first.load) == (3, 0.5, 1.5)
    assert first.name.startswith("determiners: the, a")
    assert first.purity == 1
    assert second.purity == pytest.approx(2 / 3)
    assert second.name.startswith("nouns: ")
    assert (third.size, third.name, third.kind) == (0, "empty", None)
    assert np.isnan(third.purity)
    assert (first.tag, first.tagged) == (number("DET"), 3)
    assert (third.tag, third.tagged) == (None, 0)


def test_first_tokens_are_left_out_of_the_table():
    trace = trace_of([" a", " b", " c"], [0, 1, 1], sinks=1)
    assert [g.size for g in words.group_table(trace, 0, 0, None)] == [0, 2, 0]


def test_what_tokens_are_and_what_they_look_for_stay_apart():
    trace = trace_of([" a", " b"], [0, 1], [1, 0])
    assert words.is_directed(trace)
    assert [g.typical[0][0] for g in words.group_table(trace, 0, 0, None)[:2]] == ["a", "b"]
    assert [g.typical[0][0] for g in words.group_table(trace, 0, 0, None, "queries")[:2]] == ["b", "a"]
    assert words.describe(trace, 0, 0, 0) == "is in A and looks for B"


@pytest.mark.parametrize("router", [0, 2])
def test_who_sees_whom_counts_the_pairs_that_the_pattern_keeps(router):
    trace = make_trace(assets.load_text("persuasion opening").text, limit=300, window=20, sinks=4, groups=5)
    sight = words.who_sees_whom(trace, 1, router)
    n = len(trace)
    head = router * trace.provenance["heads"] // 3
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    far = (i - j >= 20) & (j >= 4)
    kept = trace.pattern(1).tile(0, head, slice(0, n), slice(0, n)) & far
    keys = words.members(trace, 1, router)
    for a in range(5):
        for b in range(5):
            block = np.outer(keys[:, a], keys[:, b])
            assert sight.pairs[a, b] == (kept & block).sum()
            assert sight.possible[a, b] == (far & block).sum()
    assert sight.may.max() <= 1


def test_kinds_by_group_counts_each_token_once_a_group():
    trace = make_trace(assets.load_text("persuasion opening").text, limit=200, query_topk=2)
    parts = parts_of(trace)
    keys = words.kinds_by_group(trace, 0, 0, parts)
    queries = words.kinds_by_group(trace, 0, 0, parts, "queries")
    counted = (words.far_from_sinks(trace) & (parts.kinds >= 0)).sum()
    assert keys.shape == (16, len(KINDS))
    assert keys.sum() == counted
    assert (
        queries.sum() == words.members(trace, 0, 0, "queries")[words.far_from_sinks(trace) & (parts.kinds >= 0)].sum()
    )


def test_group_63_is_a_group():
    trace = trace_of([" a", " b"], [63, 0], groups=64)
    table = words.group_table(trace, 0, 0, None)
    assert len(table) == 64
    assert (table[63].size, table[0].size) == (1, 1)


def test_concordance_shows_whole_characters_and_marks():
    trace = trace_of(["Hi", " ", "there", "\n", " 한"], [0] * 5)
    lines = concordance(trace, np.arange(5))
    assert [line.text for line in lines] == ["Hi", "␣", "there", "↵", "한"]
    assert lines[2].before == "Hi "
    assert lines[4].before.endswith("↵ ")
    korean = make_trace("모든 토큰")
    assert {line.text for line in concordance(korean, np.arange(3))} == {"모"}


def test_examples_are_spread_over_the_text():
    assert spread_out(np.arange(100), 3).tolist() == [0, 50, 99]
    assert spread_out(np.arange(2), 3).tolist() == [0, 1]
