import math

import numpy as np
import pytest
from sklearn import metrics

from analysis import agreement as a
from analysis import grammar
from analysis.groups import Group, group_table
from analysis.parts import KINDS, RULE, RULE_ALL, parts_of
from focus_core import assets
from focus_core.interpret import chance, scores
from tests.app.synthetic import make_trace


@pytest.fixture(scope="module")
def trace():
    name = "brown news opening"
    return make_trace(assets.load_text(name).text, text_name=name, limit=500, maps=True)


@pytest.fixture(scope="module")
def parts(trace):
    return parts_of(trace)


def score(table) -> dict[str, float]:
    return {name: float(value) for name, value in scores.scores(np.array(table)).items()}


def test_scores_by_hand():
    # Two groups of two tokens; the first holds one tag, the second both: H(tag) = H(3/4), H(tag|group) = 1/2 log 2.
    tag = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    mutual = tag - 0.5 * math.log(2)
    found = score([[2, 0], [1, 1]])
    assert found["purity"] == 0.75
    assert found["homogeneity"] == pytest.approx(mutual / tag)
    assert found["completeness"] == pytest.approx(mutual / math.log(2))
    assert found["v_measure"] == pytest.approx(2 * mutual / (tag + math.log(2)))


@pytest.mark.parametrize(
    ("table", "v", "purity"),
    [([[3, 0], [0, 5]], 1, 1), ([[2, 2], [2, 2]], 0, 0.5), ([[4], [4]], 0, 1), ([[4, 4]], 0, 0.5), ([[4]], 1, 1)],
)
def test_scores_at_the_ends(table, v, purity):
    found = score(table)
    assert found["v_measure"] == pytest.approx(v, abs=1e-12)
    assert found["purity"] == purity


def test_scores_are_scikit_learns():
    rng = np.random.default_rng(1)
    for groups, tags, n in ((16, 12, 900), (4, 3, 40), (2, 2, 7)):
        g, t = rng.integers(0, groups, n), rng.integers(0, tags, n)
        t = np.where(rng.random(n) < 0.5, g % tags, t)
        table = np.zeros((groups, tags))
        np.add.at(table, (g, t), 1)
        found = score(table)
        h, c, v = metrics.homogeneity_completeness_v_measure(t, g)
        assert found["homogeneity"] == pytest.approx(h)
        assert found["completeness"] == pytest.approx(c)
        assert found["v_measure"] == pytest.approx(v)
        assert found["v_measure"] == pytest.approx(metrics.normalized_mutual_info_score(t, g))
        matrix = metrics.cluster.contingency_matrix(t, g)
        assert found["purity"] == pytest.approx(matrix.max(0).sum() / n)


def test_baselines_keep_what_they_say_they_keep():
    rng = np.random.default_rng(0)
    joined = np.zeros((300, 5), bool)
    joined[np.arange(300), rng.choice(5, 300, p=[0.5, 0.2, 0.1, 0.1, 0.1])] = True
    which = rng.integers(0, 60, 300)
    size = joined.sum(0)
    for sets in chance.shuffled(joined, 3, rng):
        assert (sets.sum(0) == size).all()
        assert not np.array_equal(sets, joined)
    even = chance.uniform(joined, 50, rng)
    assert (even.sum(-1) == 1).all()
    assert np.abs(even.mean((0, 1)) - 0.2).max() < 0.02
    draws = chance.one_group_a_type(joined, which, 20, rng)
    assert (draws.sum(-1) == 1).all()
    for sets in draws:
        for w in range(60):
            assert len(np.unique(sets[which == w], axis=0)) <= 1
    # Whole types cannot match sizes to a token; they come within a type or two.
    assert np.abs(draws.sum(1) - size).max() <= 2 * np.bincount(which).max()
    assert not np.array_equal(draws[0], draws[1])


def test_types_of_queries_get_as_many_different_groups():
    rng = np.random.default_rng(0)
    joined = np.zeros((200, 8), bool)
    for row in joined:
        row[rng.choice(8, 3, replace=False)] = True
    draws = chance.one_group_a_type(joined, rng.integers(0, 40, 200), 4, rng)
    assert (draws.sum(-1) == 3).all()


def test_groups_that_are_the_tags_win_and_random_types_do_not(trace, parts):
    tags = np.where(parts.tags < 0, 15, parts.tags)
    bits = np.broadcast_to(np.int64(1) << tags.astype(np.int64), trace.arrays["key_bits"].shape)
    perfect = type(trace)(trace.provenance, trace.text, trace.tokens, {**trace.arrays, "key_bits": bits})
    found = a.agreement(perfect, parts, layers=[1])
    assert found.curves["v_measure"]["groups"].value[0] == pytest.approx(1)
    assert found.curves["purity"]["groups"].value[0] == pytest.approx(1)
    assert found.curves["v_measure"]["frequency"].value[0] < 0.6
    assert found.gain["v_measure"]["frequency"][1][0] > 0.2
    assert f"more often than {grammar.RANDOM} in the one layer" in grammar.verdict(found)
    # The synthetic groups are made from word endings alone, without grammar.
    null = a.agreement(trace, parts)
    assert (null.gain["v_measure"]["frequency"][1] <= 0).all()
    assert f"more often than {grammar.RANDOM} in none of 4 layers" in grammar.verdict(null)
    # They follow from the word alone, so a lookup by word is never below them.
    assert (null.gain["v_measure"]["lookup"][1] <= 0).all()
    assert "context need play no part" in grammar.verdict(null)


def test_curves_hold_every_baseline_and_intervals_hold_their_value(trace, parts):
    found = a.agreement(trace, parts, kmeans=trace.arrays["kmeans_bits"])
    for curves in found.curves.values():
        assert set(curves) == {"groups", "kmeans", *a.BASELINES}
        for key, curve in curves.items():
            assert curve.layers.tolist() == [0, 1, 2, 3]
            assert ((curve.value >= 0) & (curve.value <= 1)).all()
            if key in a.INTERVALS:
                assert (curve.low <= curve.value + 1e-9).all()
                assert (curve.high >= curve.value - 1e-9).all()
    shuffled, frequency = (found.curves["v_measure"][key].value for key in ("shuffled", "frequency"))
    assert (shuffled < frequency).all()
    assert set(found.gain["purity"]) == {"frequency", "lookup", "kmeans"}


def test_the_curve_is_the_score_of_the_text_itself(trace, parts):
    found = a.agreement(trace, parts, router=1, layers=[2])
    use = (np.arange(len(trace)) >= 4) & (parts.tags >= 0)
    group = np.log2(trace.arrays["key_bits"][2, 1][use].astype(float)).astype(int)
    assert found.tokens == use.sum()
    assert found.curves["v_measure"]["groups"].value[0] == pytest.approx(
        metrics.v_measure_score(parts.tags[use], group), abs=1e-6
    )


def test_queries_count_once_in_each_group(trace, parts):
    found = a.agreement(trace, parts, side="queries", router=0, layers=[1])
    use = (np.arange(len(trace)) >= 4) & (parts.tags >= 0)
    bits = trace.arrays["query_bits"][1, 0]
    pairs = [(g, parts.tags[t]) for t in np.flatnonzero(use) for g in range(16) if bits[t] >> g & 1]
    g, t = np.array(pairs).T
    assert found.curves["v_measure"]["groups"].value[0] == pytest.approx(metrics.v_measure_score(t, g), abs=1e-6)


def test_all_pieces_is_another_rule_with_more_tokens(trace, parts):
    first, every = a.agreement(trace, parts, layers=[0]), a.agreement(trace, parts, layers=[0], pieces=True)
    assert every.tokens > first.tokens
    assert (first.rule, every.rule) == (RULE, RULE_ALL)


def test_layers_without_groups_are_left_out_and_too_little_is_none(trace, parts):
    native = {**trace.provenance, "native": [None, 64, None, None]}
    other = type(trace)(native, trace.text, trace.tokens, trace.arrays)
    assert a.agreement(other, parts).layers.tolist() == [0, 2, 3]
    bare = {name: value for name, value in trace.arrays.items() if not name.endswith("_bits")}
    assert a.agreement(type(trace)(trace.provenance, trace.text, trace.tokens, bare), parts) is None
    short = make_trace("One two three four five")
    assert a.agreement(short, parts_of(short)) is None


def test_repeated_runs_agree(trace, parts):
    first, second = (a.agreement(trace, parts, layers=[1]) for _ in range(2))
    np.testing.assert_array_equal(first.curves["v_measure"]["groups"].low, second.curves["v_measure"]["groups"].low)


def test_the_pages_sentence_says_both_numbers(trace, parts):
    table = group_table(trace, 1, 0, parts)
    found = a.agreement(trace, parts, router=0, layers=[1])
    said = grammar.answer(table, found, "layer 1")
    assert f"{found.curves['v_measure']['groups'].value[0]:.2f} against" in said
    assert "k-means" not in said
    _, low, high = (float(x[0]) for x in found.gain["v_measure"]["frequency"])
    if low <= 0 <= high:
        assert f"cannot be told from {grammar.RANDOM}" in said
        assert f"{low:+.2f} to {high:+.2f} (95 %)".replace("-", "−") in said
    beside = a.agreement(trace, parts, router=0, layers=[1], kmeans=trace.arrays["kmeans_bits"])
    value = beside.curves["v_measure"]["kmeans"].value[0]
    assert f"{value:.2f}. The purest group" in grammar.answer(table, beside, "layer 1")
    assert "16 groups" in grammar.answer(table, None, "layer 1")


def test_a_share_is_said_with_the_tag_it_is_the_share_of():
    verbs = Group(3, 50, 0.1, 1.0, (), "spaces: ␣, ran", len(KINDS) - 1, 0.9, tag=1, tagged=20)
    rare = Group(4, 50, 0.1, 1.0, (), "spaces: ␣, the", len(KINDS) - 1, 1.0, tag=5, tagged=grammar.FEWEST - 1)
    assert grammar.purest([verbs, rare]) is verbs
    assert grammar.purest([rare]) is None
    assert grammar.purity_of(verbs) == "90.0 % of its tagged tokens are verbs"


def test_a_lookup_by_word_gives_each_type_the_groups_it_has_most():
    joined = np.eye(3, dtype=bool)[[0, 0, 1, 2, 2]]
    found = chance.most_frequent_group(joined, np.array([0, 0, 0, 1, 1]))
    assert found.shape == (1, 5, 3)
    assert found[0].argmax(-1).tolist() == [0, 0, 0, 2, 2]
    two = chance.most_frequent_group(np.array([[1, 1, 0], [1, 1, 0], [0, 1, 1]], bool), np.array([0, 0, 0]))
    assert (two.sum(-1) == 2).all()
    assert two[0, 2].tolist() == [True, True, False]


def test_ranges():
    assert grammar.ranges(np.array([0, 1, 2, 5, 7, 8])) == "0–2, 5, 7–8"
    assert grammar.ranges(np.array([])) == ""
