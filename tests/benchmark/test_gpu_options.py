"""A benchmark on a GPU that cannot run as asked says so in one line before it works, and writes over nothing else."""

import importlib
import json
import sys

import pytest
import torch

from benchmarks import gpu_options, performance
from benchmarks.gpu_options import Options
from benchmarks.gpu_xattention_inputs import Activations
from focus_core.errors import InvalidInput
from tests.tiny import save_tiny

NAMES = ("decode", "focus", "focus_decode", "focus_tiles", "focus_training", "models", "processes")
NAMES += ("slim_clusters", "xattention")


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    def run(name, *given, gpus=8, code=2):
        module = importlib.import_module(f"benchmarks.gpu_{name}")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(sys, "argv", ["x", "--json", str(tmp_path / "new.json"), *map(str, given)])
        # Whatever it would begin with.
        monkeypatch.setattr(module, "Recording", None)
        with pytest.raises(SystemExit) as ended:
            module.main()
        assert ended.value.code == code
        said = capsys.readouterr().err.strip()
        assert "\n" not in said
        assert not (tmp_path / "new.json").exists()
        return said

    return run


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_without_a_gpu_is_told_so(refused, name):
    needed = 2 if name == "processes" else 1
    said = refused(name, gpus=needed - 1)
    assert said.startswith(f"This needs {needed} NVIDIA GPU(s), and torch {torch.__version__} sees {needed - 1}.")


def test_arguments_that_cannot_be_served_are_refused(refused, monkeypatch):
    assert "'0' is no number from 1 on" in refused("focus", "--repeats", 0)
    assert "'-3' is no number" in refused("decode", "--repeats=-3")
    assert "'x' is no number" in refused("xattention", "--repeats", "x")
    assert "there is no 'slow': it can be some of check, time" in refused("focus_decode", "--parts", "check,slow")
    assert "there is no '': it can be some of" in refused("slim_clusters", "--parts", "")
    assert "there is no 'gpt9'" in refused("models", "--models", "smollm2,gpt9")
    assert "no list of numbers from 1 on" in refused("focus_training", "--lengths", "1024,")
    assert "invalid choice: '9x9'" in refused("focus_tiles", "--shapes", "9x9")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "On a CPU this is only tried out" in refused("xattention", "--device", "cpu", "--parts", "real")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "On a CPU this is only tried out" in refused("xattention", "--device", "cpu")
    assert "'mps' is no device" in refused("models", "--device", "mps")


def test_a_record_takes_no_place_of_anything_else(refused, monkeypatch, tmp_path):
    foreign = tmp_path / "notes.json"
    for text in ("my notes", "[1]", '{"rows": []}'):
        foreign.write_text(text)
        assert "is no record of a benchmark" in refused("focus", "--json", foreign)
        assert foreign.read_text() == text
    record = {"command": "python -m benchmarks.gpu_focus", "checks": [], "rows": []}
    foreign.write_text(json.dumps(record))
    assert "holds what python -m benchmarks.gpu_focus measured" in refused("focus", "--json", foreign)
    monkeypatch.setattr(gpu_options, "running", lambda: "python -m benchmarks.gpu_focus --json y.json")
    foreign.write_text(json.dumps(record | {"runs": [{}, {}]}))
    assert "holds 2 run(s) put together" in refused("focus", "--json", foreign)
    assert "is a folder or a device" in refused("focus", "--json", tmp_path)
    assert "is a folder or a device" in refused("focus", "--json", "/dev/null")
    assert "cannot be written (Not a directory)" in refused("focus", "--json", foreign / "new" / "x.json")
    assert list(tmp_path.iterdir()) == [foreign]


def test_the_same_benchmark_may_write_its_record_anew(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_options, "running", lambda: "python -m benchmarks.gpu_x --json y.json")
    options, path = Options("x"), tmp_path / "own.json"
    path.write_text('{"command": "python -m benchmarks.gpu_x", "checks": [], "rows": []}')
    options.check_file(path)
    options.check_file(tmp_path / "new" / "other.json")
    assert list(tmp_path.iterdir()) == [path]


def test_a_layer_that_the_model_lacks_is_refused(tmp_path):
    folder = tmp_path / "model"
    save_tiny(folder, "llama", layers=2)
    with pytest.raises(InvalidInput, match=r"has 2 layers and no layer 2\. It can be 0 to 1"):
        Activations(str(folder), "cpu", "float32", [0, 2])


def test_the_page_says_where_it_cannot_be_written(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["x", "--out", str(tmp_path / "no" / "page.md")])
    with pytest.raises(SystemExit, match="2"):
        performance.main()
    assert capsys.readouterr().err.endswith("page.md cannot be written (No such file or directory).\n")


def test_a_model_that_is_not_there_is_one_line(monkeypatch, tmp_path):
    from benchmarks import gpu_xattention

    given = ["x", "--json", str(tmp_path / "x.json"), "--device", "cpu", "--parts", "real", "--model", "/no/model"]
    monkeypatch.setattr(sys, "argv", given)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(SystemExit, match="/no/model") as ended:
        gpu_xattention.main()
    assert isinstance(ended.value.code, str)
