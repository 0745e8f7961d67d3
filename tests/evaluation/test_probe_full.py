"""Probing trained weights in the model's place, questions that run together, and the plan of what is forgotten."""

import argparse
import copy
import json

import pytest
import torch

from data.build import forgetting
from focus_core.adapter import dense_by_definition
from focus_core.evaluation.abilities import tasks
from focus_core.evaluation.abilities.continuations import Read
from focus_core.evaluation.abilities.grammar import PHENOMENA
from focus_core.evaluation.abilities.run import probe
from focus_core.evaluation.abilities.tasks import Sizes
from focus_core.full import new_full
from focus_core.models.facts import facts_of
from focus_core.models.loading import Loaded
from focus_core.retrofit import retrofit
from focus_core.routing.router import Router, RouterConfig
from focus_core.variants import make
from tests.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def loaded():
    model = tiny_model(layers=2, heads=3, kv_heads=1)
    return Loaded(model, copy.deepcopy(tiny_tokenizer()), facts_of(model), "tiny")


@pytest.mark.parametrize("variant", ["dense", "focus"])
def test_answers_behind_questions_that_run_together_are_those_of_each_alone(loaded, variant):
    made, adapter = make("dense"), None
    if variant == "focus":
        made = make("focus", {"groups": 4, "window": 4, "sinks": 1})
        adapter = Router(RouterConfig(layers=2, hidden_size=48, groups=4, dim=8, seed=3)).requires_grad_(False)
    questions = [torch.arange(7, 7 + n) + n for n in (3, 5, 3)]
    answers = [torch.tensor([n]) for n in (9, 30, 4)]
    with torch.no_grad(), retrofit(loaded.model, made, adapter):
        read = Read(loaded.model, torch.arange(5, 45))
        together = read.score_behind(questions, answers)
        alone = [read.then(one).score(answers) for one in questions]
        longer = read.score_behind(questions[:1], [*answers, torch.arange(3, 6)])[0]
    for got, wanted in zip(together, alone, strict=True):
        assert [one.logp for one in got] == pytest.approx([one.logp for one in wanted], abs=1e-4)
        assert [one.greedy for one in got] == [one.greedy for one in wanted]
    assert [one.logp for one in longer[:3]] == pytest.approx([one.logp for one in alone[0]], abs=1e-4)


def test_a_probe_of_trained_weights_keeps_the_models_own_hash_and_theirs(loaded, monkeypatch):
    monkeypatch.setattr(tasks, "PHENOMENA", dict(list(PHENOMENA.items())[:1]))
    adapter = new_full(loaded.model).requires_grad_(False)
    for parameter in adapter.parameters():
        parameter.mul_(1.2)
    adapter.record = {"settings": {"learning_rate": 1e-4, "rank": 8}, "tokens": 7, **adapter.about(loaded.model)}
    sizes = Sizes(pairs=4, passage=8)
    found, dense = (probe(loaded, make("dense"), one, ["pairs"], sizes) for one in (adapter, None))
    weights = found["weights"]
    assert weights["same"]
    assert weights["before"] == weights["inside"] == weights["after"] == dense["weights"]["before"]
    assert weights["used"] == found["training"]["weights"]["after"] != weights["before"]
    assert found["training"] | {"weights": 0} == {"kind": "full", "learning_rate": 1e-4, "tokens": 7, "weights": 0}
    assert dense["training"] is None
    assert "used" not in dense["weights"]


def test_trained_weights_are_not_dense_where_all_attention_is(loaded):
    short = make("focus", {"groups": 4, "window": 60, "sinks": 4})
    router = Router(RouterConfig(layers=2, hidden_size=48, groups=4, dim=8, seed=3))
    assert [dense_by_definition(short, router, length) for length in (64, 65)] == [True, False]
    assert not dense_by_definition(short, new_full(loaded.model, through="focus", reads=router), 64)
    assert not dense_by_definition(make("dense"), None, 64)


def test_the_plan_trains_before_it_probes_and_leaves_out_what_is_there(tmp_path, monkeypatch, capsys):
    def planned(*given):
        args = ["forgetting", "list", "--device", "cuda", "--results", str(tmp_path), "--work", str(tmp_path / "w")]
        monkeypatch.setattr("sys.argv", [*args, *given])
        assert forgetting.main() == 0
        return [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]

    names = planned()
    assert names[:4] == ["probe-gpu-dense", "probe-gpu-directed-k16", "probe-gpu-lora-r8", "probe-gpu-shared-k8"]
    assert names.index("train-full-3e-05") + 1 == names.index("probe-gpu-full-3e-05")
    (tmp_path / "probe-gpu-full-3e-05.json").write_text(json.dumps({}))
    (tmp_path / "w" / "full-3e-05").mkdir(parents=True)
    assert planned() == [name for name in names if "full-3e-05" not in name or "focus" in name]
    args = argparse.Namespace(only=["full-3e-05", "full-1e-05"], device="cuda", results=tmp_path, work=tmp_path / "w")
    (tmp_path / "w" / "full-1e-05").mkdir()
    forgetting.discard(args)
    # Weights that are probed are thrown away; those that are not yet stay.
    assert [place.name for place in (tmp_path / "w").iterdir()] == ["full-1e-05"]
