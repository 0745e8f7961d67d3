import numpy as np
import pytest

from analysis import heads
from analysis.layers_heads import FIELDS, layers_by_heads, of_trace
from tests.app.synthetic import HEADS, LAYERS, make_trace


@pytest.fixture
def trace():
    return make_trace("some words that are read " * 12)


def test_measures_that_were_not_recorded_are_left_out(trace):
    assert [m.field for m in heads.recorded(trace)] == ["kept_pairs", "mass_kept", "entropy", "sink_mass"]
    old = make_trace("some words", extras=False)
    assert [m.field for m in heads.recorded(old)] == ["kept_pairs", "mass_kept"]
    assert heads.ranked(old, "entropy") == []
    assert heads.similar(old, 0, 0) == []


def test_ranks_are_the_sorted_values(trace):
    for field in heads.MEASURES:
        found = heads.values(trace, field)
        order = heads.ranked(trace, field)
        assert sorted(order) == [(at, h) for at in range(LAYERS) for h in range(HEADS)]
        assert (np.diff([found[at] for at in order]) <= 0).all()
        assert (np.diff([found[at] for at in heads.ranked(trace, field, highest=False)]) >= 0).all()


def test_heads_without_a_number_are_not_ranked(trace):
    trace.arrays["entropy"][1, 2] = np.nan
    assert (1, 2) not in heads.ranked(trace, "entropy")
    assert len(heads.ranked(trace, "entropy")) == LAYERS * HEADS - 1


def test_similar_heads_are_the_nearest_others(trace):
    found = heads.similar(trace, 2, 3, 5)
    assert len(found) == 5
    assert (2, 3) not in [(at, h) for at, h, _ in found]
    row = trace.arrays["similar"][2 * HEADS + 3].astype(float)
    best = sorted(np.delete(row, 2 * HEADS + 3))[::-1][:5]
    assert [s for *_, s in found] == pytest.approx(best)
    for layer, head, value in found:
        assert value == row[layer * HEADS + head]


def test_one_scale_holds_all_that_is_compared():
    assert heads.scale(np.array([[0.2, 0.5]]), np.array([[0.1, np.nan]])) == (0.1, 0.5)
    low, high = heads.scale(np.full((2, 2), 0.3))
    assert low < 0.3 < high
    assert heads.scale(np.full((1, 1), np.nan)) == (0.0, 1.0)


def test_numbers_have_their_unit():
    assert heads.MEASURES["kept_pairs"].text(0.4142) == "41.4 %"
    assert heads.MEASURES["entropy"].text(2.5) == "2.50 nats"


def test_every_measure_is_a_figure_in_its_own_unit(trace):
    assert list(FIELDS) == list(heads.MEASURES)
    shares, nats = of_trace(trace, "sink_mass").data[0], of_trace(trace, "entropy").data[0]
    assert np.allclose(shares.z, 100 * trace.arrays["sink_mass"])
    assert (shares.zmin, shares.zmax) == (0, 100)
    assert np.allclose(nats.z, trace.arrays["entropy"])
    assert (nats.zmin, nats.zmax) == pytest.approx((trace.arrays["entropy"].min(), trace.arrays["entropy"].max()))
    assert nats.text[0][0].endswith(" nats")
    change = layers_by_heads(np.array([[0.5, -0.25]]), "Entropy", unit="nats", difference=True).data[0]
    assert (change.zmin, change.zmax) == (-0.5, 0.5)
    assert change.text[0][0] == "+0.500 nats"
