from __future__ import annotations

import json

import pytest

from analysis import collapse as words
from focus_core import assets
from tests.app.test_train import engine, figure, said, start  # noqa: F401


def recorded(name: str) -> list[dict]:
    return json.loads((assets.DATA / "results" / f"collapse-{name}.json").read_text("utf-8"))["records"]


def test_the_recording_is_drawn_on_one_scale_with_what_was_measured(start):  # noqa: F811
    at = start(groups_tab="Collapse")
    assert not at.exception
    assert "One group takes most tokens with the model frozen under no balancing (8" in said(at)
    assert "not under hard-load bias (1" in said(at)
    spec = figure(at, "collapse_panels")
    titles = [a["text"] for a in spec["layout"]["annotations"]]
    assert titles == list(words.NAMES.values())
    axes = [spec["layout"][k]["range"] for k in spec["layout"] if k.startswith("yaxis")]
    assert axes == [[0, 1]] * 5
    assert "Projection bypass under no balancing" in said(at)
    assert "Not reproduced: it fails most where the model is frozen" in said(at)
    assert len(at.dataframe[0].value) == 5


def test_replay_shows_the_start(start):  # noqa: F811
    at = start(groups_tab="Collapse")
    at.select_slider(key="collapse_step").set_value(0).run()
    assert not at.exception
    assert said(at).count("No collapse with the model frozen") == 1


def test_another_setting_is_another_recording(start):  # noqa: F811
    at = start(groups_tab="Collapse", collapse_weights="moving")
    assert "with all weights moving under no balancing" in said(at)


def test_the_toy_run_replaces_the_recording_and_can_be_put_back(start):  # noqa: F811
    at = start(groups_tab="Collapse")
    at.button(key="collapse_run").click().run()
    at.run()
    assert not at.exception
    assert [r for k, r in engine().submitted if k == "collapse"] == [{"settings": {"weights": "frozen"}}]
    assert "under no balancing (87.4 %)" in said(at)
    at.button(key="collapse_switch").click().run()
    assert "not under hard-load bias (1" in said(at)


def test_a_toy_run_grows_and_stops(start):  # noqa: F811
    at = start(groups_tab="Collapse", seconds=20)
    at.button(key="collapse_run").click().run()
    at.button(key="collapse_stop").click().run()
    at.run()
    assert not at.exception
    assert at.button(key="collapse_run").label.startswith("Run it here as a toy")


def test_shares_of_all_layers_are_ordered_by_size_and_of_one_are_not():
    rows = [{"step": 0, "load": [[0.1, 0.9], [0.7, 0.3]]}]
    assert words.shares(rows, None)[0] == pytest.approx([0.8, 0.2])
    assert words.shares(rows, 0)[0] == pytest.approx([0.1, 0.9])
    assert words.largest(rows[0]) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("largest", "back", "part"),
    [
        (0.9, {"centroids": 0.88, "projection": 0.3, "hidden": 0.9}, "projection"),
        (0.9, {"centroids": 0.2, "projection": 0.3, "hidden": 0.9}, "centroids"),
        (0.9, {"centroids": 0.8, "projection": 0.8, "hidden": 0.85}, None),
        (0.3, {"centroids": 0.25, "projection": 0.2, "hidden": 0.3}, None),
    ],
)
def test_what_carries_a_collapse_is_what_evens_the_groups_when_it_is_put_back(largest, back, part):
    row = {"load": [[0.25] * 4], "largest": largest, "back": back}
    assert words.carrier(row) == part


def test_nothing_told_yet_is_a_sentence():
    assert words.answer([], "frozen") == "Nothing has run yet."
    assert words.panels([], 10).layout.annotations[0].text == words.WAITING
    assert words.last_step([]) == 0
    assert words.verdict({}) == []


def test_the_recordings_say_what_the_sentences_claim():
    frozen, moving = recorded("frozen"), recorded("moving")
    ends = {n: words.settled(rows) for n, rows in words.by_balance(frozen).items()}
    assert ends["none"] > 0.8 > ends["loss"] > 0.4 > ends["bias"]
    assert words.settled(words.by_balance(moving)["loss"]) < ends["loss"]
