"""Every number of the ledger is that of its recorded result, and every claim says what a reader needs."""

import re

import pytest

from focus_core import claims as ledger
from focus_core.errors import InvalidInput

ALL = ledger.claims()
MEASURED = [(one["id"], at, measured) for one in ALL for at, measured in enumerate(one["measured"])]
KNOWN = {"what", "value", "unit", "digits", "file", "key", "keys", "formula", "setting", "series", "command", "rerun"}


def test_every_claim_is_whole_and_named_once():
    assert len({one["id"] for one in ALL}) == len(ALL) > 50
    assert {one["method"] for one in ALL} == set(ledger.METHODS)
    for one in ALL:
        assert set(one) == set(ledger.FIELDS), one["id"]
        for field in ("claim", "source", "paper", "condition", "why"):
            assert isinstance(one[field], str), (one["id"], field)
            assert one[field], (one["id"], field)
        assert one["verdict"] in (*ledger.VERDICTS, ledger.OPEN), one["id"]


def test_a_verdict_rests_on_a_number_and_an_open_claim_says_what_would_decide_it():
    for one in ALL:
        assert one["measured"] or one["verdict"] in (ledger.OPEN, "not testable here"), one["id"]
        assert one["why"].startswith("Open: ") == (one["verdict"] == ledger.OPEN), one["id"]


@pytest.mark.parametrize(("name", "at", "measured"), MEASURED, ids=[f"{name}-{at}" for name, at, _ in MEASURED])
def test_every_number_is_that_of_its_file(name, at, measured):
    assert set(measured) <= KNOWN
    assert {"what", "value", "unit", "file", "setting"} <= set(measured)
    digits = measured.get("digits", 3)
    for place in (measured.get("keys") or {"a": measured["key"]}).values():
        assert not re.search(r"\[-?\d+\]", place), "name the row: a number is that of another one tomorrow"
    assert measured["value"] == ledger.rounded(ledger.resolve(measured), digits)
    if "series" in measured:
        found = ledger.document(measured["file"])
        x, y = (ledger.at(found, measured["series"][axis]) for axis in "xy")
        assert len(x) == len(y) > 1
    assert ledger.made_by(measured)["command"]


def test_a_number_is_told_with_the_command_of_its_own_row():
    found = ledger.document("bench-xattention-h200.json")
    (measured,) = ledger.claim("xattention-13x")["measured"]
    row = ledger.at(found, "rows[design=flash&form=own&tokens=131072]")
    assert ledger.made_by(measured)["command"] == row["command"] != found["command"]


def test_a_number_counted_from_two_results_names_both():
    keys = {"a": "rows[length=8192].speedup", "b": "bench-focus-h200.json: rows", "c": "bench-focus-h200.json: x"}
    two = {"file": "bench-focus-cpu.json", "keys": keys}
    assert ledger.files(two) == ["bench-focus-cpu.json", "bench-focus-h200.json"]
    made = ledger.made_by(two)
    assert made["files"] == ["data/results/bench-focus-cpu.json", "data/results/bench-focus-h200.json"]
    assert made["file"] == made["files"][0]


def test_what_is_not_there_is_refused():
    good = {"file": "bench-focus-cpu.json", "key": "rows[length=8192].speedup"}
    assert ledger.resolve(good) > 1
    for change in (
        {"file": "no-such.json"},
        {"file": "../claims.yaml"},
        {"key": "rows[length=7].speedup"},
        {"key": "rows[99].speedup"},
        {"key": "rows[*].speedup"},
        {"key": "rows[length=8192].none"},
        {"key": "command"},
        {"formula": "__import__('os')"},
        {"formula": "a ** 9"},
        {"formula": "b"},
    ):
        with pytest.raises(InvalidInput):
            ledger.resolve({**good, **change})
    with pytest.raises(InvalidInput):
        ledger.claim("nobody-said-that")


def test_formulas_and_a_new_result():
    rows = {"rows": [{"k": 1, "v": [1.0, 4.0]}, {"k": 2, "v": [2.0]}]}
    assert ledger.resolve({"key": "rows[*].v", "formula": "max(a)"}, rows) == 4
    assert ledger.resolve({"key": "rows[*].v", "formula": "max(log(a)) - log(4)"}, rows) == 0
    assert ledger.resolve({"key": "rows[*k=1].v", "formula": "100 * (mean(a) - min(a))"}, rows) == 150
    assert ledger.resolve({"key": "rows[*].v", "formula": "exp(mean(log(a)))"}, rows) == pytest.approx(2)
    assert ledger.rounded(123.456) == 123


def test_a_field_inside_a_field_and_a_place_beside_a_name_are_found():
    found = {"at": {"t": [0.5, 0.9]}, "rows": [{"config": {"k": 8}, "v": [1, 2]}, {"config": None, "v": [3, 4]}]}
    assert ledger.resolve({"key": "rows[config.k=8].v[@at.t=0.9]"}, found) == 2
    assert ledger.resolve({"key": "rows[config.k=None].v[@at.t=0.5]"}, found) == 3
    for key in ("rows[config.k=9].v[@at.t=0.9]", "rows[config.k=8].v[@at.t=0.7]", "rows[config.k=8].v[@t=0.9]"):
        with pytest.raises(InvalidInput):
            ledger.resolve({"key": key}, found)


def test_what_can_be_run_again_is_a_request_that_its_handler_takes():
    from focus_core.handlers import handler
    from focus_core.jobs.costs import Host

    asked = [measured["rerun"] for _, _, measured in MEASURED if "rerun" in measured]
    assert len(asked) > 2
    for one in asked:
        assert set(one) <= {"kind", "request", "key", "keys", "formula"}
        assert handler(one["kind"]).estimate(one["request"], Host(cores=2)).seconds > 0
