import errno
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from focus_core import handlers
from focus_core.errors import InvalidInput, TooLarge
from focus_core.jobs import Engine, Estimate, Host
from focus_core.jobs.costs import Observed
from focus_core.jobs.files import read_json
from tests.jobs.conftest import FAKES, finish, until


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    """What runs beside the tests changes no sentence and no estimate."""
    for module in ("costs", "engine"):
        monkeypatch.setattr(f"focus_core.jobs.{module}.load_average", lambda: 0.0)


def test_runs_in_order_one_at_a_time(engine):
    jobs = [engine.submit("count", {"to": 3, "step": 0.05, "version": v}) for v in range(4)]
    until(lambda: jobs[0].state == "running", what="the first to start")
    assert [j.position for j in jobs] == [0, 1, 2, 3]
    assert [j.state for j in jobs[1:]] == ["queued"] * 3
    assert jobs[2].message == "Waiting: 2 runs ahead."
    assert 0.05 < engine.seconds_ahead(jobs[3]) < 0.6
    finish(*jobs)
    assert [j.state for j in jobs] == ["done"] * 4
    assert all(a.ended <= b.started for a, b in itertools.pairwise(jobs))
    assert jobs[0].partial == [{"number": i} for i in range(3)]
    assert jobs[0].complete
    assert jobs[0].fraction == 1.0
    assert jobs[0].result == {"counted": 3, "from": 0}


def test_worker_is_a_nice_child_and_prints_do_not_disturb(engine):
    job = finish(engine.submit("trouble", {"how": "noise"}))
    assert job.state == "done"
    assert job.result["pid"] == engine.status()["pid"] != os.getpid()
    assert job.result["nice"] >= 5
    assert any("a library prints this" in line for line in engine.status()["log"])


def test_the_same_request_is_joined_then_found(engine):
    first = engine.submit("count", {"to": 5, "step": 0.05}, session="a")
    again = engine.submit("count", {"step": 0.05, "to": 5}, session="b")
    assert again is first
    finish(first)
    found = engine.submit("count", {"to": 5, "step": 0.05})
    assert found is not first
    assert (found.state, found.from_store, found.result) == ("done", True, first.result)
    other = engine.submit("count", {"to": 5, "step": 0.05, "version": 2})
    assert not other.from_store
    finish(other)


def test_results_survive_a_new_engine(tmp_path):
    with Engine(tmp_path / "runs", handlers=FAKES) as first:
        job = finish(first.submit("write", {"size": 10, "n": 1}))
    with Engine(tmp_path / "runs", handlers=FAKES) as second:
        found = second.submit("write", {"size": 10, "n": 1})
        assert (found.state, found.result) == ("done", job.result)
        assert Path(found.result["data"]).read_bytes() == b"x" * 10
        assert second.find(job.key).request == {"size": 10, "n": 1}
        assert second.find("../etc") is None
        assert second.status()["pid"] is None
        os.unlink(found.result["data"])
        assert second.find(job.key) is None
        redone = finish(second.submit("write", {"size": 10, "n": 1}))
        assert not redone.from_store
        assert os.path.getsize(redone.result["data"]) == 10


def test_store_drops_the_least_recently_used(tmp_path):
    with Engine(tmp_path / "runs", handlers=FAKES, store_bytes=2500) as engine:
        for n in (1, 2):
            finish(engine.submit("write", {"size": 1000, "n": n}))
            time.sleep(0.02)
        assert engine.submit("write", {"size": 1000, "n": 1}).from_store
        time.sleep(0.02)
        finish(engine.submit("write", {"size": 1000, "n": 3}))
        assert engine.submit("write", {"size": 1000, "n": 1}).from_store
        assert engine.submit("write", {"size": 1000, "n": 3}).from_store
        assert not finish(engine.submit("write", {"size": 1000, "n": 2})).from_store
        used = sum(f.stat().st_size for f in (tmp_path / "runs").rglob("*") if f.is_file())
        assert used < 2500


def test_a_full_disk_costs_the_memory_of_a_run_and_not_its_result(engine, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("focus_core.jobs.store.write_json", full)
    monkeypatch.setattr("focus_core.jobs.costs.write_json", full)
    job = finish(engine.submit("count", {"to": 2}))
    assert (job.state, job.result["counted"]) == ("done", 2)
    assert engine.status()["alive"]


def test_a_damaged_result_is_made_again(engine):
    job = finish(engine.submit("count", {"to": 1}))
    (engine.store.folder(job.key) / "result.json").write_text('{"format": 1, "resu')
    again = finish(engine.submit("count", {"to": 1}))
    assert (again.from_store, again.state) == (False, "done")


def test_refusals_come_with_numbers_and_before_any_work(tmp_path):
    limits = {"max_seconds": 100.0, "max_bytes": (256 << 20) + 5_000_000}
    with Engine(tmp_path / "runs", handlers=FAKES, **limits) as engine:
        assert engine.estimate("count", {"to": 200, "step": 0.1}) == Estimate(
            20.0, 0, "About 20 s and 0 MB (200 numbers).", 20.0
        )
        with pytest.raises(TooLarge) as slow:
            engine.estimate("count", {"to": 5000, "step": 0.1})
        assert "500 s" in slow.value.message or "8 min" in slow.value.message
        assert slow.value.hint == "Up to 1,000 numbers fit."
        with pytest.raises(TooLarge, match=r"10 MB of memory .* 5 MB can be used") as big:
            engine.estimate("count", {"to": 10_000, "each": 1000})
        assert big.value.hint == "Up to 5,000 numbers fit."
        job = engine.submit("count", {"to": 10_000, "each": 1000})
        assert (job.state, job.error.hint) == ("failed", "Up to 5,000 numbers fit.")
        assert engine.get(job.id) is job
        assert engine.status()["pid"] is None


@pytest.mark.parametrize(
    ("kind", "request_", "sentence"),
    [
        ("nothing", {}, "There is no work of the kind 'nothing'."),
        ("count", {"to": -1}, "Cannot count to less than 0."),
        ("count", {}, "The request has no 'to'."),
        ("count", {"to": {1}}, "The request cannot be read"),
    ],
)
def test_bad_requests_are_failed_jobs(engine, kind, request_, sentence):
    job = engine.submit(kind, request_)
    assert job.state == "failed"
    assert job.error.message.startswith(sentence)


def test_two_threads_submit_at_once(engine):
    made, gate = [], threading.Barrier(8)

    def press(session):
        gate.wait()
        for v in range(5):
            made.append(engine.submit("count", {"to": 2, "step": 0.005, "version": v}, session=session))

    threads = [threading.Thread(target=press, args=(f"s{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finish(*made)
    assert {j.state for j in made} == {"done"}
    assert sum(not j.from_store for j in set(made)) == 5


def test_history_is_bounded(engine):
    finish(engine.submit("count", {"to": 1}))
    first = engine.submit("count", {"to": 1})
    for _ in range(120):
        engine.submit("count", {"to": 1})
    assert len(engine.jobs()) <= 100
    assert engine.get(first.id) is None


def test_estimates_learn_from_what_was_seen(tmp_path):
    request = {"to": 20, "step": 0.02}
    with Engine(tmp_path / "runs", handlers=FAKES) as engine:
        before = engine.estimate("count", request)
        finish(engine.submit("count", request | {"version": 2}))
        assert engine.estimate("count", request) == before, "one run alone decides nothing"
        job = finish(engine.submit("count", request))
        after = engine.estimate("count", request)
        assert before.seconds == pytest.approx(0.4)
        assert after.seconds == pytest.approx(job.seconds, rel=0.5)
        assert after.seconds > before.seconds
    with Engine(tmp_path / "runs", handlers=FAKES) as engine:
        assert engine.estimate("count", request) == after


def test_a_busy_machine_is_said_and_runs_that_it_slowed_are_not_held_against_the_next(tmp_path):
    def said(load, device="cpu"):
        return Host(cores=2, load=load, device=device).fit("x", lambda n: (float(n), 0), 30).sentence

    assert said(2.0) == "About 30 s and 0 MB (30 tokens)."
    assert said(2.5).endswith("The machine is busy (load 2.5 on 2 cores): it may take longer.")
    assert said(9.0).endswith("The machine is busy (load 9.0 on 2 cores): it may take several times longer.")
    assert "busy" not in said(9.0, "cuda:0")
    seen = Observed(tmp_path / "speed.json")
    for seconds, slowdown in ((80.0, 8.0), (60.0, 4.0), (9.0, 4.0)):
        seen.add("x", 10.0, seconds, slowdown)
    assert read_json(tmp_path / "speed.json")["x"] == pytest.approx([1.0, 1.5, 0.9])
    assert seen.factor("x") == 1.0


def test_one_slow_run_among_usual_ones_changes_no_estimate(tmp_path):
    seen = Observed(tmp_path / "speed.json")
    for seconds in (20.0, 21.0, 19.0, 20.0):
        seen.add("x", 10.0, seconds)
    before = seen.factor("x")
    seen.add("x", 10.0, 400.0)
    assert seen.factor("x") == pytest.approx(before, rel=0.1)
    for _ in range(20):
        seen.add("x", 10.0, 30.0)
    assert seen.factor("x") == 3.0, "the last few decide"


def test_nearest_size_is_the_largest_that_fits():
    host = Host(free_bytes=(256 << 20) + 1000, max_seconds=1e9)
    with pytest.raises(TooLarge, match="A smaller model fits"):
        host.fit("x", lambda n: (0.0, 2000), 5)
    with pytest.raises(TooLarge, match="Up to 31 tokens fit"):
        host.fit("x", lambda n: (0.0, n * n), 100)
    assert host.fit("x", lambda n: (0.0, n * n), 31).bytes == 961
    busy = Host(max_seconds=100.0, factor=lambda kind: 40.0)
    assert busy.fit("x", lambda n: (float(n), 0), 30).seconds == 1200
    with pytest.raises(TooLarge, match="Up to 33 tokens fit"):
        busy.fit("x", lambda n: (float(n), 0), 40)
    with pytest.raises(TooLarge, match="Up to 30 tokens fit"):
        host.fit("x", lambda n: (0.0, n * n), 100, fixed=(0.0, 60))


def test_kinds_are_discovered():
    assert {"prepare", "trace", "evaluate"} <= set(handlers.kinds())
    assert "count" in handlers.kinds(FAKES)
    assert not any(kind.startswith("_") for kind in handlers.kinds(FAKES))
    with pytest.raises(InvalidInput, match="prepare"):
        handlers.handler("coffee")
    for kind in handlers.kinds():
        module = handlers.handler(kind)
        assert callable(module.run)
        assert callable(module.estimate)


def test_the_client_and_all_estimates_import_no_torch():
    code = (
        "import sys, json\nfrom focus_core import handlers\nfrom focus_core.jobs import Engine, Host\n"
        "for kind in handlers.kinds(): handlers.handler(kind)\n"
        "r = {'model': 'smollm2', 'text': 'word ' * 600, 'variant': 'window', 'config': {}, 'layers': [0, 5]}\n"
        "print(handlers.handler('trace').estimate(r, Host(cores=2)).sentence)\n"
        "print(handlers.handler('evaluate').estimate(r, Host(cores=2)).sentence)\n"
        "print(json.dumps(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'transformers', 'streamlit'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    *sentences, modules = done.stdout.splitlines()
    assert json.loads(modules) == []
    assert all("30 layers" in s or "tokens each" in s for s in sentences)


def test_memory_does_not_grow(engine):
    def both():
        return psutil.Process().memory_info().rss, psutil.Process(engine.status()["pid"]).memory_info().rss

    def fifty(start):
        for v in range(start, start + 50):
            finish(engine.submit("count", {"to": 20, "version": v}))

    fifty(0)
    fifty(50)
    before = both()
    fifty(100)
    assert max(after / start for start, after in zip(before, both(), strict=True)) < 1.05
