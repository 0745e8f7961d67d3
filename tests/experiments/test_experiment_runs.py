"""Runs of experiments: never twice at once, stopped without loss, gone on with, skipped when done."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future

import pytest

from focus_core.assets import DATA
from focus_core.cli import main, train
from focus_core.errors import InvalidInput
from focus_core.experiments import runner, worker
from focus_core.experiments.plan import read_plan
from focus_core.jobs.files import read_json, write_json
from focus_core.models import loading

FILE = f"""
model = "{DATA / "models" / "tiny-novels"}"
prefix = "t"
measure = {{texts = ["brown fiction"], contexts = [64], windows = 2, dtype = "float32"}}
[[line]]
name = "a"
variant = "focus"
[line.train]
text = "brown fiction"
groups = 4
query_topk = 1
window = 8
steps = 100000
context = 64
batch = 1
validate_every = 5
validation_windows = 1
[[line]]
name = "w"
variant = "window"
sets = {{8 = {{window = 8}}}}
"""


@pytest.fixture
def tasks(tmp_path):
    (tmp_path / "x.toml").write_text(FILE)
    for folder in ("logs", "locks", "raw"):
        (tmp_path / "work" / folder).mkdir(parents=True)
    return read_plan([tmp_path / "x.toml"], tmp_path / "work", tmp_path)


def test_a_training_run_that_is_stopped_goes_on_where_it_was(tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "load_model", loading.load_model)
    seen = []

    def stop(metrics: dict) -> None:
        seen.append(metrics["step"])
        if metrics["step"] % 3 == 0:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(train, "_print_validation", stop)
    names = [str(tmp_path / name) for name in ("log", "lock", "raw")]
    for _ in range(2):
        assert runner.perform_task(tasks[0], list(tasks[0].arguments), *names, time.time() + 100) == worker.STOPPED
    assert seen == [1, 2, 3, 4, 5, 6]
    assert not tasks[0].done()


@pytest.mark.parametrize("free", [1, 2])
def test_what_is_trained_is_measured_before_more_is_trained(tmp_path, free):
    first = FILE[: FILE.index('[[line]]\nname = "w"')]
    (tmp_path / "x.toml").write_text(first + first[first.index("[[") :].replace('"a"', '"b"'))
    tasks = read_plan([tmp_path / "x.toml"], tmp_path, tmp_path)
    began = []

    class Pool:
        def submit(self, function, task, *rest):
            began.append(task.name)
            self.make(task)
            done = Future()
            done.set_result(1.0)
            return done

        def make(self, task):
            if task.asked is None:
                write_json(task.place, {"command": task.command})
                return
            task.place.mkdir()
            write_json(task.place / "focus_config.json", {"record": {"settings": task.asked}})
            write_json(task.place / "training_record.json", {"step": task.asked["steps"]})

    # The second line's router is there, as after a run that was stopped; the first line's is not.
    Pool().make(next(task for task in tasks if task.name == "train-b"))
    runner._Run(runner.Tally(tasks, lambda line: None), tmp_path, [Pool()] * free, None).go()
    assert began == ["t-b-brown-fiction-64", "train-a", "t-a-brown-fiction-64"]


def test_what_runs_at_the_deadline_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "perform", lambda arguments, log: time.sleep(30))
    began = time.monotonic()
    assert worker.perform_once([], "", str(tmp_path / "lock"), lambda: False, time.time() + 0.1) == worker.STOPPED
    assert time.monotonic() - began < 10


def test_wrong_options_fail_a_task_and_not_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "load_model", loading.load_model)
    with pytest.raises(RuntimeError, match=r"exit code 2: .*--bogus"):
        worker.perform(["train", "--bogus", "3", "--out", str(tmp_path / "a")], str(tmp_path / "log"))


def test_a_command_that_another_process_is_at_is_left_alone(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(worker, "perform", lambda arguments, log: ran.append(arguments) or 1.0)
    lock = tmp_path / "lock"
    code = "import sys, time; from pathlib import Path; from focus_core.experiments.worker import held\n"
    code += "with held(Path(sys.argv[1])): print('mine', flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE)
    try:
        other.stdout.readline()
        assert worker.perform_once([], "", str(lock), lambda: False, None) == worker.ELSEWHERE
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    assert ran == []
    assert worker.perform_once([], "", str(lock), lambda: False, None) == 1.0
    assert worker.perform_once([], "", str(lock), lambda: True, None) == 0.0
    assert ran == [[]]


STARTER = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from focus_core.experiments import worker

def slow():
    print("began", flush=True)
    time.sleep(60)

if __name__ == "__main__":
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=worker.start, initargs=("", 1)) as pool:
        pool.submit(worker.perform_once, [], "", sys.argv[1], slow, None).result()
"""


def test_a_worker_whose_starter_was_killed_ends_what_it_does(tmp_path):
    (tmp_path / "starter.py").write_text(STARTER)
    lock = tmp_path / "lock"
    command = [sys.executable, str(tmp_path / "starter.py"), str(lock)]
    found = {**os.environ, "PYTHONPATH": str(DATA.parent)}
    starter = subprocess.Popen(command, env=found, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert starter.stdout.readline() == b"began\n"
        with worker.held(lock) as free:
            assert not free
    finally:
        starter.kill()
        starter.wait()
        starter.stdout.close()
    until, free = time.monotonic() + 20, False
    while not free and time.monotonic() < until:
        time.sleep(0.05)
        with worker.held(lock) as free:
            pass
    assert free


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--workers", "0"), "--workers is 0"),
        (("--seconds", "nan"), "--seconds is nan"),
        (("--seconds", "inf"), "--seconds is inf"),
        (("--only", "nobody"), "No task has nobody"),
        (("--results", "FILE/r"), "could not be read or written"),
    ],
)
def test_what_cannot_be_run_is_said_before_it_starts(tasks, tmp_path, capsys, options, told):
    (tmp_path / "FILE").touch()
    given = [option.replace("FILE", str(tmp_path / "FILE")) for option in options]
    assert main(["run", str(tmp_path / "x.toml"), "--work", str(tmp_path / "work"), *given]) != 0
    assert told in capsys.readouterr().err
    assert not list((tmp_path / "work" / "raw").iterdir())


def test_a_result_that_is_none_is_said(tasks):
    write_json(tasks[-1].place, [])
    with pytest.raises(InvalidInput, match="another measurement"):
        tasks[-1].done()


def test_a_plan_runs_once_and_a_failure_stops_only_what_needs_it(tasks, tmp_path, capsys):
    (tmp_path / "x.toml").write_text(FILE.replace("groups = 4", "groups = 4\nkind = 'lora'\nthrough = 'nothing'"))
    command = ["run", str(tmp_path / "x.toml"), "--work", str(tmp_path / "work"), "--results", str(tmp_path)]
    assert main(command) == 1
    assert "1 of 3 tasks failed; the first, train-a" in capsys.readouterr().err
    found = read_json(tmp_path / "t-w-8-brown-fiction-64.json")
    assert found["ppl"] > 1
    assert 0 < found["kept_pairs"] < 1
    assert found["command"].startswith("python -m focus_core eval")
    assert main([*command, "--only", "t-w"]) == 0
    assert "0 made, 0 left" in capsys.readouterr().out
    assert main([*command, "--list"]) == 0
    assert "2 of 3 missing" in capsys.readouterr().out
