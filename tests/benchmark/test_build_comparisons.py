import json
from types import SimpleNamespace

import pytest

from data.build import comparisons
from focus_core.models.facts import facts_of
from tests.tiny import tiny_model, tiny_tokenizer

WINDOW = {"variant": "window", "config": {"window": 12}, "label": "near"}


@pytest.fixture
def loaded(monkeypatch):
    text = SimpleNamespace(text=" ".join(f"the cat {i} sat on the mat while {7 * i} ran" for i in range(40)))
    monkeypatch.setattr(comparisons.assets, "load_text", lambda name: text)
    model = tiny_model("llama")
    return SimpleNamespace(model=model, tokenizer=tiny_tokenizer(), facts=facts_of(model), name="tiny")


def test_long_texts_take_fewer_repeats_but_never_too_few_for_a_spread():
    repeats, windows = comparisons.counts([512, 1024, 2048, 4096], 9, 4)
    assert repeats == {512: 9, 1024: 6, 2048: 5, 4096: 5}
    assert windows == {512: 4, 1024: 4, 2048: 2, 4096: 1}
    assert comparisons.counts([4096], 3, 4)[0] == {4096: 3}


def test_focus_is_measured_as_trained_and_with_one_group_beside_the_controls():
    found = comparisons.lines("smollm2-directed-k16")
    assert [(e["variant"], e.get("config", {}).get("query_topk")) for e in found] == [
        ("focus", 4),
        ("focus", 1),
        ("window", None),
        ("random", None),
    ]


def test_the_file_says_how_it_was_made_and_each_length_has_its_own_repeats(loaded, tmp_path):
    path = tmp_path / "results" / "compare-tiny.json"
    comparisons.measure(
        path, loaded, [WINDOW], [32, 64], {32: 3, 64: 2}, {32: 2, 64: 1}, text="novel", command="made so"
    )
    result = json.loads(path.read_text())
    assert result["complete"]
    assert [(r["label"], r["length"], r["ms"]["n"], r["windows"]) for r in result["rows"]] == [
        ("dense", 32, 3, 2),
        ("near", 32, 3, 2),
        ("dense", 64, 2, 1),
        ("near", 64, 2, 1),
    ]
    about = result["about"]
    assert about["command"] == "made so"
    assert about["text"] == "novel"
    assert about["load_before"] >= 0
    assert about["repeats"] == {"32": 3, "64": 2}
    assert [len(orders) for orders in about["order"].values()] == [3, 2]
    assert [p.name for p in path.parent.iterdir()] == ["compare-tiny.json"]


def test_a_stopped_run_keeps_what_it_had_and_leaves_the_file_of_before(loaded, tmp_path, monkeypatch):
    path = tmp_path / "compare-tiny.json"
    path.write_text("before")

    def stop(fraction, message):
        if message.startswith("Timing near at 64"):
            raise KeyboardInterrupt

    monkeypatch.setattr(comparisons, "_say", stop)
    with pytest.raises(KeyboardInterrupt):
        comparisons.measure(path, loaded, [WINDOW], [32, 64], 2, 1, text="novel", command="made so")
    assert path.read_text() == "before"
    kept = json.loads((tmp_path / "compare-tiny.json.partial").read_text())
    assert kept["about"]["command"] == "made so"
    assert not kept["complete"]
    assert [(r["length"], r["complete"]) for r in kept["rows"]] == [(32, True), (32, True), (64, False), (64, False)]
