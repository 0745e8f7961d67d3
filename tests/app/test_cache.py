"""The KV cache page with the synthetic engine."""

import json
import shutil

import pytest
from streamlit.testing.v1 import AppTest

from analysis import cache_orders as orders
from app.ui import selection
from app.ui.cache import lines
from focus_core import assets
from focus_core.errors import TooLarge
from tests.app import fake, fake_cache
from tests.app.opening import MAIN, engine, said

RESULTS = assets.DATA / "results"
SFA8 = {"variant": "sfa", "config": {"features": 8}, "adapter": None}


def page():
    from app.ui import sidebar
    from app.ui.guard import guarded
    from app.views.cache import VIEW

    guarded(lambda: VIEW.render(sidebar.select(VIEW)))


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Open the page with the fake engine and an empty folder of recorded results."""
    import streamlit as st

    monkeypatch.setenv("FOCUS_LAB_ENGINE", "tests.app.fake_cache:make")
    monkeypatch.setenv(fake.SECONDS, "0")
    monkeypatch.setattr(assets, "adapters", dict)
    monkeypatch.setattr(selection, "traces_folder", selection.traces_folder)
    monkeypatch.setattr("app.ui.recorded.results_folder", lambda: tmp_path)

    def open_page(**query: str) -> AppTest:
        st.cache_resource.clear()
        st.cache_data.clear()
        at = AppTest.from_function(page, default_timeout=60)
        for name, value in query.items():
            at.query_params[name] = value
        return at.run()

    yield open_page
    st.cache_resource.clear()
    st.cache_data.clear()


def figure(at: AppTest, key: str) -> dict:
    return json.loads(next(c for c in at.get("plotly_chart") if key in c.proto.id).proto.spec)


def frame(at: AppTest):
    return next(d.value for d in at.dataframe if "Badges" in d.value)


def test_before_a_run_it_asks_and_offers_one_with_its_cost(start):
    at = start()
    assert at.title[0].value == "What must be remembered, and is it exact?"
    assert "Measure the caches of a model" in said(at)
    assert figure(at, "cache_bars")["layout"]["annotations"][0]["text"].startswith("Nothing measured yet")
    assert at.button(key="cache_run_button").label.startswith("Run")
    assert "About 1.0 s" in said(at)


def test_a_run_answers_in_numbers_names_what_is_refused_and_stands_in_the_link(start):
    at = start(cache_lines="sfa.features-8,nothing")
    assert "In the link, measured cache nothing does not exist; it is left out." in said(at)
    assert at.session_state["cache_lines"] == ["sfa.features-8"]
    at.button(key="cache_run_button").click().run()
    words = said(at)
    assert (
        "Dense attention remembers 6.14 kB a token in float32, a third of what a key for every query head would take."
        in words
    )
    assert (
        "SFA, 8 features, keeps 3.55 kB (57.8 %) and is off by 50.0 % at most; it says dense's next token 50.0 % of"
        in words
    )
    assert "Twice does not apply: its heads are <b>odd</b>." in words
    _, request = next(r for r in engine().submitted if r[0] == "cache")
    assert request["entries"] == [{**SFA8, "label": "SFA, 8 features"}]
    assert (request["prompt"], request["text"]) == (256, None)
    names = [bar["y"][0] for bar in figure(at, "cache_bars")["data"] if bar["x"] != [None]]
    assert names == ["with a key for every query head", "dense, as the model is (GQA)", "SFA, 8 features"]
    table = frame(at)
    assert list(table["Error, float32"]) == ["0 %, exact", "50.0 %, approximate"]
    assert at.query_params["cache_run"]
    assert at.button(key="cache_run_button").label.startswith("Measure again")
    at.button(key="cache_run_button").click().run()
    assert [r["again"] for k, r in engine().submitted if k == "cache" and "again" in r] == [1]


def test_a_running_job_shows_the_rows_that_have_come_and_stops(start, monkeypatch):
    monkeypatch.setenv(fake.SECONDS, "60")
    at = start(cache_lines="sfa.features-8,sfa")
    at.button(key="cache_run_button").click().run()
    assert "partial" in list(frame(at)["Badges"][1])
    at.button(key="cache_job_stop").click().run()
    at.run()
    assert "The measurement was cancelled. 2 rows were measured and kept." in said(at)
    assert at.button(key="cache_run_button").label.startswith("Run")


def test_what_does_not_fit_is_a_sentence_with_a_button_that_works(start):
    at = start(cache_prompt="2048")
    assert "The text has 1,142 tokens and 2,080 were asked for." in said(at)
    at.button(key="cache_way_short").click().run()
    assert at.session_state["cache_prompt"] == 1024
    assert at.button(key="cache_run_button").label.startswith("Run")


def test_a_text_too_short_for_any_prompt_is_offered_another_text(start, monkeypatch):
    def refused(self, kind, request):
        raise TooLarge("The text has about 10 tokens and 96 were asked for.", "Take a longer text.")

    monkeypatch.setattr(fake_cache.CacheEngine, "estimate", refused)
    at = start(text="Your own text …")
    at.text_area(key="own_text").set_value("The cat sat on the mat.").run()
    assert "Take a longer text." in said(at)
    assert not [b for b in at.button if b.key == "cache_way_short"]
    at.button(key="cache_way_text").click().run()
    assert at.selectbox(key="text").value != "own"


def test_what_the_model_cannot_have_is_not_preselected_and_a_button_shows_it_where_it_is_exact(start, tmp_path):
    for model in ("gpt2-novels", "smollm2"):
        shutil.copy(RESULTS / f"cache-{model}-cpu.json", tmp_path)
    at = start()
    assert not [name for name in at.session_state["cache_lines"] if name.startswith("slim")]
    assert "sfa" in at.session_state["cache_lines"]
    assert said(at).count("Slim, K-cache does not apply: its 9 query heads share 3 key heads (GQA)") == 1
    button = at.button(key="cache_see_Slim, K-cache")
    assert (button.label, button.help) == (
        "See it in GPT-2 novels",
        "There it keeps 4.61 kB a token, exact to rounding.",
    )
    at = button.click().run()
    words = said(at)
    assert "-cache, keeps 4.61 kB (50.0 %) and is exact to rounding" in words
    assert "Slim, K-cache" in list(frame(at)["Variant"])
    assert "does not apply" not in words
    assert "slim" in at.session_state["cache_lines"]


def record(folder, **changes):
    request = {"model": "gpt2-novels", "prompt": 256, "decoded": 32, "text_name": "persuasion opening"}
    result = fake_cache.result_of({**request, "entries": [{**SFA8, "label": "SFA, 8 features"}]})
    result["rows"].append(
        fake_cache.row({"variant": "xattention", "config": {}, "adapter": None, "label": "odd"}, None)
    )
    result["about"] |= {"command": "python -m data.build.cache gpt2-novels", **changes}
    result["rows"][1]["layer_report"] = [{"layer": n, "form": "k"} for n in range(4)]
    (folder / "cache-gpt2-novels-cpu.json").write_text(json.dumps(result))


def test_a_recorded_measurement_is_there_at_once_and_every_tab_draws(start, tmp_path):
    record(tmp_path)
    at = start()
    assert "Shown is GPT-2 novels" in said(at)
    assert "overflows, approximate" in list(frame(at)["Error, float16"])
    assert figure(at, "cache_map")["data"][0]["y"][0] == "dense"
    assert "SFA, 8 features is approximate in float32, approximate in bfloat16, approximate in float16." in said(at)
    gate = next(d.value for d in at.dataframe if "Kept here" in d.value)
    assert list(gate.iloc[0][["Error, K-cache", "Error, X-cache", "Error, V-cache"]]) == ["50.0 % ✕", "0.100 % ✓", "–"]
    assert (gate["Kept here"][0], gate["The gate would keep"][0]) == ("K-cache", "X-cache")
    at = start(cache_tab="Two orders")
    assert "Order 2 never loses to dense here" in said(at)
    one = said(at)
    at.segmented_control(key="cache_batch").set_value(256).run()
    assert orders.sentence(3072, 32, 256, orders.CARDS["H200, int8"]) in said(at)
    assert said(at) != one
    at.segmented_control(key="cache_batch").set_value(1).run()
    at.selectbox(key="cache_chip").select("Another").run()
    assert "Order 2 loses to dense from" in said(at)
    at = start(cache_tab="Latent")
    assert "Each layer keeps 576 numbers a token" in said(at)
    at = start(cache_tab="Encoder-decoders")
    assert "Not measured by this project" in said(at)
    at = start(cache_tab="What a card holds")
    assert "Beside 7.60 GB of weights 16.4 GB are left: one sequence of 41,707 tokens" in said(at)
    at.selectbox(key="cache_card_format").select("fp8").run()
    assert "Beside 3.80 GB of weights 20.2 GB are left" in said(at)
    at.selectbox(key="cache_card_format").select("16 bits").run()
    assert "The model itself reads" not in said(at)
    at.selectbox(key="cache_card_shape").select("GPT-2 XL").run()
    assert "The model itself reads at most 1,024." in said(at)
    at.selectbox(key="cache_card_shape").select("Phi-3-mini-128k").run()
    at.number_input(key="cache_card_gb").set_value(4.0).run()
    assert "they do not fit in 4.00 GB" in said(at)


def test_a_latents_ranks_are_those_of_the_model(start, tmp_path):
    for model in ("gpt2-novels", "smollm2"):
        shutil.copy(RESULTS / f"latent-{model}.json", tmp_path)
    titles = {"gpt2-novels": "GPT-2 novels, 3.7 M weights: ", "smollm2": "SmolLM2-135M-Instruct: "}
    for model, title in titles.items():
        words = said(start(cache_tab="Latent", model=model))
        assert f"**{title}" in words
        assert sum(f"**{other}" in words for other in titles.values()) == 1


def test_lines_are_named_for_people_and_for_links():
    assert lines.label(SFA8) == "SFA, 8 features"
    assert lines.short_name(SFA8) == "sfa.features-8"
    assert lines.label({"variant": "focus_sfa", "config": {}, "adapter": "mine"}) == "Focus + SFA, 16 features (mine)"
    assert lines.label({"variant": "dense", "config": {}}) == "Dense"
    assert MAIN.endswith("main.py")
