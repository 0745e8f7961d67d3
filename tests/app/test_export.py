"""Files of what is drawn: pages that load nothing, tables, and the report of a run."""

import json
import re
import shlex

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from plotly.subplots import make_subplots

from analysis import captions, report
from analysis.cache_cross import failure_figure
from analysis.tables import figure_rows, token_rows
from app.ui import export, save
from app.ui.report import page_of
from app.ui.strip import part
from app.ui.strip.data import strip_data
from focus_core.errors import InvalidInput
from tests.app.opening import app
from tests.app.synthetic import make_trace

TEXT = "The town slept <b>under</b> snow & ice; “nobody” spoke. " * 60
_LOADS = re.compile(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|url\(["']?(?:https?:)?//""")


@pytest.fixture
def trace():
    return make_trace(TEXT)


def own(page: str) -> str:
    """A page without plotly.js, which names addresses that it does not load."""
    return re.sub(r"<script[^>]*>/\*\*\s*\n?\* plotly\.js.*?</script>", "", page, flags=re.S)


def figure():
    made = go.Figure()
    made.add_scatter(x=[1, 2], y=[3.0, 4.0], name="line", error_y={"array": [0.1, 0.2]})
    made.add_heatmap(z=[[1, 2], [3, None]], x=["a", "b"], name="map")
    return made


def test_a_figures_table_has_a_row_a_point_and_a_row_a_cell():
    table = figure_rows(figure())
    assert list(table["series"]) == ["line"] * 2 + ["map"] * 4
    assert table[table["series"] == "map"][["x", "y", "value"]].values.tolist()[1] == ["b", 0, 2]
    assert list(table["y, error above"])[:2] == [0.1, 0.2]
    assert figure_rows(go.Figure()).empty


def test_a_figures_columns_are_named_as_its_axes_are_and_its_panels_too():
    panels = make_subplots(rows=1, cols=2, shared_yaxes=True, subplot_titles=["one", "two"])
    for column in (1, 2):
        panels.add_scatter(x=[0], y=[column], name="a", row=1, col=column)
    panels.add_scatter(x=[None], y=[None], name="for the legend", row=1, col=1)
    panels.update_xaxes(title="step")
    panels.update_yaxes(title="share", row=1, col=1)
    table = figure_rows(panels)
    assert table.to_dict("list") == {"series": ["a"] * 2, "panel": ["one", "two"], "step": [0, 0], "share": [1, 2]}


def test_settings_are_said_in_words_and_only_those_that_matter():
    config = {"groups": 16, "query_topk": 4, "window": 1024, "backend": "auto", "gate": "hard", "temperature": 0.1}
    assert captions.settings(config) == "16 groups, a query looks into 4, nearest 1,024 tokens"
    soft = captions.settings({"backend": "reference", "gate": "soft", "temperature": 0.1})
    assert soft == "backend reference, gate soft, temperature 0.1"
    assert captions.settings({}) == captions.settings(None) == "no settings"


def test_the_line_under_a_page_has_model_text_variant_layer_and_date(trace):
    p = trace.provenance
    said = captions.what_ran(trace, 1)
    assert said.startswith(f"{p['model']} · ")
    assert f"{len(trace):,} tokens · {p['variant']}: " in said
    assert "· layer 1" in said
    assert "layer" not in captions.what_ran(trace)


def test_a_figures_page_gives_plotlys_buttons_a_strip_of_their_own_and_says_what_ran():
    made = figure()
    made.update_layout(margin={"t": 40}, height=300)
    page = export.figure_page(made, "t", note="a model <1>")
    assert "<footer>a model &lt;1&gt;</footer>" in page
    assert '"margin":{"t":74}' in page
    assert '"height":334' in page
    assert made.layout.height == 300


def test_an_axis_of_two_levels_and_lists_are_words_in_a_table():
    table = figure_rows(failure_figure())
    assert list(table["x"][:4]) == ["tiny, fp32", "tiny, fp16", "tiny, bf16", "base, fp32"]
    assert export.csv(pd.DataFrame({"a": [["live", "partial"], []], "b": [1, 2]})) == 'a,b\n"live, partial",1\n,2\n'


def test_rows_of_ones_own_win_and_are_made_only_when_asked_for():
    asked = []

    def rows():
        asked.append(1)
        return pd.DataFrame({"a": [1]})

    makers = export.figure_makers(figure(), "f", rows)
    assert asked == []
    assert makers["csv"](False) == "a\n1\n"
    assert asked == [1]


@pytest.mark.parametrize("dark", [False, True])
def test_a_figures_page_holds_its_script_font_and_theme_and_loads_nothing(dark):
    page = export.figure_page(figure(), "Ti<tle", dark=dark)
    assert "Ti&lt;tle" in page
    assert "@font-face" in page
    assert "Plotly.newPlot" in page
    assert export.THEMES["dark" if dark else "light"]["background"] in page
    assert not _LOADS.search(own(page))
    assert len(page) < 6e6


def test_the_strips_page_holds_its_data_and_no_token_can_end_its_script(trace):
    data = strip_data(trace, 1)
    page = export.document("x", part(data))
    assert not _LOADS.search(page)
    inside = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S).group(1)
    assert "<" not in inside
    assert json.loads(inside)["cells"] == data["cells"]
    assert "export default" not in page


def test_a_tokens_table_has_groups_and_likelihoods(trace):
    table = token_rows(trace, 1, 2)
    assert len(table) == len(trace)
    assert list(table["token"]) == trace.tokens
    assert np.isnan(table["nll"].iloc[0])
    assert table["nll"].iloc[1] == trace.arrays["nll"][0]
    assert set(table["groups"]) <= set("ABCDEFGHIJKLMNOP")


def test_the_report_says_what_ran_how_to_repeat_it_and_shows_everything_in_one_file(trace):
    page = page_of(trace, 1)
    assert len(page.encode()) < 6e6
    assert not _LOADS.search(own(page))
    for said in ("What ran", "Pairs computed", "Dense attention kept", "Perplexity against dense", "Tokens that paid"):
        assert said in page
    assert "--set window=64" in page
    assert "&lt;b&gt;" in page or "<b>under" not in own(page)
    assert "Plotly" not in page
    order = [
        page.index(f"<h2>{title}") for title in ("The mask, layer 1", "Every layer", "What ran", "The text, layer")
    ]
    assert order == sorted(order)
    for place in ("mask", "heads", "strip"):
        assert page.count(f'id="{place}-data"') == 1
    assert "backend auto" not in page


def test_the_command_of_a_run_is_one_that_the_command_line_takes(trace):
    from focus_core.cli import parser

    words = shlex.split(report.command(trace))
    assert words[:3] == ["python", "-m", "focus_core"]
    assert parser().parse_args(words[3:]).variant == "focus"


def test_worst_tokens_are_the_worst_first(trace):
    change = trace.arrays["dense_nll"] - trace.arrays["nll"]
    rows = report.worst_tokens(trace, 0, count=5)
    assert rows[0]["Place"] == f"{int(np.argmin(change)) + 2:,}"
    assert len(rows) == 5


def test_what_cannot_be_made_is_a_sentence():
    def fails(dark):
        raise InvalidInput("There is nothing.", "Run it.")

    def breaks(dark):
        raise KeyError("x")

    assert save.made("csv", fails, False) == {"error": "There is nothing. Run it."}
    assert save.made("html", breaks, False) == {"error": "The file could not be made (KeyError)."}


def test_file_names_are_plain():
    assert save.file_name("“Emma”, Focus/K=16: layer 3") == "emma-focus-k-16-layer-3"
    assert save.file_name("…") == "figure"


def test_the_sidebar_offers_the_run_as_files(monkeypatch):
    with app(monkeypatch) as start:
        at = start()
        labels = [element.proto.label for element in at.get("download_button")]
        assert any(label.startswith("Trace file (") for label in labels)
        assert "Report (one HTML file)" in labels
