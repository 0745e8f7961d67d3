"""Experiments on a Ray cluster of two workers: one is killed half-way, nothing is lost and nothing is run twice."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from focus_core.assets import DATA
from focus_core.cli import main
from focus_core.experiments import cluster
from focus_core.experiments.plan import read_plan

STEPS = 150
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
steps = {STEPS}
context = 64
batch = 1
validate_every = 10
validation_windows = 1
checkpoint_every = 10
[[line]]
name = "w"
variant = "window"
sets = {{4 = {{window = 4}}, 8 = {{window = 8}}, 16 = {{window = 16}}}}
"""
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (requirements-ray.txt)"
)


@pytest.fixture
def two_workers(monkeypatch):
    """A cluster of a head that does no work and two machines of one core each."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args=small | {"num_cpus": 0, "include_dashboard": False})
    try:
        machines = [made.add_node(num_cpus=1, **small) for _ in range(2)]
        yield made, machines
    finally:
        made.shutdown()


def holder(machines: list, lock: Path):
    """The machine one of whose workers has this lock's file open."""
    for machine in machines:
        raylet = psutil.Process(machine.all_processes["raylet"][0].process.pid)
        for worker in raylet.children(recursive=True):
            try:
                if any(file.path == str(lock) for file in worker.open_files()):
                    return machine
            except psutil.Error:
                continue
    return None


def step_of(record: Path) -> int:
    try:
        return json.loads(record.read_text())["step"]
    except (OSError, ValueError):
        return 0


@needs_ray
def test_a_killed_worker_loses_nothing_and_nothing_is_run_twice(two_workers, tmp_path):
    made, machines = two_workers
    (tmp_path / "x.toml").write_text(FILE)
    tasks = read_plan([tmp_path / "x.toml"], tmp_path / "work", tmp_path / "results")
    command = ["run", str(tmp_path / "x.toml"), "--work", str(tmp_path / "work")]
    command += ["--results", str(tmp_path / "results"), "--ray", made.address]
    run = subprocess.Popen(
        [sys.executable, "-m", "focus_core", *command],
        cwd=DATA.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen: dict[Path, int] = {}
    ended = threading.Event()

    def look() -> None:
        """When each result was written first."""
        while not ended.is_set():
            for task in tasks:
                if task.asked is None and task.place.exists():
                    seen.setdefault(task.place, task.place.stat().st_mtime_ns)
            time.sleep(0.02)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        train, until = tasks[0], time.monotonic() + 120
        record = train.place / "training_record.json"
        while step_of(record) < 10 and time.monotonic() < until and run.poll() is None:
            time.sleep(0.02)
        at = holder(machines, tmp_path / "work" / "locks" / "train-a.lock")
        assert at is not None, run.communicate(timeout=60)[1]
        made.remove_node(at, allow_graceful=False)
        assert step_of(record) < STEPS
        told = run.communicate(timeout=240)[1]
    finally:
        ended.set()
        looker.join()
        run.kill()
        run.wait()
    assert run.returncode == 0, told
    assert [task.name for task in tasks if not task.done()] == []
    # Every task ended once, and no result was written anew.
    assert sorted(line.partition(":")[0] for line in told.splitlines()) == sorted(task.name for task in tasks)
    assert {place: place.stat().st_mtime_ns for place in seen} == seen
    assert len(seen) == len(tasks) - 1
    # The second worker went on where the first one was.
    log = json.loads(record.read_text())["log"]
    assert [entry["step"] for entry in log] == list(range(1, STEPS + 1))
    printed = (tmp_path / "work" / "logs" / "train-a.log").read_text()
    assert "step 10:" not in printed
    assert f"step {STEPS}:" in printed
    assert not list((tmp_path / "work").glob(".seen-*"))


def test_without_ray_the_command_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "x.toml").write_text(FILE)
    for name in [n for n in sys.modules if n.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    assert main(["run", str(tmp_path / "x.toml"), "--work", str(tmp_path / "work"), "--ray", "auto"]) == 2
    told = capsys.readouterr().err
    assert "Ray is not installed" in told
    assert "requirements-ray.txt" in told
    assert main(["run", str(tmp_path / "x.toml"), "--gpus", "0", "--ray", "auto"]) == 2
    assert "both say where tasks run" in capsys.readouterr().err


def test_a_machine_that_does_not_see_the_folder_says_so_and_one_that_does_takes_interrupts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=r"does not see .*must share it"):
        cluster.perform_there(str(tmp_path), str(tmp_path / "gone" / "mark"), (None, [], "", "", ""), None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    monkeypatch.setattr(cluster, "perform_task", lambda *job: signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    monkeypatch.setattr(cluster, "start", lambda *given: None)
    try:
        # A deadline asks by SIGINT, which Ray's workers otherwise do not take.
        assert signal.SIGINT not in cluster.perform_there(str(tmp_path), str(tmp_path), (None, [], "", "", ""), None)
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    late = cluster.perform_there(str(tmp_path), "", (None, [], "", "", ""), time.time() - 1)
    assert late == "stopped"
