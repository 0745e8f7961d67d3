"""The shipped Traces in the app: every passage is drawn at once, from its recording, while nothing has run."""

import tempfile
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.ui import selection
from data.build.traces import file_name
from focus_core.assets import text_names
from tests.app.fake import FakeEngine

MAIN = str(Path(__file__).resolve().parents[2] / "app" / "main.py")
PASSAGES = text_names("passage")


def never() -> FakeEngine:
    """An engine whose runs do not end, beside what really ships."""
    return FakeEngine(Path(tempfile.mkdtemp(prefix="never-")), seconds=1e6)


@pytest.fixture
def start(monkeypatch):
    import streamlit as st

    monkeypatch.setenv("FOCUS_LAB_ENGINE", "tests.app.test_shipped:never")

    def open_app(**query: str) -> AppTest:
        st.cache_resource.clear()
        at = AppTest.from_file(MAIN, default_timeout=60)
        for name, value in query.items():
            at.query_params[name] = value
        return at.run()

    yield open_app
    st.cache_resource.clear()


def shown(at: AppTest) -> tuple[str, str]:
    assert not at.exception
    path, kind = at.session_state["_last"]
    return Path(path).name, kind


def test_recordings_come_in_the_order_of_the_menu():
    assert [p["text_name"] for _, p in selection.shipped()] == PASSAGES
    assert PASSAGES[0] == "persuasion opening"


def test_the_first_passage_is_drawn_first(start):
    assert shown(start()) == (file_name(PASSAGES[0]), "recorded")


@pytest.mark.parametrize("name", PASSAGES)
def test_each_passage_is_drawn_from_its_recording(start, name):
    assert shown(start(text=name)) == (file_name(name), "recorded")


def test_a_passage_chosen_in_the_menu_is_drawn_at_once(start):
    at = start()
    at.sidebar.selectbox(key="text").select(PASSAGES[3]).run()
    assert shown(at) == (file_name(PASSAGES[3]), "recorded")


def test_an_edited_run_is_not_answered_by_a_recording():
    _, provenance = selection.shipped()[0]
    request = {key: provenance[key] for key in ("model", "text_name", "variant", "config", "adapter")}
    assert selection.matches(provenance, request)
    assert not selection.matches(provenance, {**request, "edits": [{"layer": 0, "router": 0, "merge": [0, 1]}]})


def test_a_recording_answers_where_a_setting_came_later_and_not_where_one_is_gone():
    _, provenance = selection.shipped()[0]
    request = {key: provenance[key] for key in ("model", "text_name", "variant", "config", "adapter")}
    older = {name: value for name, value in provenance["config"].items() if name != "gate"}
    assert selection.matches({**provenance, "config": older}, request)
    assert not selection.matches({**provenance, "config": older}, {**request, "config": {**older, "gate": "soft"}})
    assert not selection.matches({**provenance, "config": {**older, "gone": 1}}, request)
