"""The page Features with the fake engine: the pair, the controls, the tabs, links, and what is not recorded."""

import base64
import json

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from analysis.features.codes import Codes, head_of, row
from app.ui import settings
from app.ui.features import maps
from tests.app.opening import engine, said
from tests.app.synthetic import DIM, HEADS, KV_HEADS, LAYERS, make_trace

VIEW = "features"
TITLE = "Which dimensions carry the attention?"


def text_of(at) -> dict:
    found = [e.proto for e in at.get("bidi_component") if e.proto.component_name == "focus_lab_codes"]
    assert len(found) == 1
    return json.loads(found[0].json)


def figure(at, place: int = 0) -> dict:
    return json.loads(at.get("plotly_chart")[place].proto.spec)


def test_the_sentence_the_text_and_the_codes_say_the_same(start):
    at = start(layer="2", head="3")
    assert at.title[0].value == TITLE
    data = text_of(at)
    assert data["key"] < data["query"]
    assert len(data["first"]) == len(data["cells"]) + 1
    words = said(at)
    assert f"With 2 of {DIM} dimensions kept" in words
    assert "and the pair's score is" in words
    assert "the attention of the one to the other goes from" in words
    bars = [trace for trace in figure(at)["data"] if trace["type"] == "bar"]
    assert {trace["name"] for trace in bars} == {"both keep it", "one keeps it", "dropped"}
    assert [metric.label for metric in at.metric][:3] == [
        "Score of the pair",
        "Attention of the pair",
        "Lands on other keys",
    ]
    # What is shown recorded is run in the background, as dense attention of all layers.
    ran = [request for kind, request in engine().submitted if kind == "trace"]
    assert ran[-1]["variant"] == "dense"


def test_what_was_opened_is_drawn_where_it_holds_queries_and_keys(start, tmp_path):
    path = make_trace(" ".join(["sea"] * 30), model="somewhere/else", attention=(1,)).save(tmp_path / "t.npz")
    at = start(seconds=30)
    at.session_state["_opened"] = {"path": str(path), "kind": "opened", "name": "t.npz"}
    at = at.run()
    assert "opened" in said(at)
    assert text_of(at)["query"] < 30
    assert "has not run yet" not in said(at)
    bare = make_trace("a b c d", model="somewhere/else", attention=()).save(tmp_path / "bare.npz")
    at.session_state["_opened"] = {"path": str(bare), "kind": "opened", "name": "bare.npz"}
    at = at.run()
    assert "What was opened holds no queries and keys: shown is another run." in said(at)


def test_controls_change_the_codes_and_the_link_sets_them(start):
    at = start(layer="1", features_k="4", features_sparse="keys", codes="40-12", features_overlap="exclude")
    data = text_of(at)
    assert (data["query"], data["key"]) == (39, 11)
    assert at.query_params["codes"] == "40-12"
    words = said(at)
    assert f"With 4 of {DIM} dimensions" in words
    assert next(s for s in at.slider if s.key == "features_k").value == 4
    at.slider(key="features_k").set_value(DIM).run()
    assert f"With {DIM} of {DIM} dimensions" in said(at)
    three = next(m for m in at.metric if m.label == "Lands on other keys")
    assert three.value == "0 %"
    at = start(codes="3-9", features_k="7", features_select="best", layer="1")
    words = said(at)
    assert "codes 3-9 is no token and one before it" in words
    assert "number of features kept 7 does not exist" in words
    assert "choice of what survives best does not exist" in words


def either_page():
    import streamlit as st

    from app.ui import sidebar
    from app.views import features, overview

    page = sidebar.select(features.VIEW if st.toggle("features", True, key="which") else overview.VIEW)
    st.write(f"head {page.head}")


def test_the_control_has_the_head_that_is_shown_until_someone_chooses(start):
    start()  # its engine stays
    at = AppTest.from_function(either_page, default_timeout=60)
    at.query_params["head"] = "all"
    at.run()
    control = at.sidebar.selectbox(key="head")
    assert (control.value, control.options[0]) == ("0", "Head 0")
    assert "head 0" in said(at)
    at.toggle(key="which").set_value(False).run()
    assert at.sidebar.selectbox(key="head").value == "all"
    at.toggle(key="which").set_value(True).run()
    at.sidebar.selectbox(key="head").set_value("3").run()
    assert "head 3" in said(at)
    at.toggle(key="which").set_value(False).run()
    assert at.sidebar.selectbox(key="head").value == "3"


def test_the_try_button_takes_the_key_that_loses_most(start):
    at = start(layer="1")
    query = text_of(at)["query"]
    at.button(key="features_try").click().run()
    data = text_of(at)
    assert data["query"] == query
    weights = {name: np.frombuffer(base64.b64decode(data[name]), np.float32) for name in ("dense", "sparse")}
    assert int(np.argmax(weights["dense"] - weights["sparse"])) == data["key"]


def test_a_layer_that_was_not_recorded_is_said_and_the_nearest_shown(start):
    words = said(start(layer="3"))
    assert "Layer 3 is not in this recording, which has layers 1, 2; shown is 2." in words


@pytest.mark.parametrize("tab", ["One tile, step by step", "Error by k", "Cost", "With fewer pairs", "Which survive"])
def test_every_tab_has_its_sentence_and_picture(start, tab):
    at = start(layer="1", features_tab=tab, codes="60-50")
    words = said(at)
    wanted = {
        "One tile, step by step": "Tile 1 of 3, scores.",
        "Error by k": "In the same 24 bytes a key, 8 features leave an error of",
        "Cost": "Cache. With 8 features the live cache holds 13,680 bytes a token in 16 bits, as the formula says",
        "With fewer pairs": "both together lose",
        "Which survive": f"Queries use their {DIM} dimensions evenly to",
    }
    assert wanted[tab] in words
    # No time ships for heads of this size: the job measures it.
    assert len(at.get("plotly_chart")) >= (1 if tab == "Cost" else 2)


def test_the_steps_of_a_tile_go_on_and_end_as_a_plain_softmax(start):
    at = start(layer="1", features_tab="One tile, step by step", codes="60-50")
    at.slider(key="features_step").set_value(0).run()
    seen = [next(m.value for m in at.markdown if m.value.startswith("**Tile")).split(".**")[0]]
    for _ in range(4):
        at.button(key="features_next").click().run()
        seen.append(next(m.value for m in at.markdown if m.value.startswith("**Tile")).split(".**")[0])
    assert [s.split(", ")[1] for s in seen] == [
        "keys by dimension",
        "shared dimensions",
        "scores",
        "running maximum",
        "running sum and output",
    ]
    at.slider(key="features_step").set_value(15).run()
    assert "differs by less than 1e-12 at most" in said(at)
    at.button(key="features_back").click().run()
    assert at.session_state["features_step"] == 14


def test_another_text_offers_to_run_and_jobs_say_their_cost(start):
    at = start(text="brown news opening", features_tab="Cost", layer="1")
    assert "Your selection has not run yet" in said(at)
    at.button(key="run_now").click().run()
    assert "Your selection has not run yet" not in said(at)
    at.button(key="features_speed_run").click().run()
    kind, request = engine().submitted[-1]
    assert (kind, request["heads"], request["features"]) == ("feature_speed", HEADS, [1, 2, 4])


def test_maps_of_an_adapter_come_first(start, tmp_path, monkeypatch):
    from safetensors.numpy import save_file

    rng = np.random.default_rng(3)
    rotation = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0].astype(np.float32)
    save_file(
        {
            "query_map": np.broadcast_to(rotation, (LAYERS, HEADS, DIM, DIM)).copy(),
            "key_map": np.broadcast_to(rotation, (LAYERS, KV_HEADS, DIM, DIM)).copy(),
        },
        tmp_path / "focus_adapter.safetensors",
    )
    entry = {"path": tmp_path, "config": {"kind": "sfa", "title": "Codes of 2"}}
    monkeypatch.setattr(settings, "adapters_for", lambda model, kind=None: {"codes": entry} if kind == "sfa" else {})
    monkeypatch.setattr("focus_core.assets.adapters", lambda: {"codes": entry})
    at = start(layer="1", codes="60-50", features_maps="codes")
    assert at.selectbox(key="features_maps").value == "codes"
    data = text_of(at)
    shipped = make_trace(_text(), limit=None)
    assert len(data["cells"])
    head = head_of(shipped, 1, 0)
    wanted = row(head.mapped(*maps.of_head("smollm2", "codes", 1, 0)), 59, Codes(2))
    sparse = np.frombuffer(base64.b64decode(data["sparse"]), np.float32)
    assert np.allclose(sparse, wanted.sparse, atol=1e-6)


def test_a_query_head_has_the_map_of_its_own_key_head(tmp_path, monkeypatch):
    from safetensors.numpy import save_file

    of = np.arange(LAYERS * KV_HEADS, dtype=np.float32).reshape(LAYERS, KV_HEADS, 1, 1)
    maps_ = {
        "query_map": np.zeros((LAYERS, HEADS, DIM, DIM), np.float32),
        "key_map": of * np.ones((DIM, DIM), np.float32),
    }
    save_file(maps_, tmp_path / "focus_adapter.safetensors")
    monkeypatch.setattr(settings, "adapters_for", lambda model, kind=None: {"codes": {"path": tmp_path}})
    share = HEADS // KV_HEADS
    assert share > 1 < KV_HEADS
    for head in range(HEADS):
        assert maps.of_head("m", "codes", 2, head)[1][0, 0] == 2 * KV_HEADS + head // share


def _text() -> str:
    from focus_core import assets

    return assets.load_text(next(iter(assets.text_names("passage")))).text
