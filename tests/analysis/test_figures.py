import json

import numpy as np
import plotly.graph_objects as go
import pytest

from analysis.comparison_figures import gate_name, gate_rows, memory_bars, soft_to_hard, speed_by_length
from analysis.frontier import RECORDED, frontier
from analysis.layers_heads import layers_by_heads, of_trace
from analysis.lines import colour, turns
from analysis.measured import merge
from focus_core.trace import Trace
from tests.comparisons import comparison, dense, row

EMPTY = merge([])


def named(figure: go.Figure, name: str):
    return next(t for t in figure.data if t.name == name)


def drawings(result):
    return [
        *(frontier(result, 1024, m) for m in ("time", "pairs", "memory")),
        speed_by_length(result),
        speed_by_length(result, "attention"),
        soft_to_hard(result, 1024),
        memory_bars(result),
    ]


@pytest.mark.parametrize("result", [comparison(), EMPTY, merge([{"row": dense(1024)}])], ids=["full", "empty", "dense"])
def test_every_figure_is_transparent_and_serialises_without_nan(result):
    for figure in drawings(result):
        document = json.loads(figure.to_json())
        assert document["layout"]["paper_bgcolor"] == "rgba(0, 0, 0, 0)"
        assert document["layout"]["plot_bgcolor"] == "rgba(0, 0, 0, 0)"
        assert "NaN" not in figure.to_json()


def test_an_empty_figure_says_so():
    for figure in drawings(EMPTY):
        assert figure.layout.annotations[0].text


def test_the_frontier_puts_measured_time_across_and_change_up_with_both_spreads():
    figure = frontier(comparison(), 2048, "time")
    point = named(figure, "Focus q4")
    assert point.x[0] == pytest.approx(0.6)
    assert point.y[0] == pytest.approx(1.005, abs=0.01)
    assert point.error_x.array[0] == pytest.approx(0.06)
    assert point.error_y.array[0] > 0
    assert named(figure, "dense").x[0] == 1.0


def test_the_frontier_never_shows_what_is_not_served():
    for measure in ("time", "pairs", "memory"):
        names = {t.name for t in frontier(comparison(), 1024, measure).data}
        assert not names & {"paper", "soft 0.1", "soft 0.3"}


def test_the_frontier_draws_counted_cost_beside_measured():
    counted = [t for t in frontier(comparison(), 1024, "time").data if t.name == "counted operations"]
    assert [t.x[0] for t in counted] == pytest.approx([0.655, 0.6])
    assert not [t for t in frontier(comparison(), 1024, "pairs").data if t.name == "counted operations"]


def test_the_losing_region_begins_at_dense_and_reaches_past_every_point():
    figure = frontier(comparison(), 512, "time")
    beyond, above = (s for s in figure.layout.shapes if s.type == "rect")
    assert beyond.x0 == 1.0
    assert beyond.x1 > max(t.x[0] for t in figure.data)
    assert above.y0 == 0
    assert above.y1 > max(t.y[0] for t in figure.data)


def test_recorded_points_are_open_squares_and_need_the_cost_that_is_shown():
    recorded = (("2026-11-01, H200", row(label="Focus recorded", ratio=None)),)
    figure = frontier(comparison(), 1024, "pairs", others=recorded)
    assert named(figure, RECORDED).marker.symbol == "square-open"
    assert "Focus recorded" in named(figure, RECORDED).hovertemplate
    assert RECORDED not in {t.name for t in frontier(comparison(), 1024, "time", others=recorded).data}


def test_all_recorded_points_share_one_word_in_the_legend():
    recorded = tuple(("2026-11-01, H200", row(label=f"Focus {i}", ratio=None)) for i in range(8))
    figure = frontier(comparison(), 1024, "pairs", others=recorded)
    squares = [t for t in figure.data if t.name == RECORDED]
    assert len(squares) == 8
    assert [t.showlegend for t in squares] == [True] + [False] * 7
    assert figure.layout.legend.y < 0


def test_partial_rows_are_fainter():
    rows = [dense(1024), row(complete=False)]
    assert named(frontier({"rows": rows, "about": {}}, 1024, "time"), "Focus q4").marker.opacity < 1


def test_speed_shows_spread_counted_curve_and_crossover():
    figure = speed_by_length(comparison())
    line = named(figure, "Focus q4")
    assert list(line.x) == [512, 1024, 2048]
    assert list(line.y) == pytest.approx([1.3, 0.9, 0.6])
    assert line.error_y.array[0] == pytest.approx(0.13)
    curve = named(figure, "Focus q4, counted")
    assert curve.line.dash == "dot"
    assert len(curve.x) == 5
    assert any("faster from" in a.text for a in figure.layout.annotations)
    assert any(a.text == "slower than dense" for a in figure.layout.annotations)
    assert named(speed_by_length(comparison(), "attention"), "Focus q4").y[0] == pytest.approx(1.17)


def test_no_crossing_is_drawn_where_the_spread_leaves_doubt():
    result = comparison()
    for found in result["rows"]:
        if found["length"] == 1024 and found.get("ratio"):
            found["ratio"] = {"median": 0.9, "p10": 0.7, "p90": 1.1, "n": 5}
    assert not any("faster from" in a.text for a in speed_by_length(result).layout.annotations)


def test_the_lines_of_crossings_run_through_no_label():
    result = comparison()
    for found in result["rows"]:
        if found["variant"] == "window" and found["length"] == 1024:
            found["ratio"] = {"median": 1.2, "p10": 1.1, "p90": 1.3, "n": 5}
    figure = speed_by_length(result)
    bottom = figure.layout.yaxis.range[0]
    lines = sorted((s.x0, s.y0) for s in figure.layout.shapes if s.type == "line" and s.x0 == s.x1)
    labels = sorted((10**a.x, a.y) for a in figure.layout.annotations if "faster from" in a.text)
    assert len(lines) == len(labels) == 2
    assert labels[0][1] == pytest.approx(bottom)
    assert lines[1][1] - labels[0][1] == pytest.approx(-bottom / 2), "the later line ends above the earlier label"
    assert all(y < 0 for _, y in labels), "no curve goes below zero"
    assert min(figure.layout.yaxis.tickvals) == 0


def test_the_labels_of_the_losing_region_have_room_on_both_sides_of_dense():
    slow, fast = row(length=1024, ratio=3.0), row(length=1024, ratio=0.2)
    for rows in ([dense(1024), slow], [dense(1024), fast], [dense(1024), slow, row("window", "w", ratio=0.98)]):
        figure = frontier({"rows": rows, "about": {}}, 1024, "time")
        left, right = figure.layout.xaxis.range
        assert right - 1 >= 0.25 * (right - left)
        assert 1 - left >= 0.17 * (right - left)
        assert all(s.layer == "below" for s in figure.layout.shapes)


def test_denses_label_moves_aside_for_a_point():
    def side(change):
        result = {"rows": [dense(1024), row(ratio=0.3, change=change), row("window", "w", change=0.5)], "about": {}}
        labels = frontier(result, 1024, "time").layout.annotations
        return next(a.xanchor for a in labels if a.text == "dense's perplexity")

    assert side(0.2) == "left"
    assert side(0.0) == "right"


def test_memory_is_in_the_unit_of_the_rest_of_the_page():
    figure = memory_bars({"rows": [dense(1024) | {"peak_bytes": 250_000_000}], "about": {}})
    assert figure.data[0].y[0] == 250
    assert figure.data[0].customdata[0][0] == "250 MB"
    assert figure.layout.yaxis.title.text.endswith("MB")


def test_the_gates_go_from_the_papers_to_the_served_one_and_differ_by_symbol():
    rows = gate_rows(comparison(), 1024)
    assert [gate_name(r) for r in rows] == ["paper's soft", "soft 0.3", "soft 0.1", "hard (served)"]
    trace = soft_to_hard(comparison(), 1024, picked=rows[-1]["key"]).data[0]
    assert trace.marker.symbol == ("x", "circle-open", "circle-open", "circle")
    assert trace.marker.size[-1] > trace.marker.size[0]


def test_labels_are_escaped_in_figures():
    rows = [dense(1024), row(label="<img src=x>")]
    for figure in drawings({"rows": rows, "about": {}}):
        assert "<img" not in json.loads(figure.to_json()).__str__()


def test_settings_of_one_variant_share_its_colour_and_differ_by_symbol():
    rows = [row(label="q1", config={"query_topk": 1}), row(label="q4", config={"query_topk": 4}), dense(1024)]
    assert sorted(turns({"rows": rows}).values()) == [0, 0, 1]
    figure = frontier({"rows": rows, "about": {}}, 1024, "pairs")
    first, second = named(figure, "q1").marker, named(figure, "q4").marker
    assert first.color == second.color == colour("focus")
    assert first.symbol != second.symbol


def test_layers_by_heads_shares_a_scale_and_diverges_around_zero():
    shares = np.array([[0.1, 0.5, 0.9], [0.2, 0.3, 0.4]])
    shown = layers_by_heads(shares, "Pairs kept", scale=(0, 1), picked=(1, None))
    heat = shown.data[0]
    assert (heat.zmin, heat.zmax) == (0, 100)
    assert heat.text[0][2] == "90.0 %"
    assert (shown.layout.shapes[0].x0, shown.layout.shapes[0].x1) == (-0.5, 2.5)
    change = layers_by_heads(shares - 0.5, "Change", difference=True).data[0]
    assert change.zmin == -change.zmax == pytest.approx(-40)
    assert change.text[0][2] == "+40.0 %"


def test_a_trace_that_has_not_recorded_it_says_so():
    trace = Trace({}, "", [], {"kept_pairs": np.full((2, 3), 0.25, np.float32)})
    assert of_trace(trace, "kept_pairs").data[0].z.shape == (2, 3)
    assert of_trace(trace, "mass_kept").layout.annotations[0].text == "This run did not record it."
