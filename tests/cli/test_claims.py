"""``claims``: lists, filters, and shows one."""

import pytest

from focus_core.claims import METHODS, OPEN, VERDICTS, claims


def test_claims_are_listed_filtered_and_shown(command):
    code, every = command("claims")
    assert code == 0
    assert len(every) == len(claims())
    for method in METHODS:
        _, found = command("claims", "--method", method)
        assert {one["method"] for one in found} == {method}
    _, found = command("claims", "--method", "slim", "--verdict", "not reproduced")
    assert found
    assert {(one["method"], one["verdict"]) for one in found} == {("slim", "not reproduced")}
    assert sum(len(command("claims", "--verdict", v)[1]) for v in (*VERDICTS, OPEN)) == len(every)


def test_one_claim_is_shown_whole(command, capsys):
    from focus_core.cli import main

    code, found = command("claims", "focus-speed-1m")
    assert code == 0
    assert found["measured"][0]["made"]["device"] == "NVIDIA H200"
    assert main(["claims", "focus-speed-1m"]) == 0
    said = capsys.readouterr().out
    assert "arXiv 2604.03260" in said
    assert "benchmarks.gpu_focus" in said
    assert main(["claims"]) == 0
    assert f"{len(claims())} claims" in capsys.readouterr().out


@pytest.mark.parametrize(
    "given", [("nobody",), ("--method", "magic"), ("--verdict", "true"), ("slim-half", "--method", "slim")]
)
def test_what_does_not_exist_is_refused(refused, given):
    assert refused("claims", *given)
