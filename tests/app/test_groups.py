from pathlib import Path

from streamlit.testing.v1 import AppTest

from analysis.agreement import BASELINES
from analysis.parts import KINDS
from focus_core import assets
from tests.app import fake
from tests.app.opening import engine, said

VIEW = "groups"


def keys(at: AppTest) -> list[str]:
    return [button.key for button in at.button]


def figures(at: AppTest) -> int:
    return len(at.get("plotly_chart"))


def test_the_first_sentence_has_the_numbers_and_what_they_are_held_against(start):
    text = said(start())
    assert "What did the groups learn?" in text
    assert "In layer 1, KV head 0" in text
    assert "V-measure 0." in text
    assert "words grouped at random: V-measure" in text
    assert "of its tagged tokens are" in text


def test_a_live_run_shows_axes_at_once_and_umap_when_asked(start):
    at = start()
    assert "PCA" in said(at)
    at.button(key="umap_now").click().run()
    kind, request = engine().submitted[-1]
    assert kind == "map"
    assert (request["layer"], request["router"]) == (1, 0)
    assert "UMAP" in said(at)
    assert "means nothing" in said(at)
    at.button(key="umap_turn").click().run()
    assert "true distances" in said(at)
    at.button(key="umap_turn").click().run()
    assert "means nothing" in said(at)


def test_a_map_in_the_making_can_be_stopped_and_the_page_stays(start):
    at = start()
    engine().seconds = 1000
    at.button(key="umap_now").click().run()
    assert "umap_job_stop" in keys(at)
    assert at.button(key="umap_waits").disabled
    at.button(key="umap_job_stop").click().run()
    at.run()
    assert "was cancelled" in said(at)
    assert "umap_now" in keys(at)


def test_a_link_selects_group_and_token_and_says_what_does_not_exist(start):
    at = start(group="C", tok="33", router="1", colour="part")
    text = said(at)
    assert "KV head 1" in text
    assert "(token 33) is in" in text
    assert "Tokens that are in C" in text
    assert "Tokens that look for C" in text
    assert not at.warning
    wrong = {"group": "Z", "router": "7", "colour": "plaid", "groups_tab": "Nowhere", "side": "sideways"}
    at = start(tok="99999", measure="luck", routers="some", **wrong)
    text = said(at)
    for value in (*wrong.values(), "99999", "luck", "some"):
        assert f"{value} does not exist" in text
    at.button(key="notices_ok").click().run()
    assert "does not exist" not in said(at)


def test_the_table_and_its_figures(start):
    at = start(groups_tab="Groups", group="B")
    assert figures(at) == 2
    table = at.dataframe[0].value
    assert list(table["group"]) == list("ABCDEFGHIJKLMNOP")
    assert table["name from its tokens"].str.contains(": ").all()
    assert table["tokens"].sum() > 1000
    assert set(table["purity is of"].dropna()) <= set(KINDS[:13])
    text = said(at)
    assert "times its fair share" in text
    assert "far pairs" in text
    assert "Tokens that are in B" in text
    before = list(table["tokens"])
    at.segmented_control(key="side").set_value("queries").run()
    assert list(at.dataframe[0].value["tokens"]) != before


def test_grammar_is_tested_and_the_verdict_holds_for_groups_made_of_word_endings(start):
    at = start(groups_tab="Is it grammar?")
    text = said(at)
    assert "more often than words grouped at random in none of 4 layers" in text
    assert "so context need play no part" in text
    assert "A word's tag goes to its first piece" in text
    assert "tagger" in text
    assert figures(at) == 1
    assert list(at.dataframe[0].value.iloc[:, 0]) == ["Learned groups", *BASELINES.values()]
    at.toggle(key="pieces").set_value(True).run()
    assert "all its pieces" in said(at)
    at.selectbox(key="measure").select("purity").run()
    assert "Purity" in said(at)
    at.segmented_control(key="side").set_value("queries").run()
    assert "“What they look for” puts words of one part of speech together" in said(at)
    assert "k-means is left out here" in said(at)
    assert "kmeans_now" not in keys(at)


def test_a_kmeans_line_is_added_by_a_run_and_the_verdict_weighs_it(start, monkeypatch):
    serve = {"groups": 16, "query_topk": 1, "key_topk": 1, "window": 128, "sinks": 4}
    clusters = {"clusters": {"path": Path("clusters"), "config": {"kind": "kmeans", "serve": serve}}}
    monkeypatch.setattr(assets, "adapters", lambda: fake.shipped() | clusters)
    at = start(groups_tab="Is it grammar?")
    assert len(at.dataframe[0].value) == 5
    at.button(key="kmeans_now").click().run()
    _, request = engine().submitted[-1]
    assert (request["variant"], request["adapter"], request["config"]) == ("kmeans", "clusters", serve)
    assert len(at.dataframe[0].value) == 6
    assert "ntrained k-means" in said(at)
    assert "kmeans_now" not in keys(at)
    assert "; untrained k-means agrees " in said(at)


def test_gold_tags_are_said_where_the_text_has_them(start):
    at = start(text="brown news opening", groups_tab="Is it grammar?")
    at.button(key="run_now").click().run()
    assert "gold tags" in said(at)
    assert "made by people" in said(at)


def test_edits_are_listed_run_and_held_against_the_run_without_them(start):
    at = start(groups_tab="Edit", tok="40")
    assert at.number_input(key="edit_token").value == 40
    at.selectbox(key="edit_to").select_index(2).run()
    at.button(key="edit_add_move").click().run()
    at.button(key="edit_add_merge").click().run()
    assert "2 edits" in said(at)
    at.button(key="edit_undo").click().run()
    assert "1 edit" in said(at)
    at.button(key="edit_add_merge").click().run()
    at.button(key="edit_run").click().run()
    kind, request = engine().submitted[-1]
    assert kind == "trace"
    assert [set(edit) for edit in request["edits"]] == [
        {"layer", "router", "token", "to"},
        {"layer", "router", "merge"},
    ]
    assert request["edits"][0]["token"] == 39
    text = said(at)
    assert "Changed most" in text
    assert "tokens are predicted differently" in text
    assert "The mask of layer 1" in text
    assert "of all pairs are kept before and after" in text
    assert figures(at) == 1
    metrics = {m.label: m.value for m in at.metric}
    assert metrics["Pairs kept in layer 1"].endswith("%")
    assert int(metrics["Tokens changed"].replace(",", "")) > 50
    at.button(key="edit_clear").click().run()
    assert "What would the model do with other groups?" in said(at)


def test_the_thing_to_try_in_edit_merges_the_two_largest(start):
    at = start(groups_tab="Edit")
    at.button(key="edit_try").click().run()
    assert "merge" in said(at)
    assert "edit_run" in keys(at)


def test_without_groups_the_page_says_so_and_offers_what_gives_some(start):
    for tab in ("Map", "Groups", "Is it grammar?", "Edit"):
        at = start(variant="dense", groups_tab=tab)
        at.button(key="run_now").click().run()
        text = said(at)
        assert "There are no groups here yet" in text
        assert "Dense attention does not sort tokens" in text
        assert figures(at) == 0
        assert {"way_focus", "way_kmeans"} <= set(keys(at))
    at.button(key="way_focus").click().run()
    assert at.sidebar.selectbox(key="variant").value == "focus"


def test_own_text_in_another_script_works_everywhere(start):
    for tab in ("Map", "Groups", "Is it grammar?", "Edit"):
        at = start(text="own", groups_tab=tab)
        at.sidebar.text_area(key="own_text").input(
            "모든 토큰이 다른 모든 토큰을 보아야 할까요? <b>x</b> 🙂\n" * 8
        ).run()
        at.button(key="run_now").click().run()
        assert "In layer 1" in said(at)
        assert not at.error


def test_a_changed_selection_says_so_and_offers_the_run(start):
    at = start(groups_tab="Edit")
    at.sidebar.selectbox(key="text").select("brown news opening").run()
    assert "has not run yet" in said(at)
    assert "Run the selection first" in said(at)
    assert "run_now" in keys(at)


def test_try_selects_the_purest_group_in_the_map(start):
    at = start(groups_tab="Groups")
    at.button(key="try_groups").click().run()
    assert at.session_state["groups_tab"] == "Map"
    assert "Tokens that are in" in said(at)
