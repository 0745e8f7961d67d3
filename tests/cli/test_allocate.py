"""``allocate``: a table within the budget that beats the same number everywhere, taken up again, refused in words."""

import json

import numpy as np
import pytest
import torch

from focus_core.adapter import load_adapter
from focus_core.assets import DATA
from focus_core.errors import Cancelled
from focus_core.models.loading import load_model
from focus_core.routing import look_table
from focus_core.routing.router import Router, RouterConfig

MODEL = str(DATA / "models" / "tiny-novels")
SERVED = {"groups": 8, "query_topk": 2, "key_topk": 1, "window": 16, "sinks": 2}
SMALL = ("--pairs", 0.45, "--context", 160, "--windows", 1, "--held-windows", 2, "--device", "cpu", "--rounds", 2)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    loaded = load_model(MODEL, device="cpu", dtype="float32")
    router = Router(RouterConfig(loaded.facts.layers, loaded.facts.hidden_size, groups=8, dim=4, routers=2))
    router.serve = SERVED
    return router.save_pretrained(tmp_path_factory.mktemp("router"), loaded.model)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Of the kind that the small model was trained on, and short."""
    path = tmp_path_factory.mktemp("text") / "novel.txt"
    path.write_text((DATA / "texts" / "persuasion.txt").read_text("utf-8")[4000:16000], "utf-8")
    return path


def allocate(adapter, out, text, *more):
    return ("allocate", "--model", MODEL, "--adapter", adapter, "--text", text, "--out", out, *SMALL, *more)


@pytest.mark.parametrize("by", [("gradient",), ("change", "--rounds", 1, "--levels", 0, 2, "K")], ids=lambda by: by[0])
def test_the_table_keeps_to_the_budget_and_beats_one_number_for_all(command, adapter, text, tmp_path, capsys, by):
    code, found = command(*allocate(adapter, tmp_path / "out", text, "--by", *by))
    assert code == 0
    said = capsys.readouterr().err
    assert ("forward and back" if by[0] == "gradient" else "on 8 rows") in said
    best = found["tables"][found["best"]]
    uniform = [rival for rival in found["rivals"] if rival["kept_pairs"] <= 0.45]
    assert [rival["what"] for rival in found["rivals"]][:2] == ["dense", "query_topk 1"]
    assert best["kept_pairs"] <= 0.45 * 1.005
    assert best["nll"] < min(rival["nll"] for rival in uniform)
    assert found["command"].startswith("python -m focus_core allocate")
    made, plain = load_adapter(tmp_path / "out"), load_adapter(adapter)
    assert made.config.looks == tuple(map(tuple, found["looks"]))
    assert made.serve["query_topk"] == made.config.usual_looks
    assert made.record["allocation"]["kept_pairs"] == best["kept_pairs"]
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), plain.parameters(), strict=True))
    # What is served afterwards is what was measured.
    code, served = command(
        "eval", "--model", MODEL, "--adapter", tmp_path / "out", "--text", text, "--context", 160, "--windows", 2,
        "--device", "cpu", "--no-probes",
    )  # fmt: skip
    assert code == 0
    assert served["config"]["looks"] == "adapter"
    assert served["kept_pairs"] == pytest.approx(best["kept_pairs"], abs=0.03)


def test_whole_heads_alone_are_a_rival_of_the_same_command(command, adapter, text, tmp_path):
    code, found = command(*allocate(adapter, tmp_path / "out", text, "--levels", "K", 0, "--rounds", 1))
    assert code == 0
    assert found["levels"] == [0, 8]
    assert {n for row in found["looks"] for n in row} <= {0, 8}


def test_a_smaller_window_leaves_its_pairs_to_the_groups(command, adapter, text, tmp_path):
    code, found = command(*allocate(adapter, tmp_path / "out", text, "--window", 8, "--rounds", 1))
    assert code == 0
    assert found["mask"]["window"] == 8
    assert load_adapter(tmp_path / "out").serve["window"] == 8
    assert load_adapter(adapter).serve["window"] == 16


def test_what_was_stopped_goes_on_and_comes_to_the_same(adapter, text):
    loaded = load_model(MODEL, device="cpu", dtype="float32")
    router, ids = (
        load_adapter(adapter, loaded.model),
        torch.tensor(loaded.tokenizer(text.read_text("utf-8"))["input_ids"]),
    )
    windows = ids[: 160 * 4].view(4, 160)
    search = look_table.Search(0.45, (0, 8), rounds=2)
    whole, kept = look_table.TableSearch(loaded, router, search, windows[:2], windows[2:]).run()[1], []

    def start(count: int, resume=None):
        asked = iter(range(count))
        return look_table.TableSearch(
            loaded, router, search, windows[:2], windows[2:],
            keep=lambda document: kept.append(json.dumps(document)),
            cancel=lambda: next(asked, None) is None,
            resume=resume,
        )  # fmt: skip

    with pytest.raises(Cancelled):
        start(8).run()
    assert len(kept) == 8
    again = start(10**6, json.loads(kept[-1])).run()[1]
    assert again["carried"] == 8
    assert {**again, "carried": 0} == whole
    # Of another search nothing is taken.
    other = json.loads(kept[-1])
    other["key"][0] = -1
    assert start(1, other).carried == 0


def test_it_starts_from_dense_and_from_a_table(adapter, text, tmp_path, command):
    code, first = command(*allocate(adapter, tmp_path / "one", text, "--start", "dense", "--rounds", 1))
    assert code == 0
    assert np.array(first["tables"][0]["from"]).min() == 8
    code, second = command(*allocate(tmp_path / "one", tmp_path / "two", text, "--start", "adapter", "--rounds", 1))
    assert code == 0
    assert second["tables"][0]["from"] == first["looks"]


def test_what_cannot_be_is_said_with_its_numbers(refused, adapter, text, tmp_path):
    def said(*more):
        return refused(*allocate(adapter, tmp_path / "out", text, *more))

    assert "window and sinks alone keep 0.2" in said("--pairs", 0.1)
    assert "window and sinks alone keep 0.2" in said("--pairs", 1)
    assert "look into 9 groups: the adapter has 8" in said("--levels", 0, 9)
    assert "nothing to choose" in said("--levels", 3)
    assert "whole numbers" in said("--levels", "all")
    assert "keep all pairs of 18 tokens" in said("--context", 18)
    assert "no table of looks to start from" in said("--start", "adapter")
    assert "rounds is 0" in said("--rounds", 0)
    assert "windows is 0" in said("--windows", 0)
    assert "A window of 2,048 tokens" in said("--context", 2048)
    assert "There is no adapter" in refused(*allocate(tmp_path / "none", tmp_path / "out", text))
    assert "holds another adapter" in refused(*allocate(adapter, adapter, text))
    assert "is of kind temperature" in refused(*allocate("smollm2-temperature", tmp_path / "out", text))
    assert not (tmp_path / "out").exists()
