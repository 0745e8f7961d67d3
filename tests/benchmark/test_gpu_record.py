"""What a measurement on a GPU writes: where, by which command, of which code; and parts of it put together."""

import json

import pytest

from benchmarks.gpu_record import Recording, joined
from focus_core.evaluation import sources
from focus_core.evaluation.sources import code_changed, source_hash


@pytest.fixture
def code(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    folder = tmp_path / "kernel"
    folder.mkdir()
    (folder / "a.py").write_text("one = 1\n")
    (folder / "b.py").write_text("two = 2\n")
    return folder


def test_a_result_tells_when_its_code_has_changed(code):
    document = {"sources": ["kernel"], "source_hash": source_hash(["kernel"])}
    assert code_changed(document) is False
    (code / "notes.txt").write_text("no code")
    assert code_changed(document) is False
    (code / "b.py").write_text("two = 3\n")
    assert code_changed(document) is True
    (code / "b.py").write_text("two = 2\n")
    assert code_changed(document) is False
    assert code_changed({"sources": ["kernel/c.py"], "source_hash": "0"}) is True
    assert code_changed({"source_hash": "0"}) is None


def test_a_folder_without_sources_is_refused(code):
    (code.parent / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty"):
        source_hash(["empty"])


def test_bench_names_every_folder_of_kernels():
    found = sources.kernel_sources()
    assert {"focus_core/kernels", "focus_core/kernels/focus/triton"} <= set(found)
    assert len(source_hash(found)) == 64


def test_a_recording_is_whole_after_each_row(tmp_path, code, capsys):
    path = tmp_path / "out" / "bench.json"
    recording = Recording(path, "A kernel.", ["kernel"], device="cpu", command="python -m benchmarks.gpu_x")
    recording.check({"what": "small", "good": True})
    recording.add({"tokens": 8, "ms": {"median": 1.23456, "p10": 1.0}, "error": 0.01})
    found = json.loads(path.read_text())
    assert list(found) == ["about", "command", "environment", "sources", "source_hash", "checks", "rows"]
    assert found["environment"].keys() >= {"device", "torch", "triton", "time"}
    assert found["source_hash"] == source_hash(["kernel"])
    assert len(found["rows"]) == len(found["checks"]) == 1
    assert capsys.readouterr().out == '{"tokens": 8, "ms": 1.235, "error": 0.01}\n'
    assert not recording.failed(0.02)
    assert recording.failed(0.005)
    recording.add({"error": float("nan")})
    assert recording.failed(0.02)
    recording.found["rows"] = []
    recording.check({"what": "wrong", "good": False})
    assert recording.failed()
    assert "FAILED" in capsys.readouterr().out


def test_a_measurement_that_goes_on_replaces_its_rows_alone(tmp_path, code):
    path = tmp_path / "bench.json"
    recording = Recording(path, "A kernel.", ["kernel"], device="cpu", command="python -m benchmarks.gpu_x")
    recording.add({"tokens": 1})
    recording.replace(1, {"tokens": 2, "n": 1}, {"tokens": 3, "n": 1})
    recording.replace(1, {"tokens": 2, "n": 2})
    assert json.loads(path.read_text())["rows"] == [{"tokens": 1}, {"tokens": 2, "n": 2}]


def test_parts_keep_where_each_row_came_from():
    def part(command, hash="1"):
        return {
            "about": command,
            "command": command,
            "environment": {"time": f"after {command}"},
            "source_hash": hash,
            "checks": [{"good": True}],
            "rows": [{"tokens": 1}],
        }

    one = joined([part("first"), part("second")])
    assert one["about"] == "first"
    assert len(one["checks"]) == 2
    assert [row["command"] for row in one["rows"]] == ["first", "second"]
    assert [row["time"] for row in one["rows"]] == ["after first", "after second"]
    again = joined([one, part("third")])
    assert [run["command"] for run in again["runs"]] == ["first", "second", "third"]
    assert [row["command"] for row in again["rows"]] == ["first", "second", "third"]
    with pytest.raises(ValueError, match="2 versions"):
        joined([part("first"), part("second", "2")])
