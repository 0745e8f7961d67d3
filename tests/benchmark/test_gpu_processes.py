"""What the benchmark of several processes compares: on a CPU, in small, with one process."""

import json
import shutil
import subprocess
import sys

import pytest

from benchmarks import gpu_processes as bench
from benchmarks.gpu_record import Recording


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Small runs: one, the same again, one that reads other windows, and one whose measure is not there."""
    again = bench.Run(1, "tiny", first_of="one", weights_of="one")
    other = bench.Run(1, "tiny", settings={"seed": 1}, first_of="one", weights_of="one")
    runs = {"one": bench.RUNS["one"], "again": again, "other": other, "lost": bench.Run(1, "tiny", first_of="gone")}
    monkeypatch.setattr(bench, "RUNS", runs)
    monkeypatch.setattr(bench, "BATCH", bench.BATCH | {"context": 144, "batch": 2, "validation_windows": 1})
    monkeypatch.setattr(bench, "STEPS", {"tiny": 2})
    for name in ("one", "other"):
        bench.perform(name, tmp_path)
    for name, of in (("again", "one"), ("lost", "other")):
        for ending in (".json", ".gradient"):
            shutil.copy(tmp_path / f"{of}{ending}", tmp_path / f"{name}{ending}")
        shutil.copytree(tmp_path / of, tmp_path / name)
    return tmp_path


def test_runs_are_compared_with_what_they_must_be(folder, tmp_path, capsys):
    record = Recording(tmp_path / "told.json", "small", bench.SOURCES, device="cpu")
    bench.follow(record, ["one", "again"], folder)
    bench.follow(record, ["one", "again", "other", "lost", "never"], folder)
    document = json.loads((tmp_path / "told.json").read_text())
    assert [row["run"] for row in document["rows"]] == ["one", "again", "other", "lost"]
    assert len(document["rows"][0]["loss"]) == 2
    good = {check["check"]: check["good"] for check in document["checks"]}
    assert good == {
        "again: first gradient of one": True,
        "again: trained weights of one": True,
        "other: first gradient of one": False,
        "other: trained weights of one": False,
        "lost: first gradient of gone": False,
    }
    assert bench.gradients_apart(folder, "other", "one") > 0.1
    assert "FAILED" in capsys.readouterr().out


def test_runs_are_compared_with_runs_of_the_same_base_and_settings_made_before():
    names = list(bench.RUNS)
    for name, run in bench.RUNS.items():
        for wanted in filter(None, (run.first_of, run.weights_of)):
            other = bench.RUNS[wanted]
            assert (other.base, other.settings, other.moved) == (run.base, run.settings, run.moved)
            assert names.index(wanted) < names.index(name)
            assert other.processes <= run.processes
        # One launch has either one process or two, and each process takes its share of the batch.
        assert bench.BATCH["batch"] % run.processes == 0


def test_memory_is_counted_from_the_start_once_cuda_has_begun(monkeypatch):
    begun, reset = [], []

    def refused_before(device):
        if not begun:
            raise RuntimeError("Invalid device argument")
        reset.append(device)

    monkeypatch.setattr(bench.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(bench.torch.cuda, "init", lambda: begun.append(True))
    monkeypatch.setattr(bench.torch.cuda, "reset_peak_memory_stats", refused_before)
    assert list(bench.fresh_peaks()) == reset == [0, 1]
    monkeypatch.setattr(bench.torch.cuda, "device_count", lambda: 0)
    assert list(bench.fresh_peaks()) == []
    assert len(begun) == 1


WORKS_UNTIL = """
import pathlib, sys
for name in sys.argv[2:]:
    if name == "breaks":
        raise RuntimeError("no such thing\\nas this")
    (pathlib.Path(sys.argv[1]) / f"{name}.json").write_text("{}")
"""


def test_a_launch_that_breaks_loses_one_run_and_no_other(monkeypatch, tmp_path, capfd):
    launched = []

    def launch(names, folder):
        launched.append(list(names))
        with open(folder / f"{names[0]}.log", "w") as log:
            return subprocess.Popen([sys.executable, "-c", WORKS_UNTIL, folder, *names], stdout=log, stderr=log)

    monkeypatch.setattr(bench, "launch", launch)
    monkeypatch.setattr(bench, "tell", lambda record, name, folder: record.add({"run": name}))
    record = Recording(tmp_path / "told.json", "small", bench.SOURCES, device="cpu")
    assert not bench.follow_all(record, [["a", "breaks", "b", "c"], ["d"]], tmp_path)
    assert launched == [["a", "breaks", "b", "c"], ["d"], ["b", "c"]]
    assert sorted(row["run"] for row in record.found["rows"]) == ["a", "b", "c", "d"]
    (check,) = record.found["checks"]
    assert (check["check"], check["said"]) == ("breaks: made", "RuntimeError: no such thing")
    assert not check["good"]
    assert record.failed()
    assert "as this" in capfd.readouterr().err
    again = Recording(tmp_path / "again.json", "small", bench.SOURCES, device="cpu")
    assert bench.follow_all(again, [["a", "d"]], tmp_path)
    assert not again.failed()
