"""Models from nothing as an experiment: trained, measured, stopped and skipped like everything else."""

import json
import time

import pytest

from focus_core.assets import DATA
from focus_core.cli import main
from focus_core.experiments import runner, worker
from focus_core.experiments.plan import read_plan
from focus_core.jobs.files import read_json
from focus_core.models import loading

FILE = f"""
model = "{DATA / "models" / "tiny-novels"}"
prefix = "t"
[pretrain]
text = "brown fiction opening"
steps = 6
context = 64
batch = 1
validate_every = 3
validation_windows = 1
[measure]
texts = ["brown news opening"]
contexts = [64]
windows = 1
recall = 2
[[line]]
name = "focus"
variant = "focus"
pretrain = {{steps = 5, set = {{groups = 4, query_topk = 2, window = 8}}}}
seeds = [0, 3]
sets = {{served = {{}}, soft = {{gate = "soft", temperature = 0.05}}}}
[[line]]
name = "short"
variant = "sfa"
pretrain = {{set = {{features = 6, select = "first"}}}}
[[line]]
name = "dense"
variant = "dense"
pretrain = {{}}
"""


@pytest.fixture
def tasks(tmp_path):
    (tmp_path / "x.toml").write_text(FILE)
    for folder in ("logs", "locks", "raw"):
        (tmp_path / "work" / folder).mkdir(parents=True)
    return {t.name: t for t in read_plan([tmp_path / "x.toml"], tmp_path / "work", tmp_path)}


def test_a_line_becomes_its_commands(tasks, tmp_path):
    first, place = "t-focus-served-brown-news-opening-64", str(tmp_path / "work" / "t-focus")
    assert list(tasks)[:3] == ["pretrain-focus", first, "t-focus-served-recall-64"]
    assert len(tasks) == 2 * (1 + 4) + 2 * (1 + 2)
    own = ("--set", "groups=4", "--set", "query_topk=2", "--set", "window=8")
    assert tasks["pretrain-focus-s3"].arguments[3:] == (
        *("--variant", "focus", *own, "--text", "brown fiction opening", "--steps", "5", "--context", "64"),
        *("--batch", "1", "--validate-every", "3", "--validation-windows", "1", "--seed", "3", "--out", f"{place}-s3"),
    )
    assert tasks[first].arguments[:12] == (*("eval", "--model", place, "--variant", "focus", *own, "--adapter"),)
    assert tasks[first].arguments[12] == f"{place}/adapter"
    assert "--adapter" in tasks["t-short-recall-64"].arguments
    assert "--adapter" not in tasks["t-dense-recall-64"].arguments
    assert "gate=soft" in tasks["t-focus-soft-recall-64"].arguments
    assert tasks["t-dense-recall-64"].needs is tasks["pretrain-dense"]


def test_what_is_there_is_done_only_if_it_is_what_is_asked_for(tasks):
    task = tasks["pretrain-focus"]
    assert not task.done()
    task.place.mkdir()
    record = {"step": 5, "settings": {**task.asked, "steps": 5}}
    (task.place / "training_record.json").write_text(json.dumps(record))
    assert task.done()
    record["settings"]["config"] = task.asked["config"] | {"window": 9}
    (task.place / "training_record.json").write_text(json.dumps(record))
    with pytest.raises(Exception, match="a model with other settings \\(config\\)"):
        task.done()


def test_models_are_trained_and_measured_and_not_made_twice(tasks, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loading, "load_model", loading.load_model)
    names = ("pretrain-focus", "t-focus-soft-brown-news-opening-64", "pretrain-short", "t-short-recall-64")
    names += ("t-short-brown-news-opening-64",)
    chosen = [tasks[name] for name in names]
    for task in chosen:
        raw = tmp_path / "work" / "raw" / f"{task.name}.json"
        arguments = [*task.arguments, *(["--json", str(raw)] if task.asked is None else [])]
        files = [str(tmp_path / name) for name in ("log", "lock")]
        found = runner.perform_task(task, arguments, *files, str(raw), time.time() + 100)
        assert found not in (worker.STOPPED, worker.ELSEWHERE)
        assert task.done()
    soft = read_json(tmp_path / "t-focus-soft-brown-news-opening-64.json")
    assert soft["served"] is False
    assert soft["training"]["step"] == 5
    assert soft["training"]["tokens"] == 5 * 64
    assert "losses" not in soft["training"]
    found = read_json(tmp_path / "t-short-recall-64.json")
    assert found["training"]["adapter_parameters"] == 4 * (4 + 2) * 32 * 32
    assert [step for step, _ in found["training"]["losses"]] == list(range(1, 7))
    assert set(found["random"]) == {"32"}
    assert all(
        0 <= one["right"] <= 1 < one["nll"] for part in ("random", "text", "pairs") for one in found[part].values()
    )
    capsys.readouterr()
    command = ["run", str(tmp_path / "x.toml"), "--work", str(tmp_path / "work"), "--results", str(tmp_path)]
    assert main([*command, "--list"]) == 0
    told = capsys.readouterr().out
    assert f"{len(tasks) - len(chosen)} of {len(tasks)} missing" in told
    # The table tells what each measurement has: perplexity, or what is found again.
    assert main([*command, "--only", "t-short"]) == 0
    told = capsys.readouterr().out
    ppl = read_json(tmp_path / "t-short-brown-news-opening-64.json")["ppl"]
    lines = {line.split()[0]: line.split() for line in told.splitlines() if line}
    assert float(lines["t-short-brown-news-opening-64"][1].replace(",", "")) == pytest.approx(ppl, rel=1e-3)
    saved = found["text"]["32"]["control"] - found["text"]["32"]["nll"]
    assert lines["t-short-recall-64"][1] == "32"
    assert float(lines["t-short-recall-64"][4]) == pytest.approx(saved, rel=1e-2, abs=1e-3)
    assert told.splitlines()[-1].startswith("0 made, 0 left")
