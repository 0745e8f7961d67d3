"""What a measurement on a GPU writes: where, by which command, of which code; and parts of it put together."""

import json
import sys

import pytest

from benchmarks import gpu_record
from benchmarks.gpu_record import Recording, joined, main
from focus_core.errors import InvalidInput
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


def part(command, hash="1", good=True, **environment):
    return {
        "about": command,
        "command": command,
        "environment": {"time": f"after {command}", **environment},
        "sources": ["kernel"],
        "source_hash": hash,
        "checks": [{"good": good}],
        "rows": [{"tokens": 1}],
    }


def test_parts_keep_where_each_row_came_from():
    one = joined([part("first"), part("second")])
    assert one["about"] == "first"
    assert len(one["checks"]) == 2
    assert [row["command"] for row in one["rows"]] == ["first", "second"]
    assert [row["time"] for row in one["rows"]] == ["after first", "after second"]
    again = joined([one, part("third")])
    assert [run["command"] for run in again["runs"]] == ["first", "second", "third"]
    assert [row["command"] for row in again["rows"]] == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (part("second", "2"), "2 versions"),
        (part("second", device="NVIDIA A100", torch="2"), "different device: NVIDIA A100, NVIDIA H200"),
        (part("second", device="NVIDIA H200", torch="3"), "different torch: 2, 3"),
        (part("second", good=False, device="NVIDIA H200", torch="2"), r"1 check\(s\) failed"),
        (
            part("second", device="NVIDIA H200", torch="2") | {"rows": [{"error": float("nan")}]},
            r"error of 1 row\(s\) is no number",
        ),
        (part("first", device="NVIDIA H200", torch="2"), r"1 row\(s\) of first stand in two parts"),
    ],
)
def test_parts_that_are_no_one_record_are_refused(other, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        joined([part("first", device="NVIDIA H200", torch="2"), other])


def test_joining_refuses_in_one_line_and_leaves_what_is_there(tmp_path, monkeypatch, capsys):
    good, cut, into = tmp_path / "good.json", tmp_path / "cut.json", tmp_path / "into.json"
    good.write_text(json.dumps(part("first")))
    cut.write_text(good.read_text()[:60])

    def join(*parts, code=2):
        monkeypatch.setattr(sys, "argv", ["x", *map(str, parts), "--into", str(into)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code
        return capsys.readouterr().err

    assert join(good, cut) == f"{cut} is not there or holds no whole JSON. Name what a benchmark wrote.\n"
    assert "is not there" in join(tmp_path / "none.json")
    cut.write_text('{"rows": [], "about": "x"}')
    assert "has no command, environment, sources, source_hash, checks" in join(cut)
    assert not into.exists()
    into.write_text("my notes")
    assert "is there and is no record" in join(good)
    assert into.read_text() == "my notes"
    into.unlink()
    into.mkdir()
    assert "is there and is no record" in join(good)
    into.rmdir()
    monkeypatch.setattr(gpu_record, "write_json", lambda *_, **__: (into / "no" / "folder").read_text())
    assert "cannot be written (No such file or directory)" in join(good, code=1)
