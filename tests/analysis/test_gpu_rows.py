"""Rows of GPU results keep the run that they came from, and a row that lacks a number breaks no figure."""

from analysis.gpu_figures import by_length, model_bars, stage_bars
from analysis.gpu_results import profile, rows_of, stages_of
from analysis.gpu_targets import MET, MISSED, UNMEASURED, answer, outcomes
from tests.gpu_documents import SPREAD, document, prefill

COMMAND = "python -m benchmarks.gpu_x"


def test_a_command_that_ran_twice_has_two_runs():
    times = "2026-11-30T01:00:00+00:00", "2026-11-30T02:00:00+00:00"
    runs = [{"command": COMMAND, "environment": {"device": f"card {t[12]}", "time": t}} for t in times]
    fast, slow = (
        prefill(131072, faster, command=COMMAND, time=t) for faster, t in zip((12.0, 9.0), times, strict=True)
    )
    rows = rows_of([document(fast, slow, runs=runs)])
    assert [(row.run.card, row.run.time) for row in rows] == [("card 1", times[0]), ("card 2", times[1])]
    found = {one.target.key: one for one in outcomes(rows)}
    assert found["focus-131k-64"].measured.startswith("9.00×")


def test_an_older_result_of_the_same_is_beaten_in_whichever_file_it_lies():
    old = document(prefill(131072, 12.0), prefill(131072, 11.0, heads=8, kv=8, dim=128), file="bench-z-h200.json")
    new = document(prefill(131072, 9.0))
    new["environment"] = {**new["environment"], "time": "2026-12-01T01:00:00+00:00"}
    for documents in ((old, new), (new, old)):
        found = {one.target.key: one for one in outcomes(rows_of(documents))}
        assert found["focus-131k-64"].state == MISSED
        assert found["focus-131k-64"].measured.startswith("9.00×")
        # Of another shape nothing newer is there.
        assert found["focus-131k-128"].measured.startswith("11.0×")


def test_memory_is_met_by_both_that_are_held_to_it():
    focus, other = prefill(131072, 9.0), prefill(131072, 9.0, method="xattention", extra_over_qkvo=0.5)

    def found(*rows):
        one = next(one for one in outcomes(rows_of([document(*rows)])) if one.target.key == "memory")
        return one.state, one.measured

    assert found(focus, other)[0] == MET
    state, said = found(other)
    assert state == UNMEASURED
    assert said.startswith("at most 0.500×: XAttention")
    assert said.endswith("; Focus not measured")
    assert found({**focus, "extra_over_qkvo": 2.5})[0] == MISSED


def test_rows_without_their_numbers_are_left_out_or_drawn_without():
    whole = {"method": "model", "model": "M", "phase": "decode", "tokens": 32768, "line": "dense", "ms": None}
    lost = (
        prefill(None, 9.0),
        prefill(131072, 9.0, speedup=None, stages_ms={"plan": None, "group_pass": {**SPREAD, "median": None}}),
    )
    rows = rows_of([document(*lost, whole, [], None)])
    assert [row["tokens"] for row in rows] == [131072, 32768]
    assert stages_of(rows[0]) == {}
    assert profile(rows[0]) == "the pairs alone would give 15.0×"
    assert answer(rows).startswith("Focus's forward is not recorded on a GPU here")
    assert answer([]).startswith("Nothing is recorded of a GPU here")
    assert {one.state for one in outcomes(rows) if one.target.key.startswith("focus")} == {UNMEASURED}
    assert not model_bars(rows, "M", "decode").data
    for figure in (by_length(rows, "speed"), stage_bars(rows)):
        assert "Nothing is recorded" in figure.layout.annotations[0].text
