"""A run that could not train is refused before any work; what changes from step to step."""

import math

import pytest

from focus_core.errors import InvalidInput
from focus_core.training.settings import TrainSettings
from focus_core.variants import make
from tests.training.small import settings

COUNTS = ["groups", "dim", "query_topk", "key_topk", "window", "steps", "context", "batch", "accumulate"]
POSITIVE = [*COUNTS, "validate_every", "validation_windows", "checkpoint_every", "learning_rate", "clip"]
POSITIVE += ["temperature_start", "temperature_end"]


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_what_must_be_positive(name, value):
    with pytest.raises(InvalidInput, match=rf"{name} is {value}.*more than 0"):
        settings(**{name: value})


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"kind": "kmeans"}, "kind is 'kmeans'. It can be router, temperature"),
        ({"form": "soft"}, "form is 'soft'. It can be directed, shared, paper"),
        ({"balance": "fair"}, "balance is 'fair'. It can be bias, sinkhorn, loss, none"),
        ({"balance_weight": -0.1}, "balance_weight is -0.1"),
        ({"balance_weight": math.nan}, "balance_weight is nan"),
        ({"query_topk": 5}, "cannot join 5 of 4 groups"),
        ({"key_topk": 9}, "cannot join 9 of 4 groups"),
        ({"form": "shared"}, "query_topk 2 and key_topk 1 must be equal"),
        ({"form": "paper"}, "query_topk 2 and key_topk 1 must be equal"),
        ({"context": 5}, "Nothing is far in 5 tokens when window and sinks keep 5"),
        ({"groups": 65}, "focus.groups is 65"),
        ({"sinks": -1}, "focus.sinks is -1"),
        ({"temperature_start": 11.0}, "focus.temperature is 11.0"),
        ({"temperature_end": 1e-9}, "focus.temperature is"),
        ({"kind": "lora", "through": "loose"}, "no variant 'loose' to train through"),
        ({"kind": "lora", "through": "  "}, "through is empty"),
        ({"kind": "lora", "through": "window wide"}, "'wide' is no setting of window"),
        ({"kind": "lora", "through": "kmeans"}, "kmeans reads an adapter of kind"),
    ],
)
def test_what_could_not_train_is_refused(wrong, says):
    with pytest.raises(InvalidInput) as refusal:
        settings(**wrong)
    assert says in str(refusal.value)
    assert refusal.value.hint


def test_the_defaults_and_every_form_are_accepted():
    TrainSettings()
    for form in ("shared", "paper"):
        settings(form=form, query_topk=2, key_topk=2)
    settings(kind="temperature")
    settings(kind="lora", through="bigbird block=8 seed=1", context=8, window=8)
    settings(temperature_start=10.0, temperature_end=1e-4, steps=1)
    settings(temperature_start=0.3, temperature_end=1e-4, steps=997)


def test_the_rate_warms_up_and_falls_to_nothing():
    run = settings(steps=100, warmup=10, learning_rate=0.5)
    rates = [run.learning_rate_at(s) for s in range(100)]
    assert rates[0] == pytest.approx(0.05)
    assert rates[4] == pytest.approx(0.25, rel=0.01)
    assert max(rates) == pytest.approx(0.5, rel=0.03)
    assert rates.index(max(rates)) == 9
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] < 0.001
    assert rates[50] == pytest.approx(0.25)
    assert settings(warmup=0).learning_rate_at(0) == pytest.approx(0.01)


def test_temperature_is_geometric_and_the_balance_step_linear():
    run = settings(steps=10, temperature_start=1.0, temperature_end=0.01, balance_step_start=0.2, balance_step_end=0.1)
    assert [run.temperature_at(s) for s in (0, 5, 10)] == pytest.approx([1, 0.1, 0.01])
    assert [run.balance_step_at(s) for s in (0, 5, 10)] == pytest.approx([0.2, 0.15, 0.1])


def test_the_gate_hardens_on_the_way():
    run = settings(steps=10, straight_through_from=0.5)
    assert [run.gate_at(s) for s in (0, 4, 5, 9)] == ["soft", "soft", "straight_through", "straight_through"]
    assert settings(straight_through_from=1).gate_at(7) == "soft"
    assert settings(straight_through_from=0).gate_at(0) == "straight_through"
    assert settings(form="paper", key_topk=2).gate_at(7) == "paper"


def test_a_step_trains_the_mask_that_is_served():
    run = settings(steps=10)
    mask = {"groups": 4, "query_topk": 2, "key_topk": 1, "window": 4, "sinks": 1}
    assert run.variant_at(None) == make("focus", mask)
    assert run.variant_at(0) == make("focus", mask | {"gate": "soft", "temperature": run.temperature_start})
    assert run.variant_at(7).gate == "straight_through"
    control = settings(kind="temperature")
    assert control.variant_at(3) == control.variant_at(None) == make("temperature", {"window": 4, "sinks": 1})
