"""The recorded frontier in the Compare page: the answer, the badge, the picture, its text and length, and the table."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from tests.analysis.test_frontier_marks import focus, window
from tests.app.opening import compare, said


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Open the tab, with the results in a folder of the test's own."""
    with compare(monkeypatch, tmp_path) as open_page:

        def opened(*documents: dict, **query: str) -> AppTest:
            for found in documents:
                (tmp_path / found["file"]).write_text(json.dumps(found))
            return open_page(**{"compare_view": "Frontier", **query})

        yield opened


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
