"""Adapters on disk: strict, without pickle, and for one model alone."""

import json
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from focus_core.adapter import CONFIG_FILE, WEIGHTS_FILE, Adapter, fingerprint, load_adapter, read_config
from focus_core.errors import InvalidInput
from focus_core.routing.kmeans import KMeansCentroids, KMeansConfig
from focus_core.routing.router import Router, RouterConfig
from focus_core.routing.temperature import FarTemperature, FarTemperatureConfig
from tests.tiny import FAMILIES, tiny_model

ADAPTERS = {
    "directed": lambda: Router(RouterConfig(3, 144, groups=64, dim=4, routers=3)),
    "shared": lambda: Router(RouterConfig(3, 144, groups=4, form="shared", seed=3)),
    "paper": lambda: Router(RouterConfig(3, 144, form="paper")),
    "kmeans": lambda: KMeansCentroids(KMeansConfig(3, 144, groups=5)),
    "temperature": lambda: FarTemperature(FarTemperatureConfig(3)),
}


def filled(name: str) -> Adapter:
    adapter = ADAPTERS[name]()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in adapter.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    adapter.serve = {"window": 7, "sinks": 0}
    adapter.record = {"text": "naïve", "loss": [1.5, 2]}
    return adapter


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture
def saved(tmp_path, model):
    return filled("shared").save_pretrained(tmp_path / "adapter", model)


def edit(folder, **changes) -> None:
    path = folder / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


@pytest.mark.parametrize("name", ADAPTERS)
def test_what_is_saved_is_what_is_read(name, tmp_path, model):
    adapter = filled(name)
    folder = adapter.save_pretrained(tmp_path / "a" / "b", model)
    again = load_adapter(folder, model)
    assert type(again) is type(adapter)
    assert (again.config, again.serve, again.record) == (adapter.config, adapter.serve, adapter.record)
    given, found = adapter.state_dict(), again.state_dict()
    assert list(given) == list(found)
    for key in given:
        assert given[key].dtype == found[key].dtype
        assert torch.equal(given[key], found[key])
    assert not again.training
    assert not any(p.requires_grad for p in again.parameters())
    assert sorted(p.name for p in folder.iterdir()) == sorted([CONFIG_FILE, WEIGHTS_FILE])


def test_it_can_be_trained_on(saved, model):
    adapter = Adapter.from_pretrained(saved, model, trainable=True)
    assert adapter.training
    assert all(p.requires_grad for p in adapter.parameters())


def test_saving_again_replaces_the_old_one(saved, model):
    newer = filled("shared")
    with torch.no_grad():
        newer.centroids.zero_()
    newer.save_pretrained(saved, model)
    assert (load_adapter(saved, model).centroids == 0).all()


def test_every_kind_is_known():
    assert set(Adapter.kinds) >= {"router", "kmeans", "temperature"}


def other_models():
    instruct = tiny_model()
    with torch.no_grad():
        instruct.get_input_embeddings().weight[-1] += 0.5
    normed = tiny_model()
    with torch.no_grad():
        normed.model.norm.weight += 0.5
    return {
        "a tuned embedding": (instruct, "weights"),
        "a tuned last norm": (normed, "weights"),
        "another seed": (tiny_model(seed=1), "weights"),
        "fewer layers": (tiny_model(layers=2), "layers: adapter 3, model 2"),
        "other KV heads": (tiny_model(kv_heads=9), "kv_heads: adapter 3, model 9"),
        "another family": (tiny_model("qwen3"), "family: adapter llama, model qwen3"),
        "another size": (tiny_model(head_dim=8), "hidden_size: adapter 144, model 72"),
        "another vocabulary": (tiny_model(vocab_size=200), "vocab: adapter 300, model 200"),
    }


@pytest.mark.parametrize("name", other_models())
def test_another_model_is_refused_with_both_fingerprints(name, saved, model):
    other, says = other_models()[name]
    with pytest.raises(InvalidInput, match=says) as refusal:
        load_adapter(saved, other)
    both = fingerprint(model)["weights"], fingerprint(other)["weights"]
    assert all(weights in str(refusal.value) for weights in both)
    load_adapter(saved, model)
    load_adapter(saved)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_dtype_a_model_is_loaded_in_does_not_matter(family):
    wide = tiny_model(family)
    narrow = tiny_model(family, dtype=torch.bfloat16)
    again = tiny_model(family, dtype=torch.bfloat16).float()
    assert fingerprint(wide) == fingerprint(narrow) == fingerprint(again)
    assert fingerprint(wide) != fingerprint(tiny_model(family, seed=1))
    json.dumps(fingerprint(wide))


def test_every_field_of_the_fingerprint_is_the_models(model):
    found = fingerprint(model)
    weights = found.pop("weights")
    assert found == {"family": "llama", "layers": 3, "hidden_size": 144, "heads": 9, "kv_heads": 3, "vocab": 300}
    assert len(weights) == 16


def test_a_folder_without_an_adapter(tmp_path):
    with pytest.raises(InvalidInput, match="There is no adapter at"):
        load_adapter(tmp_path)


def test_missing_weights(saved):
    (saved / WEIGHTS_FILE).unlink()
    with pytest.raises(InvalidInput, match=f"no {WEIGHTS_FILE}"):
        load_adapter(saved)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"3", b"[]", b'"text"', b"null", b"{}"])
def test_a_broken_config(saved, content):
    (saved / CONFIG_FILE).write_bytes(content)
    with pytest.raises(InvalidInput, match=CONFIG_FILE):
        load_adapter(saved)


def test_a_config_that_is_a_folder(saved):
    (saved / CONFIG_FILE).unlink()
    (saved / CONFIG_FILE).mkdir()
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_adapter(saved)


def test_another_format(saved):
    edit(saved, format=2)
    with pytest.raises(InvalidInput, match=r"has format 2.*reads format 1"):
        read_config(saved)


def test_an_unknown_kind(saved):
    edit(saved, kind="wishful")
    with pytest.raises(InvalidInput, match=r"'wishful'.*Known kinds: .*kmeans, .*router, .*temperature"):
        load_adapter(saved)


@pytest.mark.parametrize("config", [{}, {"layers": 3, "hidden_size": 144, "colour": 1}])
def test_a_config_that_is_not_the_kinds(saved, config):
    edit(saved, config=config)
    with pytest.raises(InvalidInput, match="does not describe an adapter of kind 'router'"):
        load_adapter(saved)


@pytest.mark.parametrize("field", ["config", "serve", "model", "record"])
@pytest.mark.parametrize("value", [[3], None, "text"])
def test_settings_that_are_no_settings(saved, field, value):
    edit(saved, **{field: value})
    with pytest.raises(InvalidInput, match=f"holds no settings under {field}"):
        load_adapter(saved)


def test_a_config_out_of_range(saved):
    edit(saved, config={"layers": 3, "hidden_size": 144, "groups": 65})
    with pytest.raises(InvalidInput, match="65 groups"):
        load_adapter(saved)


@pytest.mark.parametrize("change", ["shorter", "lacking", "more", "cut", "text", "pickle"])
def test_weights_that_are_not_the_configs(saved, change):
    path = saved / WEIGHTS_FILE
    tensors = load_file(path)
    if change == "shorter":
        tensors["centroids"] = tensors["centroids"][:, :, :-1].contiguous()
    elif change == "lacking":
        del tensors["bias"]
    elif change == "more":
        tensors["query_projection"] = torch.zeros(1)
    if change == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif change == "text":
        path.write_bytes(b"weights")
    elif change == "pickle":
        path.unlink()
        torch.save(tensors, path)
    else:
        save_file(tensors, path)
    with pytest.raises(InvalidInput, match="does not hold the tensors"):
        load_adapter(saved)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_no_numbers(saved, value):
    tensors = load_file(saved / WEIGHTS_FILE)
    save_file({**tensors, "bias": torch.full_like(tensors["bias"], value)}, saved / WEIGHTS_FILE)
    with pytest.raises(InvalidInput, match="not finite, in bias first"):
        load_adapter(saved)


@dataclass(frozen=True)
class _Config:
    size: int


class _Breaking(Adapter):
    config_class = _Config

    def __init__(self, config):
        super().__init__(config)
        self.weight = nn.Parameter(torch.zeros(config.size))
        self.kind = "router"


def test_a_failed_save_leaves_the_old_adapter(saved, model, monkeypatch):
    before = {p.name: p.read_bytes() for p in saved.iterdir()}

    def stop(*_):
        raise OSError("disk full")

    monkeypatch.setattr("focus_core.adapter.save_file", stop)
    with pytest.raises(OSError, match="disk full"):
        _Breaking(_Config(2)).save_pretrained(saved, model)
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before


def test_weights_may_lie_in_the_folder_beside_it(saved, model):
    other = saved.parent / "other"
    other.mkdir()
    (other / CONFIG_FILE).write_text((saved / CONFIG_FILE).read_text("utf-8"), "utf-8")
    with pytest.raises(InvalidInput, match="there is no focus_adapter"):
        load_adapter(other)
    edit(other, weights="adapter")
    found, wanted = load_adapter(other, model).state_dict(), load_adapter(saved, model).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    for wrong in ("../adapter", "/etc", "..", "", 3):
        edit(other, weights=wrong)
        with pytest.raises(InvalidInput, match="Name a folder beside it"):
            load_adapter(other)
