"""Models spread over devices: planned with numbers before loading, the same function after it, or refused."""

import copy
from argparse import Namespace

import pytest
import torch

from focus_core.cli.options import load
from focus_core.errors import InvalidInput, TooLarge, Unsupported
from focus_core.lora import new_lora
from focus_core.models import placement
from focus_core.models.loading import load_model
from focus_core.models.placement import blocks, place, shard
from focus_core.retrofit import on_device, retrofit
from focus_core.routing.router import Router, RouterConfig
from focus_core.variants import make
from tests.tiny import FAMILIES, save_tiny, tiny_model

IDS = torch.arange(1, 25)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tiny")
    return made, save_tiny(made)


@pytest.mark.parametrize("device_map", ["auto", "sequential", "cpu", {"": "cpu"}, '{"model": "cpu", "lm_head": "cpu"}'])
def test_a_placed_model_is_the_model(device_map, folder):
    made, model = folder
    found = load_model(str(made), device_map=device_map)
    assert found.placed.startswith(f"{made} in float32: ")
    assert found.placed.endswith("MB on cpu")
    assert torch.equal(found.model(IDS).logits, model(IDS).logits)
    assert not any(p.requires_grad for p in found.model.parameters())


def test_the_command_line_says_what_is_placed(folder, capsys):
    made, model = folder
    args = Namespace(model=str(made), device=None, dtype="bfloat16", device_map="auto")
    size = sum(p.numel() for p in model.parameters()) * 2
    assert load(args).model.dtype == torch.bfloat16
    assert capsys.readouterr().err == f"{made} in bfloat16: {size / 1e6:.1f} MB on cpu\n"
    with pytest.raises(InvalidInput, match="both say where the model goes"):
        load(Namespace(**vars(args) | {"device": "cpu"}))


@pytest.mark.parametrize(
    "device_map, told",
    [
        ("disk", "'disk' is no device"),
        ("{x}", "is no JSON"),
        ({"": 3}, "this machine has"),
        ("meta", "not on meta"),
        ({"x": "cpu"}, "no module 'x'"),
        ({"model": "cpu"}, "nothing of lm_head"),
    ],
)
def test_a_map_that_cannot_be_is_refused(device_map, told, folder):
    with pytest.raises(InvalidInput, match=told):
        load_model(str(folder[0]), device_map=device_map)


def test_what_does_not_fit_is_refused_with_numbers(folder, monkeypatch):
    size = sum(p.numel() for p in folder[1].parameters()) * 4
    monkeypatch.setattr(placement, "free_memory", lambda device="cpu": size // 2)
    with pytest.raises(
        TooLarge, match=rf"takes {size / 1e6:.1f} MB in float32; there are {size / 2e6:.1f} MB free on cpu"
    ):
        load_model(str(folder[0]), device_map="auto")


def test_two_gpus_share_a_model_by_whole_layers(monkeypatch):
    model = tiny_model(layers=4).to("meta")
    size = sum(p.numel() for p in model.parameters()) * 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(placement, "free_memory", lambda device="cpu": int(0.8 * size))
    found = place(model, "tiny", "auto", "bfloat16")
    assert set(found.device_map.values()) == {0, 1}
    layers = [name for name in found.device_map if name.startswith("model.layers")]
    assert layers == [f"model.layers.{n}" for n in range(4)]
    assert "on cuda:0, " in found.told
    monkeypatch.setattr(placement, "free_memory", lambda device="cpu": int(0.4 * size))
    with pytest.raises(TooLarge, match=r"free on cuda:0, .* free on cuda:1, and no part of it is left on a CPU"):
        place(model, "tiny", "auto", "bfloat16")


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_are_the_layers(family):
    model = tiny_model(family, layers=2)
    found = blocks(model)
    assert len(found) == 2
    inside = sum(p.numel() for block in found for p in block.parameters())
    assert inside < sum(p.numel() for p in model.parameters())
    assert all(any(m is b for m in model.modules()) and len(list(b.children())) > 1 for b in found)


def test_one_process_has_nothing_to_share(folder):
    with pytest.raises(InvalidInput, match="there is one alone"):
        load_model(str(folder[0]), shard="full_shard")
    with pytest.raises(InvalidInput, match="not both"):
        load_model(str(folder[0]), shard="full_shard", device_map="auto")
    with pytest.raises(InvalidInput, match="cannot be sharded by 'zero'"):
        shard(lambda: None, None, "tiny", "float32", "cpu", "zero")


def test_a_model_on_several_devices_reads_its_router_where_each_layer_is():
    model, ids = tiny_model(layers=2), IDS.repeat(1, 3)
    router = Router(RouterConfig(2, model.config.hidden_size, 4, 4))
    focus = make("focus", {"groups": 4, "query_topk": 1, "window": 4, "sinks": 1})
    with retrofit(model, focus, adapter=router):
        wanted = model(ids).logits
    model.hf_device_map = {"model": "cpu", "lm_head": "meta"}
    with retrofit(model, focus, adapter=router) as active:
        assert torch.equal(model(ids).logits, wanted)
        assert active._read(torch.device("cpu")) is router
        assert active._read(torch.device("meta")).bias.device.type == "meta"
    lora = new_lora(model, rank=2, alpha=2.0, targets="q", through="dense", seed=0)
    told = "What was trained lies on one device"
    with pytest.raises(Unsupported, match=told), retrofit(model, make("dense"), adapter=lora):
        pass
    assert model(ids).logits.shape == wanted.shape


def test_an_adapter_beside_a_layer_on_another_device_is_the_same_and_is_trained():
    """Of other devices than the CPU there is always meta, which keeps shapes and the way of gradients."""
    router = Router(RouterConfig(2, 24, 4, 4))
    assert on_device(router, torch.device("cpu")) is router
    away = on_device(router, torch.device("meta"))
    assert {t.device.type for t in (away.key_projection, away.centroids, away.bias)} == {"meta"}
    assert isinstance(away, Router)
    assert router.bias.device.type == "cpu"
    assert dict(router.named_parameters()).keys() == dict(copy.deepcopy(router).named_parameters()).keys()
    assert not list(away.parameters())
    assert away.centroids.grad_fn is not None
