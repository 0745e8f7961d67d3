"""What docs/results.md tells of the frontier is what was recorded, and the shipped table follows from its costs."""

import math

import numpy as np
import pytest

from data.build import fifth, frontier
from focus_core.assets import DATA, adapters
from focus_core.jobs.files import read_json
from focus_core.routing.look_costs import near_share

PAGE = frontier.PAGE.read_text("utf-8")
PROSE = " ".join(PAGE.split())
README = (DATA.parent / "README.md").read_text("utf-8")
NAME = "smollm2-directed-k16-fifth"


def search(name: str) -> dict:
    return read_json(DATA / "results" / f"{name}.json.gz")


def test_the_table_is_that_of_the_results():
    assert frontier.table() in PAGE


def test_the_goals_are_told_as_they_were_met():
    short = {line: frontier.result(line, "persuasion", 4096) for line in ("q2", "looks")}
    assert all(found["ppl"] <= found["dense_ppl"] for found in short.values())
    assert short["q2"]["kept_pairs"] <= 0.2
    assert abs(short["q2"]["nll_diff"]) < short["q2"]["nll_se"], "no difference, as the page says"
    missed = frontier.result("looks", "persuasion", 8192)
    assert missed["kept_pairs"] <= 0.125
    assert f"the second is missed by {100 * math.expm1(missed['nll_diff']):.1f} %." in PROSE
    for text in frontier.TEXTS[1:]:
        for _, line, context, *_ in frontier.LINES:
            found = frontier.result(line, text, context)
            assert found is None or found["ppl"] > found["dense_ppl"], "on no other text"


def test_the_table_is_ahead_of_one_number_for_all():
    found = search("allocate-4096")
    _, two, three = found["rivals"]
    best = found["tables"][found["best"]]
    kept = [two["kept_pairs"], three["kept_pairs"]]
    between = np.interp(best["kept_pairs"], kept, [two["nll"], three["nll"]])
    assert f"it is {100 * math.expm1(between - best['nll']):.1f} % ahead of a straight line" in PROSE
    grid = frontier.read_json(DATA / "results" / "frontier-directed-k16-4096-q1-persuasion-4096.json")
    assert f"keeps {100 * grid['kept_pairs']:.1f} % with one group and loses" in PROSE
    assert f"loses {100 * math.expm1(grid['nll_diff']):.1f} % on *Persuasion*" in PROSE


@pytest.mark.parametrize("text, name", [("persuasion", "*Persuasion*"), ("brown", "Brown")])
def test_the_shipped_table_is_told_as_it_was_measured(text, name):
    found = read_json(DATA / "results" / f"frontier-directed-k16-fifth-{text}-4096-float32.json")
    assert (found["windows"], found["dtype"], found["adapter_name"]) == (10, "float32", NAME)
    change, kept = 100 * math.expm1(found["nll_diff"]), 100 * found["kept_pairs"]
    if text == "persuasion":
        assert kept <= 20
        assert found["ppl"] + 2 * found["ppl_se"] < found["dense_ppl"]
    cells = next(line for line in README.splitlines() if line.startswith("| Focus, the same router")).split("|")
    assert f"{kept:.1f} %, {found['ppl']:.2f}" in cells[2 if text == "persuasion" else 3].replace("*", "")
    assert f"({change:+.1f} %)" in cells[2 if text == "persuasion" else 3]
    assert f"{found['dense_ppl']:.2f}" in cells[1]
    assert f"{change:+.1f} % ± {100 * found['nll_se']:.1f} with {kept:.1f} % of the pairs on {name}" in PROSE


def test_the_readme_tells_what_a_fifth_costs_elsewhere():
    code = frontier.result("looks", "python_code", 4096)
    told = f"nor for code ({100 * math.expm1(code['nll_diff']):+.0f} % with {100 * code['kept_pairs']:.0f} %)"
    assert told in " ".join(README.split())


def test_every_line_has_its_windows_and_a_command():
    for _, line, context, *_ in frontier.LINES:
        for text in frontier.TEXTS:
            found = frontier.result(line, text, context)
            if found is None:
                continue
            assert (found["context"], found["dtype"], found["served"]) == (context, "bfloat16", True)
            most = {"persuasion": (10, 10), "brown-fiction": (2, 1), "python_code": (8, 4), "python_reference": (9, 4)}
            assert found["windows"] == most[text][context == 8192]
            assert found["command"].startswith("python -m focus_core eval --model smollm2 ")
            assert found["environment"]["device"] == "NVIDIA H200"
            assert ("made" in found) == (line not in ("q1", "q2"))


def test_the_shipped_table_follows_from_the_recorded_costs():
    config = adapters()[NAME]["config"]
    found = search("allocate-4096")
    looks, expected = fifth.choose(found, fifth.BUDGET)
    assert looks == config["config"]["looks"]
    assert expected <= fifth.BUDGET
    assert near_share(4096, config["serve"]["window"], config["serve"]["sinks"]) < expected
    assert config["weights"] == fifth.FROM == found["adapter"]
    # The search's own table comes of the same costs, but for what their seven digits decide.
    assert np.not_equal(fifth.choose(found, found["budget"])[0], found["tables"][2]["looks"]).sum() <= 1


def test_with_a_smaller_budget_fewer_pairs_are_kept():
    found = search("allocate-4096")
    kept = [fifth.choose(found, budget)[1] for budget in (0.1, 0.15, fifth.BUDGET)]
    assert kept == sorted(kept)
    assert kept == pytest.approx([0.1, 0.15, fifth.BUDGET], abs=0.002)
