"""Retrofitted models under lm-evaluation-harness: its figures are those of the model with the variant in it."""

import importlib.util
import json
import sys
from types import SimpleNamespace

import pytest
import torch

from focus_core.assets import DATA
from focus_core.cli import main
from focus_core.errors import InvalidInput, NotAvailable
from focus_core.evaluation.harness import run_harness
from focus_core.models.facts import facts_of
from focus_core.retrofit import retrofit
from focus_core.variants import make
from tests.tiny import tiny_model, tiny_tokenizer

TASK = DATA / "harness" / "agreement.yaml"
ROWS = [json.loads(line) for line in (DATA / "harness" / "agreement.jsonl").read_text("utf-8").splitlines()]
needs_harness = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-evaluation-harness is not installed (requirements-eval.txt)"
)


@pytest.fixture
def loaded(monkeypatch, tmp_path):
    # Whatever the harness would fetch is an error here.
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    if importlib.util.find_spec("datasets") is not None:
        import datasets

        monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    model = tiny_model(layers=2)
    return SimpleNamespace(model=model, tokenizer=tiny_tokenizer(), facts=facts_of(model), name="tiny")


def chosen(loaded, variant) -> list[bool]:
    """Of which rows the good ending is the likelier, counted here."""

    def score(start: str, end: str) -> float:
        before = loaded.tokenizer(start)["input_ids"]
        ids = torch.tensor([loaded.tokenizer(f"{start} {end}")["input_ids"]])
        with torch.no_grad(), retrofit(loaded.model, variant):
            logp = loaded.model(input_ids=ids).logits.log_softmax(-1)[0, :-1]
        return logp.gather(-1, ids[0, 1:, None])[len(before) - 1 :].sum().item()

    return [score(row["start"], row["good"]) > score(row["start"], row["bad"]) for row in ROWS]


@needs_harness
def test_a_local_task_is_scored_by_the_served_function(loaded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    variant = make("window", {"window": 2, "sinks": 0})
    found = run_harness(loaded, variant, None, [str(TASK)], batch=4, beside_dense=True)
    task = found["tasks"]["focus_lab_agreement"]
    right, dense = chosen(loaded, variant), chosen(loaded, make("dense"))
    assert right != dense
    assert task["metrics"]["acc"] == pytest.approx(sum(right) / len(ROWS))
    assert task["dense"]["acc"] == pytest.approx(sum(dense) / len(ROWS))
    assert task["metrics"]["acc_stderr"] > 0
    assert (task["questions"], task["shots"], task["version"]) == (len(ROWS), 0, 1.0)
    assert (found["variant"], found["config"]["window"], found["batch"]) == ("window", 2, 4)
    few = run_harness(loaded, variant, None, [str(TASK)], limit=3)["tasks"]["focus_lab_agreement"]
    assert few["questions"] == 3
    assert few["dense"] is None
    assert few["metrics"]["acc"] == pytest.approx(sum(right[:3]) / 3)
    with pytest.raises(InvalidInput, match=r"There is no file nowhere\.yaml"):
        run_harness(loaded, variant, None, ["nowhere.yaml"])
    (tmp_path / "far.yaml").write_text(TASK.read_text().replace("dataset_path: json", "dataset_path: org/far"))
    with pytest.raises(NotAvailable, match=r"far\.yaml cannot be loaded .* comes over the network"):
        run_harness(loaded, variant, None, ["far.yaml"])


def test_without_the_harness_the_command_says_how_to_get_it(monkeypatch, capsys):
    for name in [n for n in sys.modules if n.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(["harness", "--variant", "dense", "--tasks", str(TASK)]) == 2
    told = capsys.readouterr().err
    assert "lm-evaluation-harness is not installed" in told
    assert "pip install -r requirements-eval.txt" in told


@pytest.mark.parametrize("option", ["--limit", "--batch", "--context"])
def test_numbers_that_cannot_be_are_refused(option, capsys):
    assert main(["harness", "--variant", "dense", "--tasks", str(TASK), option, "0"]) == 2
    assert f"{option} is 0." in capsys.readouterr().err


def test_every_row_of_the_local_task_differs_in_its_ending_alone():
    assert len(ROWS) == 16
    for row in ROWS:
        assert set(row) == {"start", "good", "bad"}
        assert row["good"] != row["bad"]
        assert len({row["good"].split()[-1], row["bad"].split()[-1]}) == 1 or len(row["good"].split()) == 1
