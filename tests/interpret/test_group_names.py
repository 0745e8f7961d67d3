"""Planted groups are named for what they are, and measures are what scikit-learn and pencil and paper say."""

import math

import numpy as np
import pytest
from sklearn import metrics

from focus_core import assets
from focus_core.errors import Cancelled, InvalidInput
from focus_core.interpret import stability
from focus_core.interpret.attributes import attributes
from focus_core.interpret.chance import like_frequency
from focus_core.interpret.looks import far_pairs, looked_for
from focus_core.interpret.names import columns, explained, names
from focus_core.interpret.parts import KINDS, align, tagged_parts
from focus_core.interpret.report import report
from focus_core.interpret.sample import Piece, join, members
from focus_core.interpret.summary import GROUP_FIELDS, group_rows
from focus_core.tags import UNIVERSAL
from tests.app.synthetic import split

CONTEXT, SINKS, K = 512, 4, 8
NOUN = UNIVERSAL.index("NOUN")


def piece(name: str, windows: int) -> Piece:
    text = assets.load_text(name)
    tokens, spans, _ = split(text.text[: windows * CONTEXT * 8])
    size = windows * CONTEXT
    parts = tagged_parts(text.text, spans[:size], text)
    assert parts is not None
    assert parts.gold
    word = np.cumsum([t.strip() != "" and t[:1] in " \n" for t in tokens[:size]])
    return Piece(tokens[:size], word.astype(np.int32), parts, CONTEXT)


@pytest.fixture(scope="module")
def sample():
    return join([piece("brown news", 2), piece("brown fiction", 2)], SINKS)


@pytest.fixture(scope="module")
def planted(sample):
    """(N,) groups: 0 punctuation, 1 nouns, 2 early, 3 capitals, 4 a sentence's first, others drawn."""
    group = np.random.default_rng(0).integers(5, K, len(sample))
    known = {a.name: a for a in attributes(sample)}
    early, first = sample.position < 64, known["sentence boundary"].codes == 1
    capital, noun = known["capitals"].codes == 1, sample.parts.all_pieces == NOUN
    point = known["punctuation"].codes == 1
    for number, inside in ((3, capital & ~noun), (1, noun), (2, early), (4, first), (0, point)):
        group[inside] = number
    return group


def joined_of(group):
    return np.eye(K, dtype=bool)[group]


def named(sample, group):
    return names(joined_of(group), attributes(sample), np.random.default_rng(1))


def test_planted_groups_are_named_for_what_they_are(sample, planted):
    found = named(sample, planted)
    assert found[0].attribute == "punctuation"
    assert (found[1].attribute, found[1].says) == ("part of speech", "nouns")
    assert found[2].attribute == "position"
    assert found[2].says == "tokens 1 to 64"
    assert found[2].covers == 1
    assert found[2].lift > 5
    assert found[3].attribute in ("capitals", "part of speech")
    assert found[4].attribute == "sentence boundary"
    assert "first token" in found[4].says
    assert all(name.attribute is None for name in found[5:] if name.explained < 0.05)
    assert all(0 <= name.explained <= 1 for name in found)


def test_shuffled_groups_are_named_nothing(sample, planted):
    mixed = np.random.default_rng(2).permutation(planted)
    for name in named(sample, mixed):
        assert (name.attribute, name.says) == (None, "nothing found")
        assert name.explained < 0.05


def test_a_group_of_a_repeated_a_long_or_a_rare_token_is_found(sample):
    known = {a.name: a for a in attributes(sample)}
    group = np.random.default_rng(0).integers(3, K, len(sample))
    group[known["repeated token"].codes == 1] = 0
    found = named(sample, group)
    assert found[0].attribute == "repeated token"
    assert found[0].says == known["repeated token"].values[1]
    group = np.where(known["frequency"].codes <= 1, 1, 2)
    found = named(sample, group)
    assert found[1].attribute == "frequency"
    assert found[1].says == "words seen 1 to 3 times"
    group = np.where(known["token length"].codes >= 4, 1, 2)
    found = named(sample, group)
    assert (found[1].attribute, found[1].says) == ("token length", "6 characters and more")


def test_a_group_may_be_all_but_something(sample):
    adposition = UNIVERSAL.index("ADP")
    group = np.where(np.isin(sample.parts.all_pieces, (NOUN, adposition)), 0, 1)
    found = named(sample, group)
    assert found[0].says in ("nouns and prepositions", "prepositions and nouns")
    assert found[1].says in ("all but nouns and prepositions", "all but prepositions and nouns")
    assert found[1].covers == pytest.approx(1, abs=0.02)


def test_what_an_attribute_explains_is_mutual_information_over_entropy(sample, planted):
    known = attributes(sample)
    found = explained(joined_of(planted), columns(known), [len(a.values) for a in known])
    for g in (0, 1, 6):
        inside = planted == g
        entropy = metrics.mutual_info_score(inside, inside)
        for i, attribute in enumerate(known):
            share = metrics.mutual_info_score(inside, attribute.codes) / entropy
            assert found[g, i] == pytest.approx(share, abs=1e-4)


def test_what_an_attribute_explains_by_hand():
    # Half the tokens are in; the value is the group's on three of four: H(1/2) = 1 bit, H(in | value) = H(3/4).
    inside = np.array([[1], [1], [1], [1], [0], [0], [0], [0]], bool)
    value = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    left = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    found = explained(inside, np.eye(2, dtype=np.float32)[value], [2])
    assert found[0, 0] == pytest.approx(1 - left, abs=1e-6)
    assert explained(np.ones((8, 1), bool), np.eye(2, dtype=np.float32)[value], [2])[0, 0] == 0


def test_every_token_has_one_value_of_every_attribute(sample):
    known = attributes(sample)
    assert len({a.name for a in known}) == len(known) == 9
    for attribute in known:
        assert attribute.codes.shape == (len(sample),)
        assert attribute.codes.min() >= 0
        assert attribute.codes.max() < len(attribute.values)


def test_windows_are_joined_with_their_own_positions_and_sentences():
    text = "One two. Three four five six."
    tokens, spans, _ = split(text)
    words = [(0, 3, "One", "NUM"), (4, 7, "two", "NUM"), (7, 8, ".", "."), (9, 14, "Three", "NUM")]
    parts = align(text, spans, words)
    one = Piece(tokens[:6], np.arange(6), parts.first(6), 3)
    both = join([one, one], sinks=1)
    assert both.position.tolist() == [0, 1, 2] * 4
    assert both.window.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert both.text.tolist() == [0] * 6 + [1] * 6
    assert both.counted.tolist() == [False, True, True] * 4
    sentence = both.parts.sentence
    assert sentence[:3].tolist() == [0, 0, 0]
    assert (np.diff(sentence) >= 0).all()
    assert len(set(sentence[:6]) & set(sentence[6:])) == 0


def test_far_pairs_by_hand():
    # Window 2, one sink, six tokens: far are (3,1), (4,1), (4,2), (5,1), (5,2), (5,3).
    tags = np.array([0, 0, 1, 0, 1, 0])
    keys = np.array([[1, 1, 2, 1, 2, 1]])
    queries = np.array([[1, 1, 1, 2, 1, 3]])
    kept, possible = far_pairs(queries, keys, tags, 2, window=2, sinks=1)
    assert possible.tolist() == [[3, 1], [1, 1]]
    # (3,1): 2&1 no. (4,1): 1&1 yes. (4,2): 1&2 no. (5, *): 3 & any yes.
    assert kept.tolist() == [[2, 1], [1, 0]]


def test_far_pairs_of_all_windows_are_those_of_each(sample):
    rng = np.random.default_rng(0)
    bits = np.int64(1) << rng.integers(0, K, (2, len(sample)))
    rate, possible = looked_for(sample, bits, bits, len(UNIVERSAL), window=64)
    n, far = CONTEXT, CONTEXT - SINKS
    assert possible.sum() <= 4 * n * n / 2
    assert possible.sum() > 0.3 * 4 * far * far / 2
    mean = (rate * possible).sum() / possible.sum()
    assert mean == pytest.approx(1 / K, abs=0.01)


def test_stability_is_the_adjusted_rand_index():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 4, (2, 3, 500))
    turned = (a + 1) % 4
    assert stability.between(a, turned) == pytest.approx(1)
    assert stability.between(a, b) == pytest.approx(0, abs=0.02)
    expected = np.mean([metrics.adjusted_rand_score(x, y) for x in a for y in b[:2]])
    assert stability.between(a, b[:2]) == pytest.approx(expected)
    assert stability.among(a[:1]) is None
    assert stability.among(np.stack([a[0], turned[0]])) == pytest.approx(1)
    assert stability.first_group(np.array([1, 4, 0, 6, -(2**63)])).tolist() == [0, 2, -1, 1, 63]


def test_words_keep_their_group_across_texts_or_do_not():
    types = np.tile(np.repeat(np.arange(30), 4), 2)
    text = np.repeat([0, 1], 120)
    assert stability.across_texts(types % 5, types, text) == (1.0, 1.0)
    drawn = np.random.default_rng(0).integers(0, 5, 240)
    found = stability.across_texts(drawn, types, text)
    assert found is not None
    assert abs(found[0]) < 0.2
    assert found[1] < 0.5
    assert stability.across_texts(drawn, types, np.zeros(240, int)) is None


def test_draws_of_like_frequency_keep_each_groups_size_and_share_of_rare_words():
    rng = np.random.default_rng(0)
    which = np.concatenate([np.arange(40), np.full(30, 40), np.full(33, 41), np.repeat(np.arange(42, 52), 5)])
    joined = np.eye(4, dtype=bool)[rng.integers(0, 4, len(which))]
    drawn = like_frequency(joined, which, 3, rng)
    band = np.floor(np.log2(np.bincount(which)[which]))
    for each in drawn:
        assert not np.array_equal(each, joined)
        for b in np.unique(band):
            assert each[band == b].sum(0).tolist() == joined[band == b].sum(0).tolist()


@pytest.fixture(scope="module")
def reported(sample, planted):
    rng = np.random.default_rng(3)
    drawn = rng.integers(0, K, len(sample))
    keys = np.int64(1) << np.stack([planted, drawn])[:, None]
    queries = keys | np.int64(1) << ((np.stack([planted, drawn]) + 1) % K)[:, None]
    sets = {"layers": np.array([2, 5]), "groups_keys": keys, "groups_queries": queries}
    sets |= {"kmeans_keys": keys[::-1], "kmeans_queries": queries[::-1]}
    return report(sample, sets, K, window=64, against={"twin": keys}, bootstraps=20)


def test_a_report_finds_the_layer_with_grammar_and_no_other(sample, planted, reported):
    good, bad = reported["layers"]
    assert (good["layer"], bad["layer"]) == (2, 5)
    use = (sample.position >= SINKS) & (sample.parts.tags >= 0)
    v = metrics.v_measure_score(sample.parts.tags[use], planted[use])
    assert good["keys"]["groups"]["v_measure"][0] == pytest.approx(v, abs=1e-3)
    assert v == pytest.approx(metrics.normalized_mutual_info_score(sample.parts.tags[use], planted[use]))
    table = metrics.cluster.contingency_matrix(sample.parts.tags[use], planted[use])
    assert good["keys"]["groups"]["purity"][0] == pytest.approx(table.max(0).sum() / use.sum(), abs=1e-3)
    assert good["keys"]["kmeans"]["v_measure"][0] == bad["keys"]["groups"]["v_measure"][0]
    for line in ("frequency", "matched", "shuffled", "random"):
        assert good["keys"]["groups"]["v_measure"][0] > good["keys"][line]["v_measure"][0] + 0.1
    assert good["keys"]["gain"]["kmeans"]["v_measure"][1] > 0
    assert bad["keys"]["gain"]["matched"]["v_measure"][1] < 0.02
    assert bad["keys"]["named"] == {"nothing found": K}
    assert good["keys"]["named"]["part of speech"] >= 1
    assert reported["summary"]["keys"]["layers_above"]["kmeans"] == 1


def test_a_report_says_how_stable_the_groups_are_and_what_is_looked_for(reported):
    good, bad = reported["layers"]
    assert good["stability"]["against"]["twin"] == 1
    assert good["stability"]["texts"] > good["stability"]["texts_shuffled"] + 0.2
    assert bad["stability"]["texts"] < 0.15
    assert len(good["stability"]["v_by_text"]) == 2
    assert good["looks"]["own_tag_lift"] > 1.2
    assert bad["looks"]["own_tag_lift"] == pytest.approx(1, abs=0.1)
    kept = np.array(bad["looks"]["kept"])
    assert kept.shape == (len(reported["tags"]),) * 2
    assert bad["looks"]["all"] == pytest.approx(2 / K, abs=0.02)


def test_a_reports_groups_have_every_field_and_their_words(reported):
    rows = group_rows(reported)
    assert tuple(reported["groups"]) == GROUP_FIELDS
    assert len(rows) == 2 * 2 * K
    nouns = next(r for r in rows if (r["layer"], r["side"], r["group"]) == (2, "keys", 1))
    assert (nouns["about"], nouns["says"], nouns["tag"]) == ("part of speech", "nouns", KINDS[NOUN])
    assert nouns["purity"] > 0.9
    points = next(r for r in rows if (r["layer"], r["side"], r["group"]) == (2, "keys", 0))
    assert "," in points["words"].split()


def test_a_report_can_be_stopped_and_refuses_tokens_without_tags(sample, planted):
    sets = {"layers": np.array([0])} | dict.fromkeys(
        ("groups_keys", "groups_queries"), (np.int64(1) << planted)[None, None]
    )
    with pytest.raises(Cancelled):
        report(sample, sets, K, window=64, cancel=lambda: True)
    bare = sample.parts.__class__(*(np.full(len(sample), -1) for _ in range(3)), sample.parts.sentence, False, "")
    with pytest.raises(InvalidInput, match="0 tokens"):
        report(sample.__class__(**{**vars(sample), "parts": bare}), sets, K, window=64)


def test_sets_are_spelled_out():
    assert members(np.array([1, 6, -(2**63)]), 64).sum(-1).tolist() == [1, 2, 1]
