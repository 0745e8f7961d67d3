from __future__ import annotations

import pytest

from analysis import collapse as words
from focus_core import assets
from focus_core.jobs.files import read_json
from tests.app.test_train import engine, figure, said, start  # noqa: F401


def recorded(name: str) -> list[dict]:
    return read_json(assets.DATA / "results" / f"collapse-{name}.json.gz")["records"]


def test_the_recording_is_drawn_on_one_scale_with_what_was_measured(start):  # noqa: F811
    at = start(groups_tab="Collapse")
    assert not at.exception
    assert "One group takes most tokens with the model frozen, mean over layers, under no balancing (8" in said(at)
    assert "not under hard-load bias (1" in said(at)
    spec = figure(at, "collapse_panels")
    titles = [a["text"] for a in spec["layout"]["annotations"]]
    assert titles == list(words.TITLES.values())
    axes = [spec["layout"][k]["range"] for k in spec["layout"] if k.startswith("yaxis")]
    assert axes == [[0, 1]] * 5
    assert "Here: projection bypass under no balancing" in said(at)
    assert "depends on how fast each part learns here" in said(at)
    assert "it fails most where the model is frozen, with one seed, one weight (0.01) and 300 steps" in said(at)
    assert "satisfied when every token" not in said(at)
    assert len(at.dataframe[0].value) == 5


def test_replay_shows_the_start(start):  # noqa: F811
    at = start(groups_tab="Collapse")
    at.select_slider(key="collapse_step").set_value(0).run()
    assert not at.exception
    assert said(at).count("No collapse with the model frozen") == 1


def test_another_setting_is_another_recording(start):  # noqa: F811
    at = start(groups_tab="Collapse", collapse_weights="moving")
    assert "with all weights moving, mean over layers, under no balancing" in said(at)


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


def test_the_papers_two_figures_are_each_said_by_name(start):  # noqa: F811
    paper = words.by_balance(recorded("frozen"))["paper"]
    assert (round(words.settled(paper), 3), round(words.served(paper), 3)) == (0.534, 0.288)
    text = said(start(groups_tab="Collapse"))
    assert "53.4 % as assigned in training, which sees later tokens; 28.8 % as served" in text
    assert "as served 28.8 % frozen, 29.5 % moving, 25.4 % freed half-way" in text


def test_tables_say_whose_share_each_number_is():
    records = recorded("frozen")
    table = words.share_rows(records, "frozen")
    assert list(table) == ["balancing", "experiment", "layer", "group", "step", "share"]
    assert len(table) == len(records) * 4 * 8
    one = table.query("balancing == 'Balance loss' and layer == 3 and step == 300")
    assert one["share"].max() == max(words.by_balance(records)["loss"][-1]["load"][3])
    assert one["share"].sum() == pytest.approx(1, abs=1e-3)
    parts = words.part_rows(records, "frozen")
    assert set(parts["panel"]) == set(words.BACK.values())
    assert len(parts) == sum(len(words.looks(rows)) for rows in words.by_balance(records).values()) * 3


def test_nothing_is_said_of_the_parts_before_they_were_looked_at():
    assert words.carried([]) == ""
    assert words.carried([{"balance": "none", "step": 0, "load": [[0.5, 0.5]]}]) == ""


def test_the_last_steps_label_leaves_room_for_the_next_panels_first():
    for made in (words.panels(recorded("frozen"), 300), words.bypass_curves(recorded("frozen"), 300)):
        assert {axis.tickvals for axis in made.select_xaxes()} == {(0, 100, 200)}


def test_recorded_commands_are_what_a_reader_can_run():
    for name in ("frozen", "moving", "late"):
        document = read_json(assets.DATA / "results" / f"collapse-{name}.json.gz")
        assert document["about"]["command"] == f"python data/build/collapse.py run {name} --device cuda"


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
