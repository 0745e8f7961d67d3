"""The experiment on collapse: what is recorded, that parts can be put back, and that the model given is not changed."""

import json

import pytest
import torch

from focus_core.errors import Cancelled, InvalidInput
from focus_core.training.collapse import ORDER, PARTS, CollapseSettings, compare_balances
from tests.training.small import ids, loaded

SMALL = {
    "steps": 6,
    "groups": 4,
    "dim": 4,
    "window": 4,
    "sinks": 1,
    "context": 48,
    "batch": 2,
    "look_every": 3,
    "learning_rate": 0.05,
}


def run(base=None, **changes):
    given = {**SMALL, **changes}
    on_record, cancel = given.pop("on_record", None), given.pop("cancel", None)
    base = base or loaded()
    return compare_balances(
        base, ids(), ids(200, seed=1), CollapseSettings(**given), on_record=on_record, cancel=cancel
    )


@pytest.fixture(scope="module")
def frozen():
    return run()


@pytest.fixture(scope="module")
def moving():
    return run(moves_from=2, model_rate=0.01)


def of(records, balance):
    return [r for r in records if r["balance"] == balance]


def test_every_balancing_takes_every_step_and_sees_the_same_start(frozen):
    assert [r["balance"] for r in frozen[: len(ORDER)]] == list(ORDER)
    for balance in ORDER:
        assert [r["step"] for r in of(frozen, balance)] == list(range(7))
    starts = [of(frozen, b)[0] for b in ORDER if b != "paper"]
    assert len({json.dumps([s["loss"], s["load"], s["served_ppl"]]) for s in starts}) == 1
    for record in frozen:
        assert [sum(layer) for layer in record["load"]] == pytest.approx([1, 1], abs=1e-3)
        assert len(record["load"][0]) == 4


def test_a_frozen_model_does_not_move_and_its_hidden_states_cannot_carry_anything(frozen):
    for record in frozen:
        if "moved" not in record:
            assert record["step"] % 3
            continue
        assert record["moved"]["hidden"] == pytest.approx(0, abs=1e-5)
        assert record["back"]["hidden"] == pytest.approx(record["largest"], abs=1e-6)
        assert set(record["back"]) == set(PARTS)
    assert of(frozen, "none")[-1]["moved"]["projection"] > 0.05
    assert len({r["dense_ppl"] for r in frozen if "dense_ppl" in r}) == 1


def test_nothing_has_moved_at_the_start(frozen):
    first = frozen[0]
    assert first["back"] == pytest.approx(dict.fromkeys(PARTS, first["largest"]))
    assert first["moved"]["projection"] == 0
    assert first["moved"]["centroids"] < 0.1


def test_weights_move_from_the_step_that_is_asked_for(frozen, moving):
    for balance in ORDER:
        before, after = of(frozen, balance), of(moving, balance)
        assert [r["loss"] for r in before[:3]] == [r["loss"] for r in after[:3]]
        assert before[4]["loss"] != after[4]["loss"]
        assert after[-1]["moved"]["hidden"] > 1e-4
        assert after[-1]["dense_ppl"] != before[-1]["dense_ppl"]


def test_the_model_that_is_given_stays_as_it_was():
    base = loaded()
    before = {k: v.clone() for k, v in base.model.state_dict().items()}
    run(base, moves_from=0, steps=2, balances=("none",))
    assert all(torch.equal(before[k], v) for k, v in base.model.state_dict().items())
    assert not any(p.requires_grad for p in base.model.parameters())


def test_only_the_balanced_biases_move_and_they_even_the_load():
    records = run(steps=40, balances=("none", "bias"), learning_rate=1e-6, balance_step=0.05)

    def largest(rows):
        return sum(max(layer) for r in rows[-5:] for layer in r["load"])

    assert largest(of(records, "bias")) < largest(of(records, "none"))


def test_records_are_told_as_they_come_and_a_cancel_stops():
    seen = []
    with pytest.raises(Cancelled, match="after 1 of 6 steps"):
        run(on_record=seen.append, cancel=lambda: len(seen) == len(ORDER))
    assert len(seen) == len(ORDER)
    json.dumps(seen)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"balances": ("fair",)}, "balancings are"),
        ({"balances": ()}, "balancings are"),
        ({"look_every": 0}, "look_every is 0"),
        ({"model_rate": -1.0}, "model_rate is -1.0"),
        ({"groups": 65}, "focus.groups is 65"),
    ],
)
def test_what_could_not_run_is_refused(wrong, says):
    with pytest.raises(InvalidInput, match=says):
        CollapseSettings(**{**SMALL, **wrong})
