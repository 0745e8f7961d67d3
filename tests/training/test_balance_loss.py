"""The soft constraint: what it is, where its gradient goes, and that it can be met without balance."""

import pytest
import torch

from focus_core.routing.balance import LoadMeter, balance_loss
from focus_core.training.trainer import train
from tests.routing.test_balance import call, router
from tests.training.small import ids, loaded, settings

ALL = torch.ones(1, 1, 1, 1, dtype=torch.bool)


def loss_of(logits: torch.Tensor, temperature: float = 0.1) -> float:
    held = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).bool()
    counted = torch.ones(logits.shape[0], 1, logits.shape[2], 1, dtype=torch.bool)
    return balance_loss(logits, held, counted, temperature).item()


def test_it_is_one_when_even_and_k_when_collapsed():
    even = 5 * torch.eye(4).repeat(6, 1)[None, None]
    assert loss_of(even) == pytest.approx(1, abs=1e-4)
    assert loss_of(5 * torch.eye(4)[[0] * 24][None, None]) == pytest.approx(4, abs=1e-4)


def test_it_is_met_by_tokens_that_are_undecided_though_one_group_holds_them_all():
    undecided = torch.zeros(1, 1, 24, 4)
    undecided[..., 2] += 1e-4
    assert loss_of(undecided) == pytest.approx(1, abs=1e-3)


def test_sinks_and_pads_do_not_count_and_the_meter_gives_it_once():
    made, asked = router(), call(0, first=[0, 11])
    meter = LoadMeter(made, 1, 3, temperature=0.2)
    meter.record(asked, None)
    found = meter.take_loss()
    logits = made.logits(0, asked.hidden)[0]
    real = torch.cat([logits[0, :, 3:], logits[1, :, 14:]], 1).permute(1, 0, 2)
    soft = (real / 0.2).softmax(-1).mean(0)
    hard = torch.nn.functional.one_hot(real.argmax(-1), 6).float().mean(0)
    assert found is not None
    assert found.item() == pytest.approx(6 * (soft * hard).sum(-1).mean().item(), rel=1e-5)
    found.backward()
    assert made.key_projection.grad[0].abs().sum() > 0
    assert meter.take_loss() is None


def test_a_meter_without_a_temperature_keeps_no_graph():
    made = router()
    meter = LoadMeter(made, 1, 0)
    meter.record(call(0), None)
    assert meter.take_loss() is None
    assert not meter.load.requires_grad


def run(out, **changes):
    seen = []
    changes = {"steps": 16, "learning_rate": 0.05, "straight_through_from": 1.0, "query_topk": 1} | changes
    train(loaded(), ids(), ids(200, seed=1), settings(**changes), out, on_step=seen.append)
    return seen


def test_training_with_it_evens_the_groups_and_does_not_move_the_bias(tmp_path):
    from focus_core.adapter import load_adapter

    weighed = run(tmp_path / "weighed", balance="loss", balance_weight=3.0)
    alone = run(tmp_path / "none", balance="none")
    last = [sum(m["mean_largest_group"] for m in seen[-4:]) for seen in (weighed, alone)]
    assert last[0] < last[1] - 0.3
    assert load_adapter(tmp_path / "weighed").bias.abs().max() == 0
    # What is told is the language model's loss, without the penalty.
    assert weighed[0]["loss"] == pytest.approx(alone[0]["loss"], rel=1e-6)


def test_a_weight_of_nothing_is_no_balancing(tmp_path):
    nothing, none = run(tmp_path / "a", balance="loss", balance_weight=0.0), run(tmp_path / "b", balance="none")
    assert [m["loss"] for m in nothing] == [m["loss"] for m in none]
