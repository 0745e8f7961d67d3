"""Stages of a measurement: what one does wrong ends that one, and is said."""

import os
import time

import pytest

from benchmarks.stages import run_stage


def good(count):
    for n in range(count):
        yield {"n": n}


def bad():
    yield {"n": 0}
    raise ValueError("seven tiles")


def dies():
    yield {"n": 0}
    os._exit(7)


def hangs():
    yield {"n": 0}
    time.sleep(60)


def test_rows_come_in_their_order_and_the_end_is_said(capsys):
    rows = list(run_stage("one", good, (2,), 20))
    assert [row["n"] for row in rows[:-1]] == [0, 1]
    assert rows[-1]["ended"]
    assert rows[-1]["stage"] == "one"
    assert rows[-1]["seconds"] > 0
    assert "[one] starts" in capsys.readouterr().out


@pytest.mark.parametrize(
    "work, limit, reason", [(bad, 20, "seven tiles"), (dies, 20, "ended with 7"), (hangs, 3, "3 s")]
)
def test_what_fails_dies_or_hangs_is_said_with_the_rows_before_it(work, limit, reason):
    began = time.monotonic()
    rows = list(run_stage("two", work, (), limit))
    assert rows[0]["n"] == 0
    assert any(reason in row.get("problem", "") for row in rows)
    assert time.monotonic() - began < 15
