import numpy as np
import pytest

from analysis import masks
from analysis.distance import bins, figure, sentence, table
from app.ui.strip.data import lost_keys
from focus_core.head_statistics import sampled_rows
from focus_core.pattern import GroupPattern
from tests.app.synthetic import make_dense, make_trace

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 8


@pytest.fixture
def trace():
    return make_trace(TEXT, window=8, sinks=1, query_topk=1)


def whole(trace) -> slice:
    return slice(0, len(trace))


def test_dense_rows_are_the_traces_dense_mass(trace):
    for native, softcap in [([None] * 4, None), ([None, 5, None, None], None), ([None] * 4, 3.0)]:
        trace.provenance.update(native=native, softcap=softcap)
        rows = slice(3, len(trace), 17)
        found = masks.dense_rows(trace, 1, rows, [2, 3])
        for at, query in enumerate(range(*rows.indices(len(trace)))):
            assert np.allclose(found[at, : query + 1], trace.dense_mass(1, query, [2, 3]), atol=1e-5)
            assert not found[at, query + 1 :].any()


def test_lost_pairs_of_many_rows_are_those_that_the_strip_shows(trace):
    rows = slice(5, len(trace), 13)
    found = masks.lost_pairs(trace, 1, rows, [2, 3])
    assert found.rows.tolist() == list(range(*rows.indices(len(trace))))
    for at, query in enumerate(found.rows.tolist()):
        single = lost_keys(trace, 1, query, None, 1)
        part = slice(found.start[at], found.start[at + 1])
        assert sorted(single.keys.tolist()) == found.keys[part].tolist()
        assert found.dropped[at] == pytest.approx(single.share, abs=1e-4)
        assert found.mass[part].sum() == pytest.approx(single.lost_share, abs=1e-4)
    pairs = sum(query + 1 for query in found.rows)
    assert found.share == pytest.approx(len(found.keys) / pairs)
    assert masks.lost_pairs(trace, 0, rows, [0]) is None


def test_lost_by_hand():
    # Four keys of equal mass, of which the window keeps the last: the smallest set with 90 % is all four.
    trace = make_trace("a b c d", window=1, sinks=0, query_topk=1)
    trace.arrays["query_bits"][:] = 0
    trace.arrays["queries.1"][:] = 0
    found = masks.lost_pairs(trace, 1, slice(3, 4), [0])
    assert found.keys.tolist() == [0, 1, 2]
    assert found.mass.tolist() == pytest.approx([0.25] * 3)
    assert found.lost_mass == pytest.approx(0.75)
    # One key with nearly everything, kept: nothing is lost.
    trace.arrays["queries.1"][:, 3, 0] = 60
    trace.arrays["keys.1"][:, :, 0] = [0, 0, 0, 60]
    assert not len(masks.lost_pairs(trace, 1, slice(3, 4), [0]).keys)


def test_rows_fit_the_budget_and_end_with_the_last():
    for count, cells in [(1, 10), (100, 10_000), (100, 900), (8192, 2_000_000), (50, 1)]:
        rows = masks.rows_for(count, cells=cells)
        picked = range(*rows.indices(count))
        assert len(picked) >= 1
        assert len(picked) * count <= max(cells, count)
        assert picked[-1] >= count - rows.step
    assert masks.rows_for(100, cells=10_000) == slice(0, 100, 1)
    part = range(*masks.rows_for(8192, 1000, 3000, 2_000_000).indices(8192))
    assert part[0] >= 1000
    assert part[-1] < 3000


def test_rows_are_joined_once_and_in_order(trace):
    some, one = masks.lost_pairs(trace, 1, slice(4, 60, 9), [0, 1]), masks.lost_pairs(trace, 1, slice(20, 21), [0, 1])
    both = masks.joined(masks.joined(some, one), some)
    assert both.rows.tolist() == sorted({*some.rows.tolist(), 20})
    at = both.rows.tolist().index(20)
    assert both.keys[both.start[at] : both.start[at + 1]].tolist() == one.keys.tolist()
    assert both.start[-1] == len(both.keys) == len(some.keys) + len(one.keys)


def test_shares_add_up_to_the_pattern(trace):
    pattern = trace.pattern(1)
    found = masks.shares(pattern, 2)
    n = len(trace)
    pairs = n * (n + 1) / 2
    i, j = np.tril_indices(n)
    near = i - j < 8
    assert found["near"] == pytest.approx(near.sum() / pairs)
    assert found["sink"] == pytest.approx((~near & (j < 1)).sum() / pairs)
    assert found["near"] + found["sink"] + found["group"] == pytest.approx(pattern.density(0, 2))
    assert sum(found.values()) == pytest.approx(1)
    lost = masks.lost_pairs(trace, 1, whole(trace), [2, 3])
    assert masks.shares(pattern, 2, lost)["lost"] == lost.share <= found["dropped"]


@pytest.mark.parametrize("cells", [10**9, 4000])
def test_an_overlay_counts_every_kind(trace, cells, monkeypatch):
    monkeypatch.setattr(masks, "MAX_CELLS", 3000)
    one, two = trace.pattern(1), trace.pattern(2)
    found = masks.overlay(one, two, 0, 4, cells=cells)
    n = len(trace)
    rows = np.arange(*masks.rows_for(n, cells=cells).indices(n))
    a, b = one.tile(0, 0, whole(trace), whole(trace))[rows], two.tile(0, 4, whole(trace), whole(trace))[rows]
    pairs = (rows + 1).sum()
    assert (found.rows, found.count) == (len(rows), n)
    assert found.both == pytest.approx((a & b).sum() / pairs)
    assert found.first == pytest.approx((a & ~b).sum() / pairs)
    assert found.second == pytest.approx((b & ~a).sum() / pairs)
    assert found.neither == pytest.approx(1 - (a | b).sum() / pairs)
    assert found.agreement == pytest.approx((a & b).sum() / (a | b).sum())


def test_an_overlay_of_the_same_mask_says_so(trace):
    found = masks.overlay(trace.pattern(1), trace.pattern(1), 0, 0)
    assert "keep the same pairs" in masks.overlay_answer(found, "Focus", "Random")
    dense = GroupPattern.without_groups(1, len(trace), len(trace), 6, len(trace))
    said = masks.overlay_answer(masks.overlay(trace.pattern(1), dense, 0, 0), "Focus", "Dense")
    assert "only by Dense" in said
    assert "only by Focus" not in said


def test_mass_on_a_pattern(trace):
    n = len(trace)
    assert masks.mass_on(trace, 1, [0, 1], GroupPattern.without_groups(1, n, n, 6, n)) == pytest.approx(1, abs=1e-5)
    own = masks.mass_on(trace, 1, [0, 1], trace.pattern(1))
    # The rows whose mean the run records as mass_kept, so that one name has one number.
    dropped = masks.lost_pairs(trace, 1, sampled_rows(n), [0, 1]).dropped
    assert own == pytest.approx(1 - dropped.mean(), abs=1e-5)
    assert masks.mass_on(trace, 0, [0], trace.pattern(0)) is None


def test_by_distance_against_every_pair(trace):
    found = masks.by_distance(trace, 1, [2, 3])
    n = len(trace)
    i, j = np.tril_indices(n)
    kept = trace.pattern(1).tile(0, 2, whole(trace), whole(trace))[i, j]
    mass = masks.dense_rows(trace, 1, whole(trace), [2, 3])[i, j]
    for b in range(len(found.low)):
        inside = (i - j >= found.low[b]) & (i - j <= found.high[b])
        assert found.kept[b] == pytest.approx(kept[inside].mean())
        assert found.mass[b] == pytest.approx(mass[inside].sum() / n, abs=1e-5)
        assert found.lost[b] == pytest.approx(mass[inside & ~kept].sum() / n, abs=1e-5)
    assert found.mass.sum() == pytest.approx(1, abs=1e-4)
    assert found.high[-1] == n - 1
    assert bins(found)[:4] == ["itself", "1", "2–3", "4–7"]
    assert found.kept[:4].tolist() == [1.0] * 4
    drawn = figure(found, 8)
    assert [t.type for t in drawn.data] == ["bar", "bar", "scatter"]
    assert "beyond the window" in sentence(found, 8)
    bare = masks.by_distance(trace, 0, [0])
    assert bare.mass is None
    assert [t.type for t in figure(bare, 8).data] == ["scatter"]
    assert "not in this recording" in sentence(bare, 8)
    assert "no pair is dropped" in sentence(found, n)


def test_one_token():
    trace = make_trace("word")
    found = masks.by_distance(trace, 1, [0])
    assert list(figure(found, 64).layout.yaxis2.tickvals) == [0, 25, 50, 75, 100]
    rows = table(found)
    assert list(rows.columns)[:3] == ["distance_from", "distance_to", "pairs_kept"]
    assert rows["dense_attention"].sum() == pytest.approx(1, abs=1e-4)
    assert found.kept.tolist() == [1.0]
    assert masks.lost_pairs(trace, 1, slice(0, 1), [0]).share == 0
    assert masks.shares(trace.pattern(1), 0)["near"] == 1
    assert "every pair is computed" in masks.answer(trace, 1, [0], None)


def test_the_answer_in_every_state(trace):
    lost = masks.lost_pairs(trace, 1, whole(trace), [2, 3])
    said = masks.answer(trace, 1, [2, 3], lost)
    assert said.startswith("In layer 1, heads 2 and 3,")
    assert "are lost, and" in said
    assert "lies on them" in masks.answer(trace, 0, [0], None)
    del trace.arrays["mass_kept"]
    assert masks.answer(trace, 0, [0], None).endswith("of the pairs are computed.")
    trace.provenance["native"] = [5, None, None, None]
    assert "own sliding window of 5 tokens" in masks.answer(trace, 0, [0], None)
    make_trace_dense = make_trace(TEXT)
    make_dense(make_trace_dense)
    assert "every pair is computed" in masks.answer(make_trace_dense, 1, [0, 1, 2], None)


def test_the_table_of_rows(trace):
    lost = masks.lost_pairs(trace, 1, slice(1, len(trace), 2), [2, 3])
    table = masks.row_table(trace, 1, 2, lost)
    assert table["kept"].tolist() == trace.pattern(1).kept_per_query(0, 2).tolist()
    assert table["possible"].tolist() == list(range(1, len(trace) + 1))
    assert table["lost"].isna().tolist() == [i % 2 == 0 for i in range(len(trace))]
    row = int(np.argmax(np.diff(lost.start)))
    first = str(lost.keys[lost.start[row]] + 1)
    assert table["lost"][int(lost.rows[row])].split()[0] == first
