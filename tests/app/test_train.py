from __future__ import annotations

import json
import time

import pytest
from streamlit.testing.v1 import AppTest

from analysis import training as words
from app.ui import selection
from focus_core import assets
from tests.app import fake, fake_train
from tests.app.opening import engine, said


def page():
    from app.ui import sidebar
    from app.ui.guard import guarded
    from app.views.groups import VIEW

    guarded(lambda: VIEW.render(sidebar.select(VIEW)))


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Open the tab with the fake engine and an empty cache folder; query parameters by name."""
    import streamlit as st

    monkeypatch.setenv("FOCUS_LAB_ENGINE", "tests.app.fake_train:make")
    monkeypatch.setenv("FOCUS_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(selection, "traces_folder", selection.traces_folder)
    monkeypatch.setattr(assets, "adapters", fake_train.shipped)

    def open_tab(seconds: float = 0.0, fresh: bool = True, **query: str) -> AppTest:
        if fresh:
            monkeypatch.setenv(fake.SECONDS, str(seconds))
            st.cache_resource.clear()
        at = AppTest.from_function(page, default_timeout=60)
        for name, value in {"groups_tab": "Train", **query}.items():
            at.query_params[name] = value
        return at.run()

    yield open_tab
    st.cache_resource.clear()


def train(at: AppTest) -> AppTest:
    return at.button(key="train_run").click().run()


def figure(at: AppTest, key: str) -> dict:
    return json.loads(next(c for c in at.get("plotly_chart") if key in c.proto.id).proto.spec)


def asked() -> list[dict]:
    return [request for kind, request in engine().submitted if kind == "train"]


def test_the_tab_says_what_it_does_and_what_it_takes_before_anything_runs(start):
    at = start()
    assert not at.exception
    assert "Nothing is trained yet" in said(at)
    assert "toy beside the shipped one, which read 2,048 tokens at a time for 77 steps" in said(at)
    assert "About 1.0 s" in said(at)
    assert at.button(key="train_run").label.startswith("Train")
    assert asked() == []


def test_a_run_shows_loss_loads_strip_and_map_and_what_it_costs_against_dense(start):
    at = train(start())
    at.run()
    assert not at.exception
    assert "After 20 of 20 steps the groups serve perplexity 41.0 with 30.0 % of the pairs" in said(at)
    assert "dense attention has 39.8 with all" in said(at)
    assert "This run is whole" in said(at)
    bands = figure(at, "train_loads")["data"]
    assert len(bands) == 8
    assert {band["stackgroup"] for band in bands} == {"one"}
    assert len(figure(at, "train_curves")["data"]) == 2
    names = {c.proto.component_name.rsplit(".", 1)[-1] for c in at.get("bidi_component")}
    assert {"focus_lab_strip", "focus_lab_scatter"} <= names
    assert asked()[0]["settings"]["groups"] == 8
    assert asked()[0]["source"] == "novels"


def test_replay_goes_back_to_random_groups(start):
    at = train(start())
    at.run()
    slider = at.select_slider(key="train_step")
    assert slider.value == 20
    assert "have left their first group" in said(at)
    slider.set_value(0).run()
    assert "after step 0, with random groups" in said(at)


def test_while_it_runs_it_can_be_stopped_and_then_goes_on(start):
    at = train(start(seconds=4))
    time.sleep(1)
    at.run()
    assert [b.key for b in at.button if b.key == "train_run"] == []
    at.button(key="train_stop").click().run()
    at.run()
    label = at.button(key="train_run").label
    assert label.startswith("Go on from step")
    assert int(label.split("step")[1].split()[0]) >= 1
    train(at)
    assert len(asked()) == 2
    assert asked()[0] == asked()[1]


def test_a_page_that_was_loaded_again_finds_the_run_and_joins_it(start):
    train(start(seconds=30))
    at = start(fresh=False)
    assert [b.key for b in at.button if b.key == "train_stop"] == ["train_stop"]
    assert len(asked()) == 1


def test_a_link_opens_the_run_of_other_settings(start):
    at = train(start(train_groups="16"))
    at.run()
    key = engine().key("train", asked()[0])
    assert asked()[0]["settings"]["groups"] == 16
    assert at.query_params["trained"] == key
    other = start(fresh=False, trained=key)
    assert "Shown is the run before" in said(other)
    assert len(figure(other, "train_loads")["data"]) == 16


def test_saving_puts_it_in_the_sidebar_and_deleting_takes_it_out(start):
    at = train(start())
    at.run()
    at.text_input(key="train_name").input("mine").run()
    at.button(key="train_save").click().run()
    assert "Kept as mine" in said(at)
    assert "mine" in assets.adapters()
    at.button(key="train_use").click().run()
    assert at.sidebar.selectbox(key="adapter").value == "mine"
    assert any(option == "mine (made here)" for option in at.sidebar.selectbox(key="adapter").options)
    at.button(key="delete_mine").click().run()
    assert not at.exception
    assert "mine" not in assets.adapters()
    assert "mine" not in at.sidebar.selectbox(key="adapter").options


def test_what_was_kept_of_one_run_is_not_said_of_the_next(start):
    at = train(start())
    at.run()
    at.text_input(key="train_name").input("mine").run()
    at.button(key="train_save").click().run()
    assert "Kept as mine" in said(at)
    at.segmented_control(key="train_groups").set_value(4).run()
    train(at)
    at.run()
    assert "Kept as mine" not in said(at)
    assert [b.key for b in at.button if b.key == "train_use"] == []
    assert at.text_input(key="train_name").value == "smollm2-shared-k4-20steps"
    assert "mine" in assets.adapters()


@pytest.mark.parametrize(
    ("end", "pairs", "words_said"),
    [
        (45.3, 0.4, "Training lowered the pairs at 6.8 % more perplexity: no gain in quality"),
        (40.0, 0.4, "lowered the pairs and has 5.7 % less perplexity: a gain"),
        (40.0, 0.6, "raised the pairs and has 5.7 % less perplexity: at other pairs neither is the better one"),
        (40.0, 0.54, "left the pairs and has 5.7 % less perplexity: a gain"),
        (45.3, 0.6, "no gain."),
    ],
)
def test_the_kept_step_stands_beside_the_untrained_one(end, pairs, words_said):
    first = {"step": 0, "served_ppl": 42.4, "kept_pairs": 0.54}
    history = [first, {"step": 10, "served_ppl": end, "kept_pairs": pairs}]
    said_of = words.gain(history)
    assert "Untrained (step 0): perplexity 42.4 with 54.0 % of the pairs" in said_of
    assert f"Kept (step 10): perplexity {end:.1f} with {100 * pairs:.1f} % of the pairs" in said_of
    assert words_said in said_of
    assert words.gain(history[:1]) == ""


@pytest.mark.parametrize("name", ["directed-k16", "../mine", "", "With Space"])
def test_a_name_that_cannot_be_kept_is_refused_with_the_reason(start, name):
    at = train(start())
    at.run()
    at.text_input(key="train_name").input(name).run()
    at.button(key="train_save").click().run()
    assert "already" in said(at) or "cannot be kept" in said(at)
    assert not [n for n, entry in assets.adapters().items() if entry["user"]]


def test_a_text_that_is_too_short_to_learn_from_offers_what_works(start):
    at = start(train_source="text", train_context="1024")
    assert "training on it takes 2,048" in said(at)
    at.button(key="train_novels").click().run()
    assert at.button(key="train_run").label.startswith("Train")


def test_a_value_that_cannot_be_is_said(start):
    assert "groups 999 does not exist; showing 8" in said(start(train_groups="999"))


def test_without_an_adapter_the_page_offers_training_and_kmeans(start, monkeypatch):
    monkeypatch.setenv(fake_train.NO_ADAPTERS, "1")
    at = start(groups_tab="Map")
    assert not at.exception
    assert "No groups were made for " in said(at)
    at.button(key="way_groups_train").click().run()
    assert at.session_state["groups_tab"] == "Train"
    assert at.button(key="train_run").label.startswith("Train")
    at.button(key="way_groups_kmeans").click().run()
    at.run()
    at.button(key="way_groups_use").click().run()
    assert not at.exception
    assert at.sidebar.selectbox(key="variant").value == "kmeans"
    assert at.sidebar.selectbox(key="adapter").value == "smollm2-kmeans-k16"


def test_loads_are_those_before_the_steps_correction_so_they_begin_with_the_untrained_groups():
    history = [{"step": 0}, {"step": 1, "load": [[[1.5, 0.5]]]}, {"step": 2, "load": [[[1.0, 1.0]]]}]
    table = words.shares(history, 0, 0)
    assert table.index.tolist() == [0, 1]
    assert table.iloc[0].tolist() == [0.75, 0.25]


def test_of_a_step_told_twice_the_last_word_counts():
    parts = [{"about": {}}, {"step": 1, "loss": 3}, {"step": 0}, {"step": 1, "loss": 2}, {"step": 1, "look": "f"}]
    assert words.history_of(parts) == [{"step": 0}, {"step": 1, "loss": 2, "look": "f"}]


def test_nothing_told_yet_is_a_figure_with_a_sentence():
    for made in (words.curves([], 30), words.loads([], 0, 0, 30)):
        assert made.layout.annotations[0].text == words.WAITING
    assert words.answer([], 30) == "Nothing is measured yet."
