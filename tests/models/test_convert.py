"""GGUF files become folders of bf16 safetensors: exactly, once, and whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from focus_core import errors
from focus_core.models import convert
from focus_core.models.catalog import GGUF_SHA256, packaged_gguf
from focus_core.models.folders import PREFIX, models_folder, remove_abandoned, whole_folder
from focus_core.models.headers import folder_weights, gguf_values
from focus_core.models.loading import load_model
from tests.models.gguf_file import write_gguf
from tests.tiny import tiny_tokenizer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gguf(tmp_path):
    path = tmp_path / "tiny model.gguf"
    return path, write_gguf(path)


def folders(cache):
    return sorted(p.name for p in (cache / "models").iterdir())


def start(path):
    """A process that converts the file into the folder ``k``."""
    code = f"import pathlib; from focus_core.models.convert import prepare; prepare(pathlib.Path({str(path)!r}), 'k')"
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_a_gguf_file_loads_as_its_weights_rounded_to_bf16(gguf, cache):
    path, original = gguf
    told = []
    loaded = load_model(str(path), device="cpu", progress=lambda f, m: told.append((f, m)))
    rounded = {k: v.bfloat16().float() for k, v in original.state_dict().items()}
    found = loaded.model.state_dict()
    assert rounded.keys() == found.keys()
    assert all(torch.equal(rounded[k], found[k]) for k in rounded)
    assert loaded.model.get_input_embeddings().weight is loaded.model.get_output_embeddings().weight
    original.load_state_dict(rounded)
    ids = torch.arange(50)[None]
    assert torch.allclose(original(ids).logits, loaded.model(ids).logits, atol=1e-5)
    text = "the cat and 한국"
    assert loaded.tokenizer(text)["input_ids"] == tiny_tokenizer()(text)["input_ids"]
    facts = loaded.facts
    assert (facts.family, facts.kv_heads, facts.head_dim, facts.dtype) == ("llama", 3, 16, "float32")
    assert facts.revision
    assert "tiny model.gguf" in facts.note
    fractions = [f for f, _ in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert {"Reading the tokenizer", "Reading the weights", "Loading the weights"} <= {m for _, m in told}

    (folder,) = folders(cache)
    written = folder_weights(cache / "models" / folder)
    assert written.dtype == "BF16"
    assert written.values == gguf_values(path) == sum(p.numel() for p in original.parameters())
    assert "quantization_config" not in (cache / "models" / folder / "config.json").read_text()
    stamp = (cache / "models" / folder / "model.safetensors").stat().st_mtime_ns
    began = time.monotonic()
    load_model(str(path), device="cpu")
    assert time.monotonic() - began < 3
    assert (cache / "models" / folder / "model.safetensors").stat().st_mtime_ns == stamp


def test_cancel_ends_the_work_and_leaves_nothing(gguf, cache):
    began = time.monotonic()
    asked = []

    def cancel():
        asked.append(time.monotonic())
        return len(asked) > 4

    with pytest.raises(errors.Cancelled):
        load_model(str(gguf[0]), cancel=cancel)
    assert time.monotonic() - asked[-1] < 2
    assert time.monotonic() - began < 10
    assert folders(cache) == []


def test_a_killed_conversion_leaves_no_model_and_is_cleaned_up(gguf, cache):
    code = (
        f"from focus_core.models.convert import prepare; from pathlib import Path; prepare(Path({str(gguf[0])!r}), 'k')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 30
    while not list(cache.glob(f"models/{PREFIX}*/tokenizer.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = folders(cache)
    assert left.startswith(PREFIX)
    assert convert.prepared("k") is None
    assert convert.prepare(gguf[0], "k") == models_folder() / "k"
    assert folders(cache) == ["k"]


def test_two_processes_at_once(gguf, cache):
    code = (
        f"from focus_core.models.convert import prepare; from pathlib import Path; prepare(Path({str(gguf[0])!r}), 'k')"
    )
    command = [sys.executable, "-c", code]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen(command, cwd=ROOT, env=environment) for _ in range(2)]
    assert [p.wait(60) for p in both] == [0, 0]
    assert folders(cache) == ["k"]
    assert convert.prepared("k") == models_folder() / "k"


def test_the_first_of_two_folders_stays(cache):
    target = models_folder() / "k"
    with whole_folder(target) as mine:
        (mine / "file").write_text("mine")
        with whole_folder(target) as other:
            (other / "file").write_text("other")
    assert (target / "file").read_text() == "other"
    assert folders(cache) == ["k"]


def test_an_error_leaves_no_folder(cache):
    def half():
        with whole_folder(models_folder() / "k") as mine:
            (mine / "file").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert folders(cache) == []


def test_only_abandoned_folders_are_removed(cache):
    with whole_folder(models_folder() / "k") as mine:
        name = mine.name
        dead = models_folder() / name.replace(str(os.getpid()), "999999999")
        elsewhere = models_folder() / f"{PREFIX}otherhost-999999999-x"
        old = models_folder() / f"{PREFIX}otherhost-999999999-y"
        for folder in (dead, elsewhere, old):
            folder.mkdir()
        os.utime(old, (1, 1))
        assert sorted(remove_abandoned(models_folder())) == sorted([dead, old])
        assert mine.is_dir()
        assert elsewhere.is_dir()


def test_a_cut_off_file_is_refused_with_the_reason(gguf, cache):
    path, _ = gguf
    data = path.read_bytes()
    path.write_bytes(data[:200])
    with pytest.raises(errors.InvalidInput, match="is not a GGUF file that can be read"):
        load_model(str(path))
    path.write_bytes(b"PK\x03\x04" + data[4:])
    with pytest.raises(errors.InvalidInput, match="does not begin with GGUF"):
        load_model(str(path))
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(errors.InvalidInput, match="cut off"):
        load_model(str(path))
    assert not cache.exists()


def test_an_unknown_architecture_is_refused(tmp_path, cache):
    import gguf as library

    path = tmp_path / "odd.gguf"
    writer = library.GGUFWriter(str(path), "oddball")
    writer.add_name("odd")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(errors.Unsupported, match=r"odd\.gguf .*oddball"):
        load_model(str(path))
    assert folders(cache) == []


def test_missing_packages_are_named(gguf, cache, monkeypatch):
    real = convert.importlib.util.find_spec
    monkeypatch.setattr(convert.importlib.util, "find_spec", lambda n: None if n == "gguf" else real(n))
    with pytest.raises(errors.NotAvailable, match="needs gguf") as caught:
        load_model(str(gguf[0]))
    assert caught.value.hint == "pip install gguf"


def test_an_unwritable_cache_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FOCUS_LAB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(errors.NotAvailable, match="cannot be written") as caught:
        load_model("smollm2")
    assert "FOCUS_LAB_CACHE" in caught.value.hint


def test_a_model_in_a_cache_that_can_only_be_read_is_found(gguf, cache, monkeypatch):
    path, _ = gguf
    folder = convert.prepare(path, "k")
    monkeypatch.setattr(convert, "models_folder", lambda: pytest.fail("the folder was opened for writing"))
    assert convert.prepare(path, "k") == convert.prepared("k") == folder


def test_the_bar_nears_the_next_stage_and_never_passes_it():
    for stage, (start, _, message) in convert.STAGES.items():
        following = [s for s, _, _ in convert.STAGES.values() if s > start] or [1.0]
        found = [convert._fraction(stage, t) for t in (0.0, 1.0, 10.0, 1e6)]
        assert found[0] == (start, message)
        assert [f for f, _ in found] == sorted(f for f, _ in found)
        assert found[-1][0] <= min(following)


@pytest.mark.model
def test_the_packaged_model(smollm2_tokenizer):
    assert gguf_values(packaged_gguf()) == 134_515_008
    began = time.process_time()
    loaded = load_model("smollm2", device="cpu")
    assert time.process_time() - began < 3 * 2  # seconds on two cores, whatever else the machine does
    facts = loaded.facts
    assert (facts.layers, facts.heads, facts.kv_heads, facts.head_dim) == (30, 9, 3, 64)
    assert (facts.hidden_size, facts.context, facts.vocab) == (576, 8192, 49152)
    assert facts.revision == GGUF_SHA256[:12]
    assert "4-bit" in facts.note
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    ids = smollm2_tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert smollm2_tokenizer.decode(loaded.model(ids).logits[0, -1].argmax()) == " Paris"
