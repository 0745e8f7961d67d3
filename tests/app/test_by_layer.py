"""The tab By layer: recorded interpretations, which need no model and no torch."""

from __future__ import annotations

import numpy as np
import pytest

from analysis import by_layer as words
from analysis.by_layer_figures import looks_heatmap, measures_by_layer
from app.ui.groups.by_layer import recordings
from focus_core import assets
from focus_core.interpret.summary import LEAST_SHARE, group_rows
from focus_core.jobs.files import read_json
from tests.app.opening import said

VIEW = "groups"
FOLDER = assets.DATA / "results"
NAMES = sorted(p.name for p in FOLDER.glob("interpret-*.json.gz"))


@pytest.fixture(scope="module", params=NAMES)
def document(request):
    return read_json(FOLDER / request.param)


def test_three_ship_and_are_small():
    assert len(NAMES) == 3
    assert all((FOLDER / name).stat().st_size < 61_440 for name in NAMES)
    assert next(iter(recordings())) == "directed-k16"


def test_a_recording_is_whole_and_its_summary_is_that_of_its_layers(document):
    found, layers = document["summary"], document["layers"]
    assert document["command"].startswith("python -m focus_core interpret")
    assert document["gold"]
    groups = document["config"]["groups"]
    for side in words.sides(document):
        value = np.mean([entry[side]["groups"]["v_measure"][0] for entry in layers])
        assert found[side]["mean"]["groups"]["v_measure"] == pytest.approx(value, abs=1e-3)
        rows = [row for row in group_rows(document) if row["side"] == side]
        assert len(rows) == len(layers) * words.routers(document) * groups == found[side]["groups"]
        assert sum(found[side]["about"].values()) == len(rows)
        assert found[side]["pure_90"] == sum(
            (row["purity"] or 0) >= 0.9 and row["share"] >= LEAST_SHARE for row in rows
        )
        above = sum(entry[side]["gain"]["frequency"]["v_measure"][1] > 0 for entry in layers)
        assert found[side]["layers_above"]["frequency"] == above
        for entry in layers:
            assert entry[side]["shuffled"]["v_measure"][0] < entry[side]["matched"]["v_measure"][0]
            low, high = entry[side]["groups"]["v_measure"][1:]
            assert low <= entry[side]["groups"]["v_measure"][0] <= high


def test_the_sentences_have_the_numbers(document):
    mean = document["summary"]["keys"]["mean"]
    text = words.answer(document)
    assert f"{mean['groups']['v_measure']:.2f}, mean over layers" in text
    assert f"one random group a word {mean['frequency']['v_measure']:.2f}" in text
    assert f"{document['summary']['keys']['groups']:,} groups" in words.about(document)
    for layer in (None, 0):
        tags, _, lift = words.looks(document, layer)
        assert f"{lift.max():.2f} times" in words.looks_answer(document, layer)
        assert tags[int(np.unravel_index(lift.argmax(), lift.shape)[1])] in words.looks_answer(document, layer)
    frame = words.stability_frame(document)
    assert frame["adjusted Rand index"].between(-0.1, 1).all()
    assert ("another seed" in frame["compared with"].iloc[0]) == (
        "another seed, other" in words.stability_answer(document)
    )


def test_the_figures_draw_every_line_and_every_pair(document):
    for measure in words.MEASURES:
        figure = measures_by_layer(document, "keys", measure)
        shown = {trace.name for trace in figure.data if trace.showlegend is not False}
        assert {"Learned groups", "Shuffled", "Lookup by word", "Shuffled, like frequency"} <= shown
        learned = next(trace for trace in figure.data if trace.name == "Learned groups")
        assert list(learned.y) == [entry["keys"]["groups"][measure][0] for entry in document["layers"]]
    (cells,) = looks_heatmap(document, None).data
    assert np.array(cells.z).shape == (len(document["tags"]),) * 2
    assert cells.zmin == -cells.zmax
    assert np.abs(cells.z).max() <= cells.zmax


def test_the_tab_shows_measures_groups_and_what_is_looked_for_and_a_wrong_link_is_said(start):
    at = start(groups_tab="By layer", interpreted="nobodys", interpreted_measure="luck")
    assert not at.exception
    text = said(at)
    assert "nobodys does not exist" in text
    assert "luck does not exist" in text
    for shown in ("V-measure with parts of speech", "one random group a word", "recorded", "gold tags"):
        assert shown in text
    assert "What is each group about?" in text
    assert "What do they look for?" in text
    assert len(at.get("plotly_chart")) == 2
    table = at.dataframe[0].value
    assert list(table["group"]) == list("ABCDEFGHIJKLMNOP")
    assert "looked for by" in table
    before = list(table["namely"])
    assert not at.selectbox(key="interpreted").proto.label_visibility.value
    at.selectbox(key="interpreted_layer").select(9).run()
    assert list(at.dataframe[0].value["namely"]) != before
    at.selectbox(key="interpreted").select("shared-k8").run()
    assert list(at.dataframe[0].value["group"]) == list("ABCDEFGH")
    assert "Which kinds are put together?" in said(at)


def test_the_address_opens_the_layer_and_head_and_says_which_do_not_exist(start):
    at = start(groups_tab="By layer", interpreted_layer="9", interpreted_head="2", interpreted_looks="Layer 5")
    found = [at.selectbox(key=f"interpreted_{name}").value for name in ("layer", "head", "looks")]
    assert not at.exception
    assert found == [9, 2, 5]
    at = start(groups_tab="By layer", interpreted_layer="99")
    assert not at.exception
    assert "layer of the groups 99 does not exist" in said(at)
