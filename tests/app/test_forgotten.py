"""The tab of what is forgotten: the recorded probes, and a prompt that is answered side by side."""

from __future__ import annotations

import json
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.ui import recorded, selection
from focus_core import assets
from tests.app import fake_forgotten
from tests.app.opening import said
from tests.probe_sweeps import sweeps


def page():
    from app.ui import sidebar
    from app.ui.guard import guarded
    from app.views.compare import VIEW

    guarded(lambda: VIEW.render(sidebar.select(VIEW)))


@pytest.fixture
def start(monkeypatch):
    import streamlit as st

    monkeypatch.setenv("FOCUS_LAB_ENGINE", "tests.app.fake_forgotten:make")
    monkeypatch.setenv("FAKE_SECONDS", "0")
    monkeypatch.setattr(assets, "adapters", fake_forgotten.adapters)
    # The fake engine brings a shipped Trace of its own; the next test file finds the real ones again.
    monkeypatch.setattr(selection, "traces_folder", selection.traces_folder)
    monkeypatch.setattr(recorded, "results_folder", recorded.results_folder)

    def opened(*, records: bool = True, made: Any = None, **query: str) -> AppTest:
        if made or not records:
            monkeypatch.setattr(fake_forgotten, "documents", made or list)
        st.cache_resource.clear()
        st.cache_data.clear()
        at = AppTest.from_function(page, default_timeout=60)
        for name, value in {"compare_view": "What is forgotten", **query}.items():
            at.query_params[name] = value
        return at.run()

    yield opened
    st.cache_resource.clear()
    st.cache_data.clear()


def test_gain_stands_against_loss_with_the_weights_hash(start):
    at = start()
    words = said(at)
    assert not at.exception
    assert "lowers perplexity on the novel by" in words
    assert "and loses most on needles" in words
    assert "a query looks into 4 of them" in words
    assert "the same before and after every one: a1a1a1a1" in words
    chart = next(c for c in at.get("plotly_chart") if "compare_forgotten" in c.proto.id)
    names = [trace["name"] for trace in json.loads(chart.proto.spec)["data"]]
    assert names == ["Focus K=16 q4k1 (smollm2-directed-k16)", "LoRA (smollm2-lora-r8)"]


def test_sweeps_have_a_frontier_and_their_best_arm_stands_for_them(start):
    at = start(made=sweeps)
    words = said(at)
    assert not at.exception
    assert "0.819 million (each of the other 7)" in words
    assert "A dotted line joins the learning rates" in words
    assert "computes with a trained copy" in words
    charts = {c.proto.id: json.loads(c.proto.spec)["data"] for c in at.get("plotly_chart")}
    bars = next(data for key, data in charts.items() if "compare_forgotten" in key and "frontier" not in key)
    assert len(bars) == 4
    assert len(next(data for key, data in charts.items() if "frontier" in key)) == 4 * 6
    at.multiselect(key="compare_forgotten_arms").set_value(["full-1e-05"]).run()
    assert not at.exception


def test_a_prompt_is_answered_by_each_and_said_where_they_part(start):
    at = start(compare_behind="True", compare_prompt="four")
    next(b for b in at.button if b.key == "compare_ask_run_button").click().run()
    at.run()
    words = said(at)
    assert not at.exception
    assert "As dense for 5 words" in words
    # What a model says is shown, never run.
    assert "<b>Plum" in words
    assert "the same" in words


def test_without_records_it_says_how_to_make_them_and_a_wrong_prompt_is_said(start):
    at = start(records=False, compare_prompt="nonsense")
    words = said(at)
    assert not at.exception
    assert "python -m focus_core probe" in words.replace("\\", "")
    assert "prompt nonsense does not exist" in words


def test_a_stopped_answer_keeps_what_was_said_and_says_that_it_stopped(start, monkeypatch):
    monkeypatch.setenv("FAKE_SECONDS", "60")
    at = start()
    next(b for b in at.button if b.key == "compare_ask_run_button").click().run()
    assert "Stopped here." not in said(at)
    at.button(key="compare_ask_job_stop").click().run()
    at.run()
    words = said(at)
    assert not at.exception
    assert "The answer was cancelled. 1 reply was kept." in words
    assert "Stopped here." in words
