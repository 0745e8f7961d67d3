import math

import pytest

from analysis.numbers import NONE, duration, memory, operations, percent, sig3, spread, times


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (1234567, "1,230,000"),
        (1234.4, "1,230"),
        (999.6, "1,000"),
        (33.505, "33.5"),
        (9.996, "10.0"),
        (0.30912, "0.309"),
        (-0.0123456, "-0.0123"),
        (math.nan, NONE),
        (math.inf, NONE),
        (None, NONE),
    ],
)
def test_three_significant_figures(value, said):
    assert sig3(value) == said


def test_a_spread_has_two_figures():
    assert [spread(share) for share in (0.1219, 0.0119, 0.00123, 0.0)] == ["± 12 %", "± 1.2 %", "± 0.12 %", "± 0 %"]


def test_units_change_where_they_read_best():
    assert duration(0.5) == "500 µs"
    assert duration(12.34) == "12.3 ms"
    assert duration(2345) == "2.35 s"
    assert duration(600_000) == "10.0 min"
    assert memory(512) == "512 B"
    assert memory(3_140_000) == "3.14 MB"
    assert memory(5e9) == "5.00 GB"
    assert operations(2.5e9) == "2.50 GFLOP"
    assert operations(2.5e13) == "25.0 TFLOP"


def test_shares_and_ratios_carry_their_sign_and_unit():
    assert percent(0.309) == "30.9 %"
    assert percent(0.0205, signed=True) == "+2.05 %"
    assert percent(-0.0205, signed=True) == "−2.05 %"
    assert percent(0.0, signed=True) == "0 %"
    assert times(0.745) == "0.745×"
    assert times(None) == NONE
