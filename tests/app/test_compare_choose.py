"""The tab Choose of the Compare page, and the presets of the tab Measure."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from app.ui.compare import support
from app.ui.view import Page
from focus_core import assets
from focus_core.models.quick import facts_from_values, quick_facts
from tests.analysis.test_records import EVALUATION
from tests.app import fake_compare
from tests.app.opening import compare, engine, open_compare, said
from tests.app.test_compare import figure, run
from tests.comparisons import comparison


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Open the page with the fake engine and the recorded results of a folder."""
    (tmp_path / "compare-smollm2-cpu.json").write_text(json.dumps(comparison()))
    (tmp_path / "eval-window.json").write_text(json.dumps(EVALUATION))
    with compare(monkeypatch, tmp_path) as open_page:
        yield open_page


def lines(at: AppTest):
    """The ranked table."""
    return next(d.value for d in at.dataframe if "Needs" in d.value.columns)


def test_a_context_that_the_model_cannot_read_is_said_with_the_nearest_that_it_can(start):
    at = start(model="gpt2-novels")
    assert "at 4,096 tokens as asked: the model reads at most 1,024 tokens." in said(at)
    assert at.button(key="compare_nearest").label == "Take 1,024 tokens"
    at.button(key="compare_nearest").click().run()
    assert at.session_state["compare_context"] == 1024
    assert "Nothing runs" not in said(at)
    assert not [b for b in at.button if b.key == "compare_nearest"]


def test_the_page_opens_on_what_to_choose_ranked_by_what_was_recorded(start):
    at = start()
    assert at.session_state["compare_view"] == "Choose"
    words = said(at)
    assert "For SmolLM2-135M-Instruct at 4,096 tokens, window 128 + 4 is the fastest whole model: 2.08×" in words
    assert "what was not measured has no rank" in words
    assert "the text is read by Measure alone" in words
    table = lines(at).set_index("Variant")
    assert table.loc["window 128 + 4", "Rank"] == "1"
    assert table.loc["window 128 + 4", "Speed measured"] == "2,048 tokens, a laptop's CPU, 2026-11-29"
    # The nearest length that was timed is named; its perplexity was read on another text than most.
    assert table.loc["window 128 + 4", "Speed"] == "2.08× (1.89× to 2.19×) at 2,048 tokens"
    assert table.loc["window 128 + 4", "Perplexity"] == "not measured"
    assert table.loc["Performer", "Speed"] == "not measured"
    assert table.loc["Performer", "Pairs kept"] == "computes none"
    # A recorded setting that ships with no line is a line by being recorded.
    assert table.loc["window 1024 + 4", "Perplexity"] == "+2.02 %"
    assert table.loc["Focus K=16 q4k1", "Training"] == "ships"
    assert "needs an adapter of kind kmeans" in table.loc["k-means", "Runs here"]
    assert not [b for b in at.button if b.key == "compare_run"]
    assert figure(at, "compare_bytes")["layout"]["barmode"] == "stack"
    assert at.button(key="compare_take").disabled


def test_the_controls_rank_anew_stand_in_the_link_and_grey_what_does_not_fit(start):
    at = start()
    at.segmented_control(key="compare_rank").set_value("quality").run()
    assert "nothing recorded predicts better than dense" in said(at)
    at.selectbox(key="compare_batch").set_value(64).run()
    at.selectbox(key="compare_card").set_value(4).run()
    at.selectbox(key="compare_numbers").set_value("bfloat16").run()
    assert "needs 7.11 GB, and the card has 4.00 GB" in set(lines(at)["Runs here"])
    assert "Nothing runs SmolLM2-135M-Instruct at 4,096 tokens as asked: needs 7.11 GB, and the card has" in said(at)
    link = dict(at.query_params)
    assert {k: link[k] for k in ("compare_rank", "compare_batch", "compare_card")} == {
        "compare_rank": "quality",
        "compare_batch": "64",
        "compare_card": "4",
    }
    assert "compare_view" not in link
    again = open_compare(**link)
    assert again.selectbox(key="compare_batch").value == 64
    assert "needs 7.11 GB" in str(set(lines(again)["Runs here"]))
    again.button(key="compare_nearest").click().run()
    assert "Nothing runs" not in said(again)
    again.button(key="compare_choose_try").click().run()
    assert again.selectbox(key="compare_card").value == 24
    assert "needs least" in said(again)


def test_what_is_ticked_is_measured(start, monkeypatch):
    from app.ui.compare import choose

    at = start()
    # The test runner ticks no lines of a table: the browser test does.
    with monkeypatch.context() as patched:
        patched.setattr(choose.st, "session_state", at.session_state)
        choose._measure(["window", "performer"])
    at.run()
    assert at.multiselect(key="compare_lines").value == ["window", "performer"]
    assert at.query_params["compare_view"] == "Measure"


@pytest.mark.parametrize("query", [{"compare_lengths": "256"}, {"compare_tab": "Memory"}, {"compare_by": "pairs"}])
def test_a_link_of_the_measurement_opens_it(start, query):
    assert start(**query).button(key="compare_run")


def test_the_same_pairs_are_searched_first_and_then_compared(start):
    at = start(compare_view="Measure")
    at.selectbox(key="compare_same").set_value("pairs").run()
    assert at.button(key="compare_run").disabled
    assert "Find the settings first." in said(at)
    at.button(key="match_run").click().run()
    request = next(r for k, r in engine().submitted if k == "match")
    assert (request["quantity"], request["length"], request["windows"]) == ("pairs", 1024, 1)
    assert request["target"]["entry"] == request["entries"][0]
    words = said(at)
    assert "random K=16 q1k1 cannot be matched and is left out: by window it reaches 40.0 % to 100 %." in words
    assert "slim was left out: It needs one KV head a query head." in words
    found = next(d.value for d in at.dataframe if "Verdict" in d.value.columns).set_index("Variant")
    assert found.loc["window 297 + 4", "Verdict"] == "matched"
    assert found.loc["Focus K=16 q4k1", "How known"] == "as it is"
    run(at)
    asked = next(r for k, r in engine().submitted if k == "compare")
    assert [e["label"] for e in asked["entries"]] == [
        "Focus K=16 q4k1",
        "Focus K=16 q1k1 window 297",
        "window 297 + 4",
    ]
    assert asked["entries"][2]["config"]["window"] == 297
    # Whoever opens the link has the same settings, found before.
    again = open_compare(**dict(at.query_params))
    assert not [b for b in again.button if b.key == "match_run"]
    assert again.button(key="compare_run").label.startswith("Run again")


def test_a_number_can_be_matched_and_a_search_that_runs_shows_what_it_has(start, monkeypatch):
    monkeypatch.setenv("FAKE_SECONDS", "60")
    at = start(compare_same="cache", compare_like="number", compare_asked="30")
    assert at.number_input(key="compare_asked").value == 30.0
    at.button(key="match_run").click().run()
    request = next(r for k, r in engine().submitted if k == "match")
    assert request["target"] == {"value": 30_000.0}
    assert len(next(d.value for d in at.dataframe if "Verdict" in d.value.columns)) == 1
    job = next(j for j in engine().jobs.values() if j.kind == "match")
    engine().cancel(job.id)
    at.run()
    assert "The search was cancelled. 1 row was measured and kept." in said(at)
    assert at.button(key="match_run")


def test_lora_stands_beside_dense_and_with_what_it_was_trained_through(start, monkeypatch):
    entry = {
        "path": assets.DATA / "lora-r4",
        "config": {"kind": "lora", "config": {"rank": 4, "through": "window"}, "serve": {"window": 64, "sinks": 4}},
    }
    start()
    monkeypatch.setattr(assets, "adapters", lambda: {**fake_compare.shipped(), "lora-r4": entry})
    run(open_compare(compare_lines="dense.lora-r4,window.lora-r4"))
    asked = next(r for k, r in engine().submitted if k == "compare")
    assert [(e["variant"], e["adapter"], e["label"]) for e in asked["entries"]] == [
        ("dense", "lora-r4", "LoRA r=4 (lora-r4)"),
        ("window", "lora-r4", "window 64 + 4 + LoRA r=4 (lora-r4)"),
    ]


def test_facts_come_from_files_until_the_model_is_loaded(start, tmp_path):
    start()
    page = Page(engine(), "s", "smollm2")
    facts = support.facts_of(page)
    assert (facts.heads, facts.kv_heads, facts.rotary, facts.native) == (9, 3, 64, (None,) * 30)
    assert facts_from_values({**facts.__dict__, "later": 1}) == facts
    folder = tmp_path / "model"
    folder.mkdir()
    assert quick_facts(str(folder)) is None
    assert support.facts_of(Page(engine(), "s", str(folder))) is None
    assert support.refusal("performer", {}, facts) == ""
    from dataclasses import replace

    assert "soft cap of 30" in support.refusal("performer", {}, replace(facts, softcap=30.0))
