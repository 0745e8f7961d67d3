from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app.ui.mask.data import mask_data, terms_of
from app.ui.mask.heads import table
from app.ui.mask.state import numbers
from focus_core.errors import Unsupported
from focus_core.pattern import GroupPattern
from tests.app import fake
from tests.app.opening import engine, said
from tests.app.synthetic import make_trace

VIEW = "masks"
TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 8


def component(at: AppTest, name: str) -> dict:
    found = [e.proto for e in at.get("bidi_component") if e.proto.component_name == f"focus_lab_{name}"]
    assert len(found) == 1
    return json.loads(found[0].json)


def unpack(text: str, dtype) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


def button(at: AppTest, key: str):
    return next((b for b in at.button if b.key == key), None)


# ---- data -----------------------------------------------------------------------------------------------------------


def test_terms_hold_the_whole_pattern():
    trace = make_trace(TEXT, window=16, sinks=2)
    terms = terms_of(trace.pattern(1), 4)
    assert [t["kind"] for t in terms["terms"]] == ["window", "sinks", "groups"]
    assert (unpack(terms["terms"][2]["k"][0], np.uint32) == trace.arrays["key_bits"][1, 2]).all()
    padded = GroupPattern.without_groups(2, 9, 9, 2, 3, first_key=np.array([0, 4]))
    assert terms_of(padded, 0, 1) == {"count": 9, "first": 4, "terms": [{"kind": "window", "size": 3}]}
    with pytest.raises(Unsupported):
        terms_of(GroupPattern.without_groups(1, 2, 9, 2, 3))


def test_a_payload_is_json_and_lost_pairs_are_left_out_beside_another_mask():
    from analysis.masks import lost_pairs

    trace = make_trace(TEXT, window=16, sinks=2)
    lost = lost_pairs(trace, 1, slice(0, len(trace), 3), [0, 1])
    data = json.loads(json.dumps(mask_data(trace, 1, 0, lost=lost, limit=60)))
    rows, begin = unpack(data["lost"]["rows"], np.int32), unpack(data["lost"]["start"], np.int32)
    keys, mass = unpack(data["lost"]["keys"], np.uint16), unpack(data["lost"]["mass"], np.uint16)
    assert rows.tolist() == list(range(0, 60, 3))
    assert begin[-1] == len(keys) == len(mass) > 0
    assert (keys < 60).all()
    assert np.allclose(mass / 65535, lost.mass[: len(mass)], atol=1e-5)
    over = mask_data(trace, 1, 0, lost=lost, other=trace)
    assert over["lost"] is None
    assert over["other"] == terms_of(trace.pattern(1), 0)


@pytest.mark.parametrize("raw", ["", "3", "3-x", "0-3", "3-101", "3-4-5", "-3-4", "3-4-", "1" * 12 + "-3"])
def test_a_pair_in_a_link_is_two_places_in_the_text(raw):
    assert numbers(raw, 2, 100) is None
    assert numbers("100-1", 2, 100) == [100, 1]


# ---- page -----------------------------------------------------------------------------------------------------------


def test_the_answer_the_picture_and_the_figures_agree(start):
    at = start()
    assert not at.exception
    assert at.title[0].value == "Which pairs are computed, and what is lost?"
    data = component(at, "mask")
    trace = make_trace("".join(data["tokens"]), window=128, sinks=4)
    assert data["mask"] == terms_of(trace.pattern(1), 0)
    kept = trace.pattern(1).density(0, 0)
    shares = data["shares"]
    assert shares["near"] + shares["sink"] + shares["group"] == pytest.approx(kept, abs=1e-5)
    assert f"{100 * kept:.1f} % of the pairs are computed" in said(at)
    assert next(m.value for m in at.metric if m.label == "Pairs computed") == f"{100 * kept:.1f} %"
    assert "of all rows, heads 0 and 1" in data["said"]
    assert len(unpack(data["lost"]["rows"], np.int32)) == data["count"]


def test_the_page_needs_neither_torch_nor_umap(start):
    import sys

    before = set(sys.modules)
    start(seconds=1000)
    assert not {m for m in set(sys.modules) - before if m.split(".")[0] in ("torch", "transformers", "umap", "numba")}


def test_the_router_control_and_a_head_choose_the_groups(start):
    at = start()
    one = component(at, "mask")["mask"]
    at.selectbox(key="router").select(2).run()
    assert component(at, "mask")["mask"] != one
    assert "heads 4 and 5" in said(at)
    at.sidebar.selectbox(key="head").select("3").run()
    assert not [s for s in at.selectbox if s.key == "router"]
    assert "In layer 1, head 3," in said(at)


def test_a_layer_that_was_not_recorded_offers_the_nearest(start):
    at = start(layer="0")
    assert "What is lost in layer 0 is not in this recording" in said(at)
    assert component(at, "mask")["lost"] is None
    button(at, "masks_near").click().run()
    assert component(at, "mask")["layer"] == 1
    assert component(at, "mask")["lost"] is not None


def test_over_dense_and_a_window_need_no_run(start):
    at = start()
    before = len(engine().submitted)
    at.selectbox(key="over").select("dense").run()
    data = component(at, "mask")
    assert data["other"]["terms"] == [{"kind": "window", "size": data["count"]}]
    assert data["names"] == ["Focus", "Dense"]
    assert sum(data["shares"].values()) == pytest.approx(1, abs=1e-4)
    assert "only by Dense" in said(at)
    assert "and 100 % of dense attention" in said(at)
    at.selectbox(key="over").select("window").run()
    assert [t["kind"] for t in component(at, "mask")["other"]["terms"]] == ["window", "sinks"]
    assert len(engine().submitted) == before


def test_over_another_router_of_the_same_run(start):
    at = start()
    at.selectbox(key="over").select("router.2").run()
    data = component(at, "mask")
    assert data["names"] == ["KV head 0", "KV head 2"]
    trace = make_trace("".join(data["tokens"]), window=128, sinks=4)
    assert data["other"] == terms_of(trace.pattern(1), 4)


def test_over_a_variant_runs_it_once_and_then_draws_it(start):
    at = start()
    at.selectbox(key="over").select("random").run()
    assert "has not run on this text" in said(at)
    assert component(at, "mask")["other"] is None
    button(at, "second_run").click().run()
    at.run()
    kind, request = engine().submitted[-1]
    assert (kind, request["variant"]) == ("trace", "random")
    assert component(at, "mask")["other"] is not None
    assert component(at, "mask")["names"][1].startswith("random")
    count = len(engine().submitted)
    at.selectbox(key="over").select("none").run()
    at.selectbox(key="over").select("random").run()
    assert len(engine().submitted) == count
    assert button(at, "second_run") is None


def test_a_link_reopens_the_pair_the_part_and_the_comparison(start):
    at = start(pair="300-20", part="200-1-128", over="dense", head="2")
    data = component(at, "mask")
    assert data["select"][:2] == [299, 19]
    assert data["view"][:3] == [199, 0, 128]
    assert data["names"][1] == "Dense"
    assert "does not exist" not in said(at)


def test_what_a_link_cannot_name_is_said(start):
    at = start(pair="99999-3", part="a-b-c", over="nothing")
    text = said(at)
    assert "pair 99999-3 does not exist" in text
    assert "part a-b-c does not exist" in text
    assert "second mask nothing does not exist; showing Alone" in text
    assert component(at, "mask")["select"] is None


def test_heads_are_ranked_and_similar_ones_listed(start):
    at = start()
    grid = component(at, "grid")
    assert [p["unit"] for p in grid["panels"]] == ["%", "%", "nats", "%"]
    assert grid["picked"] == [1, None]
    trace = make_trace("".join(component(at, "mask")["tokens"]), window=128, sinks=4)
    at.selectbox(key="rank").select("entropy").run()
    frame = next(d.value for d in at.dataframe if len(d.value) == 24)
    found = trace.arrays["entropy"]
    assert (frame["Layer"][0], frame["Head"][0]) == np.unravel_index(found.argmax(), found.shape)
    assert frame["Entropy of dense attention"].is_monotonic_decreasing
    similar = next(d.value for d in at.dataframe if "Similarity" in d.value)
    assert similar["Similarity"].is_monotonic_decreasing


def test_the_table_of_heads_and_the_ring_of_the_chosen_one(start):
    trace = make_trace(TEXT)
    rows = table(trace)
    assert len(rows) == 24
    assert rows["kept_pairs"][7] == pytest.approx(trace.arrays["kept_pairs"][1, 1])
    at = start(layer="2", head="4")
    assert component(at, "grid")["picked"] == [2, 4]


def test_an_older_recording_offers_a_run_for_what_it_lacks(start, monkeypatch):
    real = fake.make_trace
    monkeypatch.setattr(fake, "make_trace", lambda *a, **k: real(*a, **k, extras=False))
    at = start(seconds=1000)
    assert not at.exception
    assert "older than entropy of dense attention and attention on the first tokens" in said(at)
    assert len(component(at, "grid")["panels"]) == 2
    assert "does not hold which heads look alike" in said(at)


def test_dense_attention_is_said_and_never_an_empty_chart(start, monkeypatch):
    at = start(variant="dense")
    button(at, "run_now").click().run()
    at.run()
    assert not at.exception
    assert "every pair is computed" in said(at)
    assert "Dense attention drops nothing" in said(at)
    data = component(at, "mask")
    assert data["mask"]["terms"] == [{"kind": "window", "size": data["count"]}]
    assert data["lost"] is None
    assert data["shares"]["dropped"] == 0
    assert [p["title"] for p in component(at, "grid")["panels"]][:1] == ["Entropy of dense attention"]
    button(at, "masks_focus").click().run()
    assert at.sidebar.selectbox(key="variant").value == "focus"


def test_a_text_that_fits_the_window_is_said(start):
    at = start(text="own")
    at.sidebar.text_area(key="own_text").input("A few words that are not many. " * 6)
    at.run()
    button(at, "run_now").click().run()
    at.run()
    assert "dense attention by definition" in said(at)
    assert "every pair is computed" in said(at)
    button(at, "masks_window").click().run()
    button(at, "run_now").click().run()
    at.run()
    assert "dense attention by definition" not in said(at)


def test_by_distance(start):
    at = start()
    at.session_state["masks_tab"] = "By distance"
    at.run()
    assert not at.exception
    assert "of dense attention lies beyond the window" in said(at)
    assert len(at.get("plotly_chart")) == 1


def test_the_try_button_holds_the_worst_loss(start):
    at = start(over="dense")
    button(at, "masks_try").click().run()
    data = component(at, "mask")
    query, key, _ = data["select"]
    assert data["names"][1] == ""
    trace = make_trace("".join(data["tokens"]), window=128, sinks=4)
    assert not trace.pattern(1).tile(0, 0, slice(query, query + 1), slice(key, key + 1)).any()


def test_a_long_text_says_which_rows_are_looked_at_and_stays_small(start):
    at = start(tokens=8192)
    proto = next(e.proto for e in at.get("bidi_component") if e.proto.component_name == "focus_lab_mask")
    data = json.loads(proto.json)
    assert data["count"] == 8192
    assert "of every 34th row" in data["said"]
    assert len(proto.SerializeToString()) < 3_000_000
