import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from focus_core.jobs import Engine
from tests.jobs.conftest import FAKES, finish, until


def running(engine, job):
    until(lambda: job.state == "running" and job.partial, what="the job to run")
    return engine.status()["pid"]


def test_cancel_answers_at_once_and_partial_results_stay(engine):
    job = engine.submit("count", {"to": 500, "step": 0.02})
    pid = running(engine, job)
    began = time.monotonic()
    assert engine.cancel(job.id)
    assert time.monotonic() - began < 0.3
    assert (job.state, job.complete, job.message) == ("cancelled", False, "Cancelled.")
    assert until(lambda: not engine.status()["running"], what="the work to end") < 2
    assert job.partial[:1] == [{"number": 0}]
    assert engine.status()["pid"] == pid
    assert not engine.cancel(job.id)
    assert not engine.cancel("unknown")


def test_a_cancelled_run_goes_on_where_it_was(engine):
    request = {"to": 30, "step": 0.02}
    job = engine.submit("count", request)
    until(lambda: len(job.partial) > 5, what="partial results")
    engine.cancel(job.id)
    again = finish(engine.submit("count", request))
    assert again is not job
    assert again.result["counted"] == 30
    assert 5 < again.result["from"] < 30
    assert not list(engine.store.root.glob("*/partial.jsonl"))


def test_work_that_does_not_listen_is_killed(engine):
    job = engine.submit("trouble", {"how": "deaf"})
    after = engine.submit("count", {"to": 2})
    pid = running(engine, job)
    began = time.monotonic()
    engine.cancel(job.id)
    assert time.monotonic() - began < 0.3
    assert job.state == "cancelled"
    until(lambda: not psutil.pid_exists(pid), what="the worker's end")
    assert time.monotonic() - began < 2.5
    finish(after)
    assert after.state == "done"
    assert job.partial == [{"before": "deaf"}]
    assert engine.status()["restarts"] == 1


def test_cancel_in_the_queue(engine):
    first = engine.submit("count", {"to": 20, "step": 0.02})
    second = engine.submit("count", {"to": 1, "version": 2})
    third = engine.submit("count", {"to": 1, "version": 3})
    engine.cancel(second.id)
    assert (second.state, third.position) in [("cancelled", 0), ("cancelled", 1)]
    finish(first, third)
    assert [first.state, second.state, third.state] == ["done", "cancelled", "done"]
    assert second.started is None


def test_one_of_two_leaves_and_the_run_goes_on(engine):
    job = engine.submit("count", {"to": 30, "step": 0.02}, session="a")
    assert engine.submit("count", {"to": 30, "step": 0.02}, session="b") is job
    assert not engine.cancel(job.id, session="a")
    assert not job.finished
    assert engine.jobs("a") == []
    assert engine.cancel(job.id, session="b")
    assert job.state == "cancelled"


@pytest.mark.parametrize(
    ("how", "sentence", "survives"),
    [
        ("kill", "most likely because memory ran out", False),
        ("segfault", "crashed while this ran (SIGSEGV)", False),
        ("exit", "ended while this ran (exit 7): the disk is on fire", False),
        ("raise", "It met a fault: RuntimeError: <b>odd</b>.", True),
        ("memory", "Memory ran out while this ran.", True),
        ("full", "The disk is full.", True),
        ("system-exit", "SystemExit", True),
        ("not-json", "object is not a JSON value", True),
        ("refuse", "This cannot be.", True),
    ],
)
def test_a_failure_is_a_sentence_and_the_queue_goes_on(engine, how, sentence, survives):
    bad = engine.submit("trouble", {"how": how})
    waiting = [engine.submit("count", {"to": 3, "version": v}) for v in range(2)]
    finish(bad, *waiting)
    assert bad.state == "failed"
    assert sentence in bad.error.message
    assert "Traceback" not in bad.error.message
    assert bad.error.hint
    assert bad.partial == [{"before": how}]
    assert [j.state for j in waiting] == ["done", "done"]
    assert engine.status()["restarts"] == (0 if survives else 1)


def test_killed_from_outside_mid_job(engine):
    job = engine.submit("count", {"to": 500, "step": 0.02})
    after = engine.submit("count", {"to": 2})
    os.kill(running(engine, job), signal.SIGKILL)
    finish(job, after)
    assert (job.state, after.state) == ("failed", "done")
    assert job.partial
    again = engine.submit("count", {"to": 500, "step": 0.02})
    assert not again.finished
    engine.cancel(again.id)


def test_killed_while_idle_is_not_noticed(engine):
    finish(engine.submit("count", {"to": 1}))
    pid = engine.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not engine.status()["alive"], what="the end")
    assert finish(engine.submit("count", {"to": 1, "version": 2})).state == "done"
    assert engine.status()["pid"] != pid


def test_a_worker_that_cannot_start_fails_each_job_once(tmp_path, monkeypatch):
    with Engine(tmp_path / "runs", handlers=FAKES) as engine:
        broken = tmp_path / "broken"
        broken.mkdir()
        (broken / "sitecustomize.py").write_text("import sys\nsys.exit('no such shared library')\n")
        monkeypatch.setenv("PYTHONPATH", str(broken))
        jobs = [engine.submit("count", {"to": 1, "version": v}) for v in range(2)]
        finish(*jobs)
        assert [j.state for j in jobs] == ["failed", "failed"]
        assert "no such shared library" in jobs[0].error.message
        monkeypatch.delenv("PYTHONPATH")
        assert finish(engine.submit("count", {"to": 1})).state == "done"


def test_a_handler_that_cannot_be_imported_fails_its_jobs_only(tmp_path, monkeypatch):
    package = tmp_path / "odd_kinds"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "odd.py").write_text(
        "import os\nfrom focus_core.jobs import Estimate\n"
        "if not os.environ.get('ODD_APP'): raise ImportError('libodd is missing')\n"
        "def estimate(r, h): return Estimate(1.0, 0, '')\ndef run(r, c): return {}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Engine(tmp_path / "runs", handlers=(*FAKES, "odd_kinds")) as engine:
        finish(engine.submit("count", {"to": 1}))
        monkeypatch.setenv("ODD_APP", "1")
        job, after = engine.submit("odd", {}), engine.submit("count", {"to": 2})
        finish(job, after)
        assert (job.state, after.state) == ("failed", "done")
        assert "libodd is missing" in job.error.message


def test_closing_ends_the_worker_and_all_jobs(tmp_path):
    engine = Engine(tmp_path / "runs", handlers=FAKES)
    deaf, waiting = engine.submit("trouble", {"how": "deaf"}), engine.submit("count", {"to": 1})
    pid = running(engine, deaf)
    engine.close()
    assert not psutil.pid_exists(pid)
    assert (deaf.state, waiting.state) == ("cancelled", "cancelled")
    assert engine.submit("count", {"to": 1}).state == "failed"


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_the_worker_ends_with_its_parent(tmp_path, how):
    code = (
        "import os, sys, time\nfrom focus_core.jobs import Engine\n"
        f"engine = Engine({str(tmp_path / 'runs')!r}, handlers={FAKES!r})\n"
        "job = engine.submit('trouble', {'how': 'deaf'})\n"
        "while not job.partial: time.sleep(0.01)\n"
        "print(engine.status()['pid'], flush=True)\n" + ("time.sleep(60)\n" if how == "kill" else "")
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    if how == "kill":
        parent.kill()
    parent.wait(20)
    parent.stdout.close()
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", 5, "the worker's end")
