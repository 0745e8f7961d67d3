"""Nothing is written over that was not made here; what cannot be written or trained is said at once."""

import os

import pytest

from focus_core.adapter import load_adapter
from focus_core.cli import main
from focus_core.models.loading import load_model
from focus_core.routing.router import Router, RouterConfig
from tests.tiny import save_tiny

SMALL = ["--device", "cpu", "--steps", "1", "--context", "24", "--batch", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    save_tiny(folder, "gpt2", layers=1, heads=2, kv_heads=2, n_positions=64)
    return folder


def test_a_result_takes_no_place_of_anything_else(refused, tmp_path):
    notes, pipe = tmp_path / "notes.txt", tmp_path / "pipe"
    notes.write_text("my notes")
    assert "is no JSON" in refused("variants", "--json", notes)
    assert notes.read_text() == "my notes"
    os.mkfifo(pipe)
    assert "is a device or a pipe" in refused("variants", "--json", pipe)
    assert pipe.is_fifo()
    notes.write_text("")
    for _ in range(2):
        assert main(["variants", "--json", str(notes)]) == 0


def test_a_model_is_not_written_over(refused, model, text_file):
    held = (model / "model.safetensors").read_bytes()
    given = ["--model", model, "--text", text_file, "--out", model, *SMALL]
    assert "holds a model" in refused("pretrain", *given)
    assert "holds a model" in refused("train", *given, "--kind", "temperature", "--window", "4")
    assert (model / "model.safetensors").read_bytes() == held
    assert not (model / "training_record.json").exists()


def test_an_adapter_is_written_over_by_its_own_run_alone(command, refused, model, text_file, tmp_path):
    given = ["--model", model, "--text", text_file, *SMALL, "--window", "4", "--out"]
    loaded = load_model(str(model))
    router = Router(RouterConfig(1, 32, groups=4, dim=4, routers=2))
    router.save_pretrained(tmp_path / "router", loaded.model)
    assert "holds another adapter" in refused("train", *given, tmp_path / "router", "--kind", "temperature")
    out = tmp_path / "lora"
    lora = ["train", *given, out, "--kind", "lora", "--rank", "1", "--through", "dense", "--validate-every", "1"]
    assert command(*lora)[0] == 0
    assert "holds another adapter" in refused("train", *given, out, "--kind", "kmeans", "--groups", "4")
    # As after a kill before the first checkpoint.
    (out / "checkpoint.safetensors").unlink()
    assert "holds another adapter" in refused(*lora, "--seed", "1")
    assert command(*lora)[0] == 0
    assert load_adapter(out, loaded.model).kind == "lora"


def test_what_cannot_be_trained_is_said_at_once(refused, model, text_file, tmp_path):
    given = ["--model", model, "--text", text_file, *SMALL, "--out", tmp_path / "new"]
    assert "No folder for the model" in refused("pretrain", *given, "--out", " ")
    # GPT-2 has no position beyond its last.
    assert "A window of 65 tokens" in refused("pretrain", *given, "--context", "65")
    assert "A window of 65 tokens" in refused(
        "train", *given, "--context", "65", "--kind", "temperature", "--window", "4"
    )
    assert "Lower the learning rate" in refused("pretrain", *given, "--learning-rate", "1e30")
    assert not (tmp_path / "new" / "config.json").exists()
