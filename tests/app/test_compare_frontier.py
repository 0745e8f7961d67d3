"""The recorded frontier in the Compare page: the answer, the badge, the picture, its text and length, and the table."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from app.ui import selection
from focus_core import assets
from tests.analysis.test_frontier_marks import focus, window
from tests.app import fake_compare
from tests.app.opening import said


def page():
    from app.ui import sidebar
    from app.ui.guard import guarded
    from app.views.compare import VIEW

    guarded(lambda: VIEW.render(sidebar.select(VIEW)))


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Open the tab, with the results in a folder of the test's own."""
    import streamlit as st

    monkeypatch.setenv("FOCUS_LAB_ENGINE", "tests.app.fake_compare:make")
    monkeypatch.setattr(assets, "adapters", fake_compare.shipped)
    # The fake engine brings a shipped Trace of its own; the next test file finds the real ones again.
    monkeypatch.setattr(selection, "traces_folder", selection.traces_folder)
    monkeypatch.setattr("app.ui.recorded.results_folder", lambda: tmp_path)

    def opened(*documents: dict, **query: str) -> AppTest:
        for found in documents:
            (tmp_path / found["file"]).write_text(json.dumps(found))
        st.cache_resource.clear()
        st.cache_data.clear()
        at = AppTest.from_function(page, default_timeout=60)
        for name, value in {"compare_view": "Frontier", **query}.items():
            at.query_params[name] = value
        return at.run()

    yield opened
    st.cache_resource.clear()
    st.cache_data.clear()


def drawn(at: AppTest) -> dict:
    chart = next(c for c in at.get("plotly_chart") if "compare_pairs" in c.proto.id)
    return json.loads(chart.proto.spec)


CODE = "experiments/texts/python_code.txt"


def test_the_tab_answers_and_says_where_from(start):
    at = start(focus(), window())
    words = said(at)
    assert "at most a quarter of the pairs: best is Focus, 2 groups a query" in words
    assert "recorded" in words
    assert "SmolLM2-135M-Instruct, its own weights frozen; NVIDIA H200, 2026-11-30" in words
    assert [trace["name"] for trace in drawn(at)["data"]] == ["Focus, shipped router", "Window"]
    [table] = [t.value for t in at.dataframe]
    assert list(table["Line"]) == ["Focus, 2 groups a query", "Window of 512"]
    assert table["Command"][1] == "python -m focus_core eval --variant window"


def test_trying_shows_code_where_the_window_is_ahead(start):
    code = {"text": CODE, "file": "frontier-shipped-directed-k16-q2-python_code-4096.json", "nll_diff": 0.3}
    at = start(focus(), window(), focus(**code), window(text=CODE))
    at.button(key="compare_pairs_try").click().run()
    assert "Code, 4,096 tokens, at most a quarter of the pairs: best is Window of 512" in said(at)
    assert len(drawn(at)["data"]) == 2


def test_a_link_opens_a_text_and_a_length(start):
    at = start(focus(), window(context=8192), compare_pairs_tokens="8192")
    assert [trace["name"] for trace in drawn(at)["data"]] == ["Window"]
    assert "Held-out novel, 8,192 tokens" in said(at)


def test_nothing_recorded_is_a_sentence(start):
    at = start()
    assert "No frontier is recorded here" in said(at)
    assert not at.get("plotly_chart")
