import json
from pathlib import Path

import pytest

from focus_core.adapter import load_adapter
from focus_core.cli import interpret, main
from focus_core.interpret import watch
from focus_core.jobs.files import read_json
from focus_core.models.loading import load_model
from focus_core.routing.router import Router, RouterConfig


@pytest.fixture(scope="module")
def adapter(tiny_folder, tmp_path_factory):
    folder, loaded = tmp_path_factory.mktemp("router"), load_model(tiny_folder)
    router = Router(RouterConfig(2, loaded.facts.hidden_size, groups=4, dim=8, routers=3))
    router.serve = {"groups": 4, "query_topk": 2, "window": 8, "sinks": 2}
    router.save_pretrained(folder, loaded.model)
    return str(folder)


@pytest.fixture(scope="module")
def clusters(tiny_folder, tmp_path_factory):
    import torch

    from focus_core.routing.kmeans import fit_kmeans

    loaded = load_model(tiny_folder)
    place = tmp_path_factory.mktemp("clusters")
    fit_kmeans(loaded.model, torch.arange(256).view(2, 128) % 290, groups=4).save_pretrained(place, loaded.model)
    return str(place)


def asked(tiny_folder, text_file, adapter, clusters, tmp_path):
    given = ["interpret", "--model", tiny_folder, "--adapter", adapter, "--kmeans", clusters, "--device", "cpu"]
    return [*given, "--text", text_file, "brown news", "--context", 64, "--windows", 2, "--work", tmp_path / "work"]


def test_a_router_is_interpreted_and_a_second_run_records_nothing_again(
    command, tiny_folder, text_file, adapter, clusters, tmp_path, monkeypatch
):
    given = [*asked(tiny_folder, text_file, adapter, clusters, tmp_path), "--against", adapter]
    code, found = command(*given)
    assert code == 0
    assert found["command"].startswith("python -m focus_core interpret")
    assert [entry["layer"] for entry in found["layers"]] == [0, 1]
    assert (found["tokens"], found["windows"], found["texts"]) == (256, 4, [text_file, "brown news"])
    assert isinstance(found["directed"], bool)
    keys = found["layers"][0]["keys"]
    assert {"groups", "kmeans", "untrained", "frequency", "matched", "shuffled", "random"} <= set(keys)
    # A router that was never trained is the one before training.
    assert keys["untrained"]["v_measure"] == keys["groups"]["v_measure"]
    assert found["layers"][0]["stability"]["untrained"] == 1
    assert found["layers"][1]["stability"]["against"][Path(adapter).name] == 1
    assert len(found["groups"]["words"]) == 2 * 3 * 4 * 2
    assert json.dumps(found)

    def never(*_):
        raise AssertionError("this window was recorded before")

    monkeypatch.setattr(watch.SetWatch, "record", never)
    place = tmp_path / "packed.json.gz"
    assert main([*map(str, given), "--json", str(place)]) == 0
    again = read_json(place)
    assert again["layers"] == found["layers"]
    assert again["groups"] == found["groups"]
    assert "V kmeans" in interpret.table(again)


def test_what_has_no_groups_or_too_few_tokens_is_refused(refused, tiny_folder, text_file, adapter, clusters, tmp_path):
    given = asked(tiny_folder, text_file, adapter, clusters, tmp_path)
    assert "has no groups" in refused(*given, "--adapter", "smollm2-thresholds")
    assert "1 of 8" in refused(*given, "--windows", 0)
    assert "has 16 groups" in refused(*given, "--kmeans", "smollm2-kmeans-k16")
    assert "brown newz" in refused(*given, "--text", "brown newz")


def test_what_a_killed_run_left_half_is_made_again(command, tiny_folder, text_file, adapter, tmp_path, monkeypatch):
    monkeypatch.setattr("focus_core.assets.training_text", lambda: "the cat sat on the mat and it rained. " * 80)
    work = tmp_path / "work"
    given = ["interpret", "--model", tiny_folder, "--adapter", adapter, "--device", "cpu", "--text", text_file]
    given += ["--context", 16, "--windows", 2, "--work", work]
    half = work / f"kmeans-{Path(tiny_folder).name}-k4-16"
    half.mkdir(parents=True)
    (half / "focus_adapter.safetensors").write_bytes(b"half")
    assert command(*given)[0] == 0
    whole = load_adapter(half, load_model(tiny_folder).model)
    assert whole.kind == "kmeans"
    windows = list(work.glob("*.npz"))
    assert len(windows) == 2
    for place in windows:
        place.write_bytes(place.read_bytes()[:200])
    assert command(*given)[0] == 0


def test_what_does_not_fit_the_adapter_is_refused_before_anything_runs(
    refused, tiny_folder, text_file, adapter, clusters, tmp_path
):
    given = asked(tiny_folder, text_file, adapter, clusters, tmp_path)
    assert "has 4 groups, and groups is set to 3" in refused(*given, "--set", "groups=3")
    assert "not kmeans" in refused(*given, "--kmeans", adapter)
    assert "is a file" in refused(*given, "--work", text_file)


def test_adapters_of_one_name_are_told_apart():
    assert interpret._names(["a/s0", "b/s1/"]) == {"a/s0": "s0", "b/s1/": "s1"}
    assert interpret._names(["s0/router", "s1/router", "x"]) == {n: n for n in ("s0/router", "s1/router", "x")}
