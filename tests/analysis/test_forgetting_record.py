"""The recorded probes of what is forgotten: asked the same, weights kept, and what the page says of them follows."""

import math
from pathlib import Path

import pytest

from analysis import forgetting as words
from analysis.forgetting_arms import FOCUS, FOCUS_FULL, FULL, LORA, arm_key, domain_gain, family, training
from analysis.forgetting_losses import PANELS, other_texts, shares
from data.build import forgetting, forgetting_table
from focus_core.assets import DATA

OTHER, GRAMMAR = PANELS["Other texts"][1], PANELS["Grammar behind a passage"][1]
INSTRUCTIONS = PANELS["Instructions"][1]


@pytest.fixture(scope="module")
def found():
    return words.arms(forgetting_table.documents(DATA.parent / forgetting_table.RESULTS))


@pytest.fixture(scope="module")
def of(found):
    return {arm_key(one).removeprefix("smollm2-"): one for one in found[1]}


def test_every_arm_was_asked_the_same_of_the_same_model(found):
    dense, others = found
    assert len(others) > 10
    for one in others:
        for key in ("items", "sizes", "tasks", "revision", "dtype", "model"):
            assert one[key] == dense[key], (arm_key(one), key)
        assert {k: v for k, v in one["environment"].items() if k != "time"} == {
            k: v for k, v in dense["environment"].items() if k != "time"
        }
        base = {row["part"]: row["ppl"] for row in dense["rows"] if row["task"] == "texts"}
        assert {row["part"]: row["dense_ppl"] for row in one["rows"] if row["task"] == "texts"} == base
        assert other_texts(dense, one) is not None


def test_the_models_weights_are_kept_and_those_that_computed_are_those_that_were_trained(found):
    dense, others = found
    own = dense["weights"]["before"]
    for one in (dense, *others):
        weights = one["weights"]
        assert weights["same"], arm_key(one)
        assert {weights[when] for when in ("before", "inside", "after")} == {own}
        assert weights["logits_change"] == 0
        if family(one) in (FULL, FOCUS_FULL):
            assert training(one)["weights"] == {"before": own, "after": weights["used"]}
            assert weights["used"] != own
    used = [one["weights"]["used"] for one in others if "used" in one["weights"]]
    assert len(set(used)) == len(used) == 5


def test_what_each_was_trained_on_is_told(found):
    told = forgetting_table.section(*found)
    assert "Trained on 0.82 million tokens of novels; routers on 1.64 or 4.51." in told
    assert "`python -m data.build.forgetting all --device cuda`" in told


def test_the_commands_that_the_build_plans_are_those_that_were_run(found):
    dense, others = found
    for name in forgetting.ARMS:
        path = forgetting.result_of(name, "cuda", DATA.parent / forgetting.RESULTS)
        if not path.exists():
            assert name == "lora-r32-0.003"
            continue
        one = dense if name == "dense" else next(d for d in others if arm_key(d).removeprefix("smollm2-") == name)
        wanted = forgetting.probe_command(name, "cuda", forgetting.LARGE, one["model"], Path("build/forgetting"))
        assert _told(one["command"]) == wanted
        if forgetting.ARMS[name].train:
            budget = forgetting.BUDGET
            wanted = forgetting.train_command(name, "cuda", budget, one["model"], Path("build/forgetting"))
            assert _told(training(one)["command"]) == wanted


def _told(command):
    # Two goes beside each other kept their weights in build/forgetting0 and build/forgetting1.
    for number in "01":
        command = command.replace(f"build/forgetting{number}/", "build/forgetting/")
    return command.removeprefix("python -m focus_core ").split(" ")


def test_a_router_costs_other_texts_and_needles_and_what_is_trained_through_dense_loses_no_needles(found):
    dense, others = found
    for one in others:
        name, kind = arm_key(one), family(one)
        for length in ("512", "2048", "8192"):
            needles = shares("needle", "all", (length,))(dense, one)
            assert (needles.high < 0) == (kind in (FOCUS, FOCUS_FULL)), (name, length)
        assert (OTHER(dense, one).low > 0) == (kind in (LORA, FULL) and name != "lora-r8-0.01"), name
        assert (GRAMMAR(dense, one).low > 0) == (kind != FOCUS), name
        told = INSTRUCTIONS(dense, one)
        assert told.low < 0 < told.high, name
    assert all(OTHER(dense, one).high < 0 for one in others if family(one) == FOCUS)


def test_the_highest_rate_of_lora_costs_every_other_text_and_full_fine_tuning_gains_most(found, of):
    dense, others = found
    changes = words.changes(dense, of["lora-r8-0.01"])
    elsewhere = [one for one in changes if one.measure.key[0] == "texts" and one.measure.group == words.GENERAL]
    assert len(elsewhere) == 4
    assert all(one.high < 0 for one in elsewhere)
    assert max(others, key=domain_gain) is of["full-0.0001"]


@pytest.mark.parametrize("rate", ["3e-05", "0.0001"])
def test_all_weights_through_focus_are_not_ahead_of_dense_at_the_same_rate(of, rate):
    focus, dense = (_novel(of[f"{kind}-{rate}"]) for kind in ("focus-full", "full"))
    behind = focus["nll_diff"] - dense["nll_diff"]
    assert 0 < behind < words.students(15) * math.hypot(focus["nll_se"], dense["nll_se"])
    assert round(focus["kept_pairs"], 2) == 0.44


def _novel(document):
    (row,) = (row for row in document["rows"] if row["task"] == "texts" and row["where"] == "domain")
    return row
