"""What docs/results.md tells of the frontier is what was recorded, and the shipped table follows from its costs."""

import math

import numpy as np
import pytest

from data.build import fifth, frontier
from focus_core.assets import DATA, adapters
from focus_core.experiments.plan import read_plan
from focus_core.jobs.files import read_json
from focus_core.routing.look_costs import near_share

PAGE = frontier.PAGE.read_text("utf-8")
PROSE = " ".join(PAGE.split())
README = (DATA.parent / "README.md").read_text("utf-8")
NAME = "smollm2-directed-k16-fifth"
TWO = f"{frontier.SHIPPED}-q2"


def search(name: str) -> dict:
    return read_json(DATA / "results" / f"{name}.json.gz")


@pytest.fixture(scope="module")
def marks():
    return frontier.recorded()


def test_the_tables_are_those_of_the_results():
    assert frontier.table() in PAGE
    assert frontier.patterns() in PAGE
    assert f"{frontier.sees()}\n- {frontier.short()}" in PAGE


def test_the_goals_are_told_as_they_were_met():
    two, table = (frontier.result(line, "persuasion", 4096) for line in (TWO, "directed-k16-looks"))
    assert all(found["ppl"] <= found["dense_ppl"] for found in (two, table))
    assert two["kept_pairs"] <= 0.2
    assert abs(two["nll_diff"]) < two["nll_se"], "no difference, as the page says"
    missed = frontier.result("directed-k16-gently-looks", "persuasion", 8192)
    assert missed["kept_pairs"] <= 0.125
    assert f"the second is missed by {100 * math.expm1(missed['nll_diff']):.1f} %,** and met on the validation" in PROSE
    search_ = search("allocate-8192-k16-gently")
    best = search_["tables"][search_["best"]]
    assert best["nll"] < search_["rivals"][0]["nll"]
    assert best["kept_pairs"] <= 0.125
    few = [mark for mark in frontier.recorded() if (mark.text, mark.context) == ("persuasion", 8192)]
    assert min(mark.change for mark in few if mark.kept <= 0.125) == pytest.approx(math.expm1(missed["nll_diff"]))
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
    grid = frontier.result("directed-k16-4096-q1", "persuasion", 4096)
    assert f"With one group it keeps {100 * grid['kept_pairs']:.1f} % and loses" in PROSE
    assert f"loses {100 * math.expm1(grid['nll_diff']):.1f} % on *Persuasion*" in PROSE


def test_who_is_ahead_of_whom_is_so_in_the_records(marks):
    def of(line, text="persuasion", context=4096):
        return frontier.one(marks, line, text, context)

    one, two, three, four = (f"{frontier.SHIPPED}-q{looks}" for looks in (1, 2, 3, 4))
    others = ("random-k16-q2", "bigbird-plain", "kmeans-k16-q2", "window-512", "longformer-512", "xattention")
    assert all(of(two).change + 2 * of(two).error < of(line).change - 2 * of(line).error for line in others[:-1])
    assert all(of(three).change < of(line).change for line in others)
    assert of(three).kept < of("longformer-512").kept
    assert all(of(one).change < of(line).change for line in ("window-256", "routing-k16", "longformer-256"))
    assert of(one, "brown-fiction").change > of("window-256", "brown-fiction").change
    for text in ("python_code", "python_reference"):
        assert of("window-512", text).change < of(two, text).change / 2
        assert of("xattention", text).change < of(three, text).change / 4
    for text in frontier.TEXTS:
        random = of("random-k16-q2", text)
        ahead = math.expm1(frontier.at_pairs(marks, text, 4096, random.kept)) < random.change
        assert ahead == (text in ("persuasion", "brown-fiction"))
        for context in frontier.CONTEXTS:
            means, drawn = (of(line, text, context) for line in ("kmeans-k16-q2", "random-k16-q2"))
            assert means.kept > drawn.kept
            assert means.change > drawn.change
    assert all(of(line).kept > of(four).kept for line in ("shared-k4", "shared-k8"))
    assert all(of(line).change > of(four).change for line in ("shared-k4", "shared-k8"))


def test_what_was_trained_for_an_eighth_is_told_as_it_was_cut():
    record = read_json(DATA / "results" / "training-eighth.json")
    lines = record["lines"]
    assert record["not_run"] == ["directed-k16-longer"]
    ran = {name: (line["best_step"], line["step"], line["settings"]["steps"]) for name, line in lines.items()}
    assert ran == {
        "directed-k16-on": (300, 700, 900),
        "directed-k32-wide": (440, 525, 550),
        "directed-k32-again": (300, 300, 450),
        "directed-k16-three": (450, 461, 900),
        "directed-k16-gently": (450, 476, 600),
    }
    told = {
        name: 100 * (line["served_validation_ppl"] / line["dense_validation_ppl"] - 1) for name, line in lines.items()
    }
    assert f"to {told['directed-k16-on']:+.1f} % at its best (step 300 of 900; 700 ran)" in PROSE
    assert f"to {told['directed-k32-again']:+.1f} % (300 of 450 ran)" in PROSE
    assert f"it is at {told['directed-k16-three']:+.1f} % with 21.8 % of the pairs (step 450 of 900; 461 ran)" in PROSE
    assert f"from {on_slice('allocate-8192-window-64', 'query_topk 2')[1]} % to" in PROSE
    assert f"from {on_slice('allocate-8192-k32', 'query_topk 4')[1]} % to" in PROSE
    after, before = on_slice("allocate-8192-k16-gently", "query_topk 2"), on_slice("allocate-8192", "query_topk 2")
    assert f"({after[1]} % with {after[0]} %, before it {before[1]} % with {before[0]} %)" in PROSE


def on_slice(name: str, what: str) -> tuple[str, str]:
    """Pairs kept and change on the validation slice, in %, as a search compared them."""
    kept, change = frontier.slice_(name, what).split(", ")
    return kept.removesuffix(" %"), change.removesuffix(" %")


def test_every_pattern_was_measured_by_the_command_of_its_plan():
    plan = read_plan([DATA.parent / "experiments" / "frontier-plain.toml"], DATA, DATA / "results")
    missing = [task.name for task in plan if not task.done()]
    assert f"({len(missing)} of {len(plan)} measurements)" in PROSE
    assert all("-window-64-" in name for name in missing)


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
    code = frontier.result("directed-k16-looks", "python_code", 4096)
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
            assert found["command"].startswith("python -m focus_core eval --")
            assert found["environment"]["device"] == "NVIDIA H200"
            assert ("made" in found) == (not line.startswith(frontier.SHIPPED))


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
