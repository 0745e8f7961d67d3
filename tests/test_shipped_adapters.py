"""What ships in data/adapters and data/results: it loads, it can be served, and it says what is claimed of it."""

import json

import pytest
import torch

from focus_core.adapter import load_adapter
from focus_core.assets import DATA, adapters, catalog
from focus_core.models import load_model
from focus_core.routing.sets import members
from focus_core.training.settings import TrainSettings
from focus_core.variants import VARIANTS, make

NAMES = sorted(name for name, entry in adapters().items() if not entry["user"])
# Several variants may take one kind of adapter; it was trained for the one whose name stands first.
VARIANT_OF = {
    VARIANTS[name].adapter_kind: name for name in sorted(VARIANTS, reverse=True) if VARIANTS[name].adapter_kind
}


VARIANT_OF["lora"] = "dense"


def result(name: str) -> dict:
    return json.loads((DATA / "results" / f"eval-{name}.json").read_text("utf-8"))


def test_the_adapters_are_there():
    assert {"smollm2-directed-k16", "smollm2-shared-k4", "smollm2-shared-k8", "smollm2-temperature"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_adapter_has_the_shapes_of_its_config(name):
    path, document = adapters()[name]["path"], adapters()[name]["config"]
    adapter = load_adapter(path)
    shape, base = document["config"], document["model"]
    if document["kind"] == "lora":
        assert len(shape["modules"]) == 60
        # Trained: the updates have left zero, and they fit into the number format that ships.
        for part, tensor in adapter.state_dict().items():
            assert torch.equal(tensor, tensor.bfloat16().float())
            assert tensor.abs().max() > 0, part
        return
    assert shape["layers"] == base["layers"]
    if document["kind"] == "latent":
        loaded = load_model(name.removesuffix("-latent-r64"))
        assert load_adapter(path, loaded.model).config.rank == 64
        assert all(torch.isfinite(tensor).all() for tensor in adapter.state_dict().values())
        return
    assert base["layers"] == 30
    if document["kind"] == "temperature":
        assert adapter.log_factor.shape == (30,)
        assert adapter.log_factor.abs().max() > 0
        return
    if document["kind"] == "thresholds":
        assert adapter.thresholds.shape == (30, shape["heads"]) == (30, 9)
        assert ((adapter.thresholds >= 0) & (adapter.thresholds <= 1)).all()
        assert adapter.thresholds.unique().numel() > 5
        return
    if document["kind"] == "routing":
        assert adapter.centroids.shape == (30, base["kv_heads"], shape["groups"], 64)
        torch.testing.assert_close(adapter.centroids.norm(dim=-1), torch.ones(30, 3, shape["groups"]))
        assert adapter.key_mean.abs().amax(-1).gt(0).all()
        return
    if document["kind"] == "kmeans":
        assert adapter.centroids.shape == (30, shape["groups"], 576)
        assert adapter.centroids.float().std(1).amax(-1).gt(0).all()
        return
    lead = (30, shape["routers"])
    assert shape["routers"] in (1, base["kv_heads"])
    assert shape["hidden_size"] == base["hidden_size"] == 576
    assert adapter.key_projection.shape == (*lead, 576, shape["dim"])
    assert adapter.centroids.shape == (*lead, shape["groups"], shape["dim"])
    assert adapter.bias.shape == (*lead, shape["groups"])
    assert (adapter.query_projection is not None) == (shape["form"] == "directed")
    for tensor in adapter.state_dict().values():
        assert torch.isfinite(tensor).all()
    # Trained: the query side has left the key side, and balancing has moved the bias.
    assert adapter.bias.abs().max() > 0
    assert adapter.query_projection is None or not torch.equal(adapter.query_projection, adapter.key_projection)


@pytest.mark.parametrize("name", NAMES)
def test_its_serve_settings_are_a_served_variant(name):
    document = adapters()[name]["config"]
    variant = make(VARIANT_OF[document["kind"]], document["serve"])
    assert variant.served
    assert not variant.leaks
    assert document["record"]


@pytest.mark.parametrize("name", [n for n in NAMES if "settings" in adapters()[n]["config"]["record"]])
def test_its_record_is_that_of_its_run(name):
    document = adapters()[name]["config"]
    variant = make(VARIANT_OF[document["kind"]], document["serve"])
    settings = TrainSettings(**document["record"]["settings"])
    assert settings.variant_at(None) == variant
    record = json.loads((adapters()[name]["path"] / "training_record.json").read_text("utf-8"))
    assert TrainSettings(**record["settings"]) == settings
    assert record["best_step"] == document["record"]["step"]
    served = {m["step"]: m["served_ppl"] for m in record["log"] if "served_ppl" in m}
    assert record["best_ppl"] == min(served.values()) == served[record["best_step"]]
    assert document["record"]["served_validation_ppl"] == record["best_ppl"]
    assert [m["step"] for m in record["log"]] == list(range(1, record["step"] + 1))
    assert record["best_step"] <= record["step"] <= settings.steps


@pytest.mark.parametrize("name", [n for n in NAMES if adapters()[n]["config"]["kind"] == "router"])
def test_a_router_gives_every_token_its_sets(name):
    document = adapters()[name]["config"]
    adapter, variant = load_adapter(adapters()[name]["path"]), make("focus", document["serve"])
    hidden = torch.randn(2, 20, 576, generator=torch.Generator().manual_seed(0))
    for layer in (0, 29):
        prepared = variant.prepare(hidden, layer, torch.arange(20).expand(2, -1), adapter, None)
        looks = document["config"].get("looks") or [[variant.query_topk] * document["config"]["routers"]] * 30
        for sets, each in ((prepared.cached, [variant.key_topk] * len(looks[layer])), (prepared.fresh, looks[layer])):
            assert sets.shape == (2, document["config"]["routers"], 20)
            assert members(sets, variant.groups).sum(-1).eq(torch.tensor(each)[:, None]).all()
            assert sets.lt(1 << variant.groups).all()


def test_the_claim_of_the_directed_router():
    """The served mask beats dense on the held-out novel by more than two paired standard errors, at 31 % of pairs."""
    found = result("directed-k16-persuasion")
    assert found["text"] == "persuasion"
    assert found["served"] is True
    assert found["config"]["gate"] == "hard"
    assert found["dense_ppl"] - found["ppl"] > 2 * found["ppl_se"] > 0
    assert found["kept_pairs"] <= 0.31
    assert found["leak"] == 0
    assert (found["dtype"], found["context"], found["bos"]) == ("float32", 4096, False)
    windows = found["per_window"]
    assert found["windows"] == len(windows) == 28
    assert all(w["tokens"] == 4095 for w in windows)
    assert found["tokens"] == 28 * 4095


def test_its_figures_follow_from_its_windows():
    found = result("directed-k16-persuasion")
    windows, tokens = found["per_window"], found["tokens"]
    nll, dense = (sum(w[k] for w in windows) / tokens for k in ("nll", "dense_nll"))
    assert found["ppl"] == pytest.approx(torch.tensor(nll).double().exp().item(), rel=1e-6)
    assert found["dense_ppl"] == pytest.approx(torch.tensor(dense).double().exp().item(), rel=1e-6)
    differences = torch.tensor([(w["nll"] - w["dense_nll"]) / w["tokens"] for w in windows], dtype=torch.float64)
    error = (differences.std() / len(windows) ** 0.5).item()
    assert found["nll_se"] == pytest.approx(error, rel=1e-6)
    assert found["ppl_se"] == pytest.approx(error * found["ppl"], rel=0.01)
    assert found["kept_pairs"] == pytest.approx(sum(w["kept_pairs"] for w in windows) / len(windows), rel=1e-9)


def test_all_whole_windows_of_the_novel_were_scored():
    """The same novel, context and windows for every variant, so that the figures stand side by side."""
    files = sorted((DATA / "results").glob("eval-*-persuasion.json"))
    found = [json.loads(f.read_text("utf-8")) for f in files]
    assert len(found) >= 6
    novel = next(t for t in catalog()["texts"] if t["name"] == "persuasion")
    for f in found:
        assert (f["context"], f["windows"]) == (4096, novel["tokens"] // 4096)
        assert f["text_hash"] == found[0]["text_hash"]
        assert f["dense_ppl"] == pytest.approx(found[0]["dense_ppl"], rel=1e-6)
