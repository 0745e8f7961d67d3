"""What the page says of measured results, on those that ship and on small ones."""

import json

import numpy as np
import pytest

from analysis.features import cost, errors, pairs
from analysis.features.figures import order_of
from focus_core.assets import DATA


def shipped(name: str) -> dict:
    return json.loads((DATA / "results" / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def measured() -> dict:
    return shipped("features-smollm2.json")


@pytest.fixture(scope="module")
def speed() -> dict:
    return shipped("feature-speed-cpu.json")


def test_the_recorded_errors_are_compared_at_the_same_bytes(measured):
    size, wide, codes, short = errors.same_bytes(measured, 16)
    assert (size, wide) == (errors.key_bytes("features", 16), 24) == (errors.key_bytes("short", 24), 24)
    at = measured["grid"].index(16)
    assert codes == pytest.approx(np.mean(measured["errors"]["features"][at]))
    assert short == pytest.approx(np.mean(measured["errors"]["short"][measured["grid"].index(24)]))
    said = errors.error_sentence(measured, 20)
    assert ("less than codes" if short < codes else "more than codes") in said
    assert errors.same_bytes(measured, 48) is None
    assert errors.key_bytes("pairs", 16) == 40
    for by in errors.BY:
        figure = errors.error_figure(measured, by, 3)
        assert [line.name for line in figure.data] == [
            errors.LABELS[m] for m in errors.LABELS if m in measured["errors"]
        ]
        line = figure.data[0]
        assert line.y[0] == measured["errors"]["features"][0][measured["layers"].index(3)]
    assert max(x for line in errors.error_figure(measured, "bytes", None).data for x in line.x) <= 128


def test_predicted_counted_and_timed_stand_together(measured, speed):
    found = cost.shares(measured, 16)
    assert found["predicted"] == (16 / 64) ** 2
    assert found["counted"] == pytest.approx(np.mean(measured["shared"][measured["grid"].index(16)]) / 64)
    assert found["with values"] == pytest.approx((1 + found["counted"]) / 2)
    assert cost.shares(measured, 5)["counted"] is None
    row = cost.timed(speed, "prefill", 16, 4096)
    assert cost.time_ratio(row)["median"] == pytest.approx(1 / row["speedup"])
    said = cost.cost_sentence(measured, speed, 15)
    assert "16 of 64 features need 6.25 % of a score's products" in said
    assert "a prefill of 4,096 tokens takes" in said
    assert "one token decoded over 4,096 takes" in said
    assert len(cost.cost_figure(measured, speed).data) == 5
    said = cost.what_timed(speed)
    assert "attention of one layer alone: 9 query heads on 3 key heads of 64 numbers, random queries and keys" in said
    assert "1 thread of" in said
    assert speed["command"] in said
    variants = shipped("bench-variants-cpu.json")
    said = cost.other_record(speed, variants, 15)
    assert variants["command"] in said
    assert "queries and keys of smollm2, 2 threads of" in said
    assert "16 features take 1.24× dense's time for that prefill, which Choose writes as a speed of 0.809×" in said
    assert cost.other_record(speed, variants, 32) == cost.other_record(speed, None, 16) == ""
    faster = {**row, "speedup": 2.0, "speedup_p10": 1.8, "speedup_p90": 2.2}
    assert cost.no_gain(speed).startswith("There is no gain")
    assert cost.no_gain({"rows": [faster]}) == ""
    assert "(faster)" in cost.cost_sentence(measured, {"rows": [faster]}, 16)


def test_the_live_caches_bytes_are_the_formulas(measured):
    table = cost.cache_table(measured)
    assert (table["formula"] == table["measured"]).all()
    half = table[(table["bits"] == 16) & (table["kept"] == "16 features")].iloc[0]
    assert half["measured"] == 30 * 3 * (3 * 16 + 2 * 64)
    assert half["share"] == pytest.approx((3 * 16 + 2 * 64) / (4 * 64))
    assert "15,840 bytes a token in 16 bits, as the formula says" in cost.cache_sentence(measured, 16)


def test_both_together_are_held_against_the_sum():
    result = shipped("fewer-pairs-smollm2.json")
    found = pairs.groups(result)
    assert {(g["pairs"], g["features"]) for g in found} == {(p, k) for p in pairs.NAMES for k in (16, 32)}
    for group in found:
        assert group["sum"] == group["alone"]["nll_diff"] + group["codes"]["nll_diff"]
        assert group["alone"]["features"] is None
        assert group["codes"]["variant"] == "sfa"
    assert len({row["dense_ppl"] for row in result["rows"]}) == 1
    alike = [abs(g["together"] - g["sum"]) <= 2 * np.hypot(g["sum_se"], g["both"]["nll_se"]) for g in found]
    assert pairs.pairs_sentence(result).startswith(f"In {sum(alike)} of 4 cases")
    assert [bar.name for bar in pairs.pairs_figure(result).data] == list(pairs.PARTS.values())
    table = pairs.pairs_table(result)
    assert table["attention"].tolist()[0] == "dense"
    assert len(table) == 1 + len(result["rows"])
    assert pairs.pairs_sentence({"rows": []}).startswith("Nothing")


def test_the_two_dimensions_of_a_rotary_pair_are_side_by_side():
    assert order_of(6, 4).tolist() == [0, 2, 1, 3, 4, 5]
    assert order_of(4, 0).tolist() == [0, 1, 2, 3]
