"""A run whose heads look into different numbers of groups is not told to look into one number."""

from types import SimpleNamespace

from analysis import looks
from analysis.captions import settings
from analysis.looks_figure import looks_by_head
from app.ui.compare.support import adapter_bytes
from app.ui.comparisons import line, short
from focus_core.assets import adapters

NAME, PLAIN = "smollm2-directed-k16-fifth", "smollm2-directed-k16"
SERVE = adapters()[NAME]["config"]["serve"]


def test_the_table_is_told_where_it_was_used():
    table = looks.table_of(NAME, SERVE)
    assert len(table) == 30
    assert looks.span(table) == "0–8"
    assert round(looks.mean(table)) == SERVE["query_topk"]
    assert looks.words(table) in settings({**SERVE, "looks": "adapter"}, NAME)
    assert short("focus", SERVE, NAME) == f"Focus K=16 q0–8k1 ({NAME})"
    # The adapter that is selected is not named on its line; its table is told all the same.
    for selected, label in ((NAME, "Focus K=16 q0–8k1"), (PLAIN, f"Focus K=16 q0–8k1 ({NAME})")):
        assert line(SimpleNamespace(adapter=selected), "focus", SERVE, NAME)["label"] == label


def test_one_number_for_all_is_told_where_it_was_used():
    for config, name in (
        ({**SERVE, "query_topk": 3}, NAME),
        ({**SERVE, "looks": "uniform"}, NAME),
        (SERVE, PLAIN),
        (SERVE, None),
        (SERVE, "one that was deleted"),
    ):
        assert looks.table_of(name, config) is None
        assert f"a query looks into {config['query_topk']}," in settings(config, name)
    assert "looks adapter" not in settings({**SERVE, "looks": "adapter"})
    assert looks.span([[2, 2], [2, 2]]) == "2"


def test_an_adapter_without_weights_of_its_own_is_as_large_as_those_that_it_reads():
    assert adapter_bytes(NAME) == adapter_bytes(PLAIN) > 1_000_000


def test_the_heatmap_has_a_row_a_head_and_outlines_the_picked_one():
    figure = looks_by_head([[0, 2], [4, 8], [1, 1]], (1, 0))
    assert [list(row) for row in figure.data[0].z] == [[0, 4, 1], [2, 8, 1]]
    (shape,) = figure.layout.shapes
    assert (shape.x0, shape.x1, shape.y0, shape.y1) == (0.5, 1.5, -0.5, 0.5)
    assert not looks_by_head([[3]]).layout.shapes
