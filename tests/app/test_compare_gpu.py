"""What was recorded on a GPU, in the Compare page: the answer, the badges, the pictures and their losing side."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from analysis.gpu_figures import above_limit, by_length, model_bars, series_of, stage_bars, starting
from analysis.gpu_results import rows_of
from analysis.gpu_targets import answer
from focus_core.evaluation.sources import source_hash
from tests.app.opening import compare, said
from tests.comparisons import comparison
from tests.gpu_documents import SPREAD, document, prefill


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Open the tab, with the results in a folder of the test's own."""
    with compare(monkeypatch, tmp_path) as open_page:

        def opened(*documents: dict, **query: str) -> AppTest:
            for at, found in enumerate(documents):
                (tmp_path / f"bench-{at}-h200.json").write_text(json.dumps(found))
            return open_page(**{"compare_view": "On a GPU", **query})

        yield opened


def figure(at: AppTest, key: str) -> dict:
    chart = next(c for c in at.get("plotly_chart") if key in c.proto.id)
    return json.loads(chart.proto.spec)


def rows():
    graphed = {"speedup_graph": 1.5, "ms_graph": SPREAD, "baseline_graph": "cudnn", "cudnn_graph_ms": SPREAD}
    return [prefill(8192, 0.6, **graphed), prefill(131072, 9.5), prefill(1 << 20, 16.0)]


def test_speed_up_shows_the_losing_side_the_limit_and_this_machine():
    drawn = by_length(rows_of([document(*rows())]), "speed", comparison(), "live")
    by_name = {}
    for trace in drawn.data:
        by_name.setdefault(trace.name, []).append(trace)
    line, graph = by_name["Focus, 12 heads x 64, K=16 q1k1"]
    assert list(line.x) == [8192, 131072, 1 << 20]
    assert list(line.y) == [0.6, 9.5, 16.0]
    assert list(graph.y) == [1.5]
    assert graph.marker.symbol.endswith("-open")
    beside = next(trace for trace in drawn.data if trace.name == "Focus q4, live on a CPU")
    assert list(beside.x) == [512, 1024, 2048]
    assert list(beside.y) == pytest.approx([1 / 1.17, 1 / 0.81, 1 / 0.54])
    shaded = drawn.layout.shapes[0]
    assert shaded.y1 == 1
    assert shaded.y0 < 0.6
    assert "slower than dense" in [note.text for note in drawn.layout.annotations]


def test_the_share_of_the_limit_is_of_the_way_it_was_called():
    line, graph = [t for t in by_length(rows_of([document(*rows())]), "limit").data if str(t.name).startswith("Focus")]
    assert list(line.y) == pytest.approx([4.0, 9.5 / 15 * 100, 16 / 15 * 100])
    assert list(graph.y) == pytest.approx([10.0])


def test_a_line_above_its_pair_limit_is_named():
    found = rows_of([document(*rows())])
    told = "Focus, 12 heads x 64, K=16 q1k1, 1.07× its limit at 1,048,576 tokens."
    assert above_limit(found) == f"Above it, at a higher rate than dense's: {told}"
    assert above_limit(rows_of([document(*rows()[:2])])) == ""


def test_stages_are_shares_of_their_whole():
    drawn = stage_bars(rows_of([document(*rows())]))
    assert [bar.name for bar in drawn.data] == ["plan", "group pass"]
    assert list(drawn.data[0].x) == [25.0, 25.0, 25.0]
    assert "2.00 ms" in [note.text for note in drawn.layout.annotations]


def test_the_answer_names_the_losing_lengths_of_both_ways_to_call():
    def graphed(tokens, faster, graph):
        return prefill(tokens, faster, speedup_graph=graph, ms_graph=SPREAD)

    def end(*found):
        return answer(rows_of([document(*found)])).partition("; ")[2]

    long = prefill(131072, 9.5)
    assert end(graphed(4096, 0.3, 0.8), graphed(8192, 0.6, 1.6), long) == (
        "up to 8,192 tokens it is slower, as a CUDA graph up to 4,096."
    )
    assert end(graphed(8192, 0.6, 0.9), long) == "up to 8,192 tokens it is slower."
    assert end(prefill(8192, 0.6), long) == "up to 8,192 tokens it is slower."
    assert end(long) == ""


def test_bars_name_their_method_and_whether_starting_kernels_is_in_them():
    def xattention(form, **fields):
        found = prefill(8192, 0.4, method="xattention", stride=16, threshold=0.9, form=form, groups=None)
        return {**found, "stages_ms": {"select": 1.2, "attend": 0.8}, **fields}

    graph = {"select_graph_ms": 0.1, "ms_graph": {"median": 0.4}, "speedup_graph": 1.5}
    found = rows_of([document(*rows()[:1], xattention("own", **graph), xattention("before"))])
    drawn = stage_bars(found)
    assert list(drawn.data[0].y) == [
        "8k · Focus · K=16 q1k1", "8k · XAttention · as published", "8k · XAttention · as served, as called"
    ]  # fmt: skip
    choosing = next(bar for bar in drawn.data if bar.name == "selection")
    assert list(choosing.x) == pytest.approx([0.0, 25.0, 60.0])
    assert starting(rows_of([document(xattention("own", **graph))])) == (
        "Starting kernels is not in the bars: at 8,192 tokens the stages take 400 µs and a call 2.00 ms."
    )
    assert starting(rows_of([document(prefill(8192, 0.6))])) == ""


def model(line, ms, attention, **fields):
    return {
        "method": "model", "model": "M", "phase": "decode", "tokens": 32768, "line": line, "positions": "as trained",
        "ms": {"median": ms}, "attention_ms": {"median": attention}, "append_ms": {"median": 2.0},
        "dense_ms": {"median": 10.0}, "speedup": 10 / ms, "attention_speedup": 4 / attention,
        "attention_share": attention / ms, **fields,
    }  # fmt: skip


def test_a_whole_model_is_shown_with_what_is_no_attention(start):
    found = document(*rows(), model("dense", 10.0, 4.0, kernel="fa2"), model("Focus K=16 q1k1", 8.0, 2.0))
    drawn = model_bars(rows_of([found]), "M", "decode")
    shares = {bar.name: list(bar.x) for bar in drawn.data}
    assert shares == {
        "attention and routing": [40.0, 20.0],
        "appending to the cache": [20.0, 20.0],
        "all else": [40.0, 40.0],
    }
    assert list(drawn.data[0].y) == ["32k · dense (FlashAttention-2)", "32k · Focus K=16 q1k1"]
    assert all(said.x >= 100 for said in drawn.layout.annotations)
    at = start(found)
    assert not at.exception
    assert figure(at, "compare_gpu_whole")
    assert "A ratio of kernels is no ratio of serving" in said(at)
    [table] = [t.value for t in at.dataframe if "Whole model" in t.value]
    assert list(table["Whole model"]) == ["1.00×", "1.25×"]


def test_a_later_run_replaces_an_earlier_and_what_was_not_kept_is_left_out():
    old, new = document(prefill(131072, 9.0)), document(prefill(131072, 10.0), prefill(131072, 12.0, kept=False))
    new["environment"] = {**new["environment"], "time": "2026-12-01T00:00:00+00:00"}
    [(_, found)] = series_of(rows_of([new, old]))
    assert [row["speedup"] for row in found] == [10.0]


def test_nothing_recorded_is_a_sentence(start):
    at = start()
    assert not at.exception
    assert "Nothing is recorded of a GPU here" in said(at)
    assert not at.get("plotly_chart")


def test_the_tab_answers_and_says_where_from(start):
    at = start(document(*rows()))
    assert not at.exception
    words = said(at)
    assert (
        "On an NVIDIA H200, Focus with 16 groups computes 15.0× fewer pairs at 1,048,576 tokens, and is 16.0× as"
        in words
    )
    assert "; up to 8,192 tokens it is slower, except as a CUDA graph." in words
    assert "recorded" in words
    assert "would give at the dense kernel's rate. Above it, at a higher rate than dense's: Focus, 12 heads" in words
    assert "Open points: as a CUDA graph, where one launch starts all kernels" in words
    assert "Nothing at the left changes what was recorded" in words
    assert "code changed since" in words
    assert figure(at, "compare_gpu_speed")["layout"]["yaxis"]["type"] == "log"
    table = at.dataframe[0].value
    state = dict(zip(table["What"], table["State"], strict=True))
    assert state["Focus forward, K=16 q1k1, 12 heads x 64, 1,048,576 tokens"] == "met"
    assert table["Measured"][0] == "16.0×"
    assert table["How"][0].startswith("25.6× against FlashAttention-2")
    at.button(key="compare_gpu_try").click().run()
    assert not at.exception
    assert figure(at, "compare_gpu_stages")["layout"]["barmode"] == "stack"


def test_changed_code_is_said_where_its_figures_are(start):
    now = {"source_hash": source_hash(["focus_core/evaluation/sources.py"])}
    models = document(model("dense", 10.0, 4.0))
    other = {**models["environment"], "torch": "3"}
    for first, second, files in (
        (document(*rows(), **now), {**models, **now}, 0),
        (document(*rows(), **now), models, 1),
        (document(*rows()), {**models, **now}, 1),
        (document(*rows()), models, 2),
    ):
        words = said(start(first, {**second, "environment": other}))
        assert words.count("code changed since") == files
        assert "torch 2; or driver 580, torch 3" in words


def test_a_link_opens_the_picture(start):
    at = start(document(*rows()), compare_gpu="limit")
    assert not at.exception
    assert figure(at, "compare_gpu_limit")
    assert "above 100 %" in said(at)


def test_a_picture_that_does_not_exist_is_said(start):
    assert "picture" in said(start(document(*rows()), compare_gpu="pie"))
