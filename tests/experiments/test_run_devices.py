"""Which GPUs a run of experiments takes when it is told none: all of them, one process or more on each."""

import pytest
import torch

from focus_core.cli import main
from focus_core.experiments import runner

PLAN = """
model = "tiny"
prefix = "t"
[measure]
texts = ["persuasion"]
contexts = [64]
[[line]]
name = "dense"
variant = "dense"
"""


@pytest.mark.parametrize(
    ("there", "visible", "options", "wanted"),
    [
        (0, None, [], [""]),
        (1, None, [], [""]),
        (3, None, [], ["0", "1", "2"]),
        (2, "4, 7", [], ["4", "7"]),
        (1, "4", [], [""]),
        (3, None, ["--gpus", "2"], ["2"]),
        (3, None, ["--gpus", "0,2"], ["0", "2"]),
    ],
)
def test_a_run_takes_every_gpu_unless_it_is_told(there, visible, options, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    asked = []

    def run_plan(tasks, work, *, gpus, **rest):
        asked.append(gpus)
        return {"made": [], "failed": {}, "left": [task.name for task in tasks], "seconds": 0.0}

    monkeypatch.setattr(runner, "run_plan", run_plan)
    (tmp_path / "x.toml").write_text(PLAN)
    places = ["--work", str(tmp_path / "work"), "--results", str(tmp_path)]
    assert main(["run", str(tmp_path / "x.toml"), *places, *options]) == 0
    assert asked == [wanted]


@pytest.mark.parametrize(
    ("there", "visible", "given", "said"),
    [
        (0, None, "0", "--gpus names 0, and this machine has 0 CUDA devices. Leave it out"),
        (0, "0", "0", "Leave it out"),
        (2, None, "x", "--gpus names x, and this machine has 2 CUDA devices. It can be 0, 1."),
        (2, None, "1,2", "--gpus names 2"),
        (2, None, "0,", "--gpus names nothing"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(there, visible, given, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(runner, "run_plan", lambda *_, **__: pytest.fail("nothing may run"))
    (tmp_path / "x.toml").write_text(PLAN)
    places = ["--work", str(tmp_path / "work"), "--results", str(tmp_path)]
    assert main(["run", str(tmp_path / "x.toml"), *places, "--gpus", given]) == 2
    assert said in capsys.readouterr().err
