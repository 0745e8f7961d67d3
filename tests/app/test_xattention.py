"""The XAttention page with the fake engine: the picture, its controls and links, and every tab."""

import base64
import json

import numpy as np
import pytest

from analysis.numbers import percent
from analysis.xattention.head import Setting, scores_of
from analysis.xattention.scores import kept_shares, select, served
from app.ui import selection
from app.ui.xattention import paint, recall, state
from focus_core import assets
from focus_core.assets import DATA
from focus_core.trace import Trace
from tests.app import fake, opening
from tests.app.opening import said
from tests.app.synthetic import make_trace

OWN = "The ship sailed on the sea and the wind was strong and the men sang and the sea was wide. " * 12
SHIPPED = "smollm2-thresholds"


@pytest.fixture
def start(monkeypatch):
    with opening.app(monkeypatch, "xattention", anew=True) as open_app:
        yield open_app


def component(at, name="blocks"):
    (found,) = [e.proto for e in at.get("bidi_component") if e.proto.component_name == f"focus_lab_{name}"]
    return json.loads(found.json)


def array(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


def recorded():
    (path, _), *_ = selection.shipped()
    return Trace.load(path)


def kept_of(data):
    return (array(data["marks"], np.uint8) & 1).reshape(data["n"], data["n"]).astype(bool)


def test_the_picture_holds_what_the_head_keeps_and_the_controls_change_it(start):
    at = start(layer="2", head="4")
    data, trace = component(at), recorded()
    assert data["n"] == -(-len(trace) // 64)
    settings = Setting()
    for change in (
        {},
        {state.THRESHOLD: 0.5},
        {state.STRIDE: 16},
        {state.BLOCK: 128},
        {state.VOTERS: "own"},
        {state.MODE: "oracle"},
    ):
        for key, value in change.items():
            at = widget(at, key).set_value(value).run()
            settings = Setting(**{**vars(settings), key.removeprefix("xa_"): value})
        mode = settings.mode, settings.block, 0 if settings.mode == "oracle" else settings.stride, 0
        scores = scores_of(trace, 2, [4], *mode)[0]
        true = scores_of(trace, 2, [4], "oracle", settings.block, 0, 0)[0]
        wanted = served(select(scores, settings.threshold).mask, settings.voters)
        data = component(at)
        assert np.array_equal(kept_of(data), wanted)
        pairs, mass = kept_shares(wanted, true, len(trace), settings.block)
        words = said(at)
        assert "In layer 2, head 4," in words
        for share in (pairs, mass):
            assert f" {percent(float(share))} of " in words
        assert ("leaks" in words) == (settings.voters == "own")
        assert len(json.dumps(data)) < 200_000


def widget(at, key):
    for kind in ("selectbox", "slider", "button_group"):
        for found in getattr(at, kind):
            if found.key == key:
                return found
    raise AssertionError(key)


def test_a_head_is_chosen_where_all_are_meant_and_the_way_a_block_fell_is_told(start):
    at = start()
    words = said(at)
    assert "Every head keeps its own blocks: this is head" in words
    control = at.sidebar.selectbox(key="head")
    assert f"head {control.value}, XAttention chooses blocks" in words
    assert "All heads (mean)" not in control.options
    detail = component(at)["detail"]
    assert detail["why"].startswith("Chosen for block")
    assert "short of 90.0 %, so it is taken" in detail["why"]
    assert len(array(detail["cells"], np.uint8)) == detail["rows"] * detail["columns"]
    at = at.button(key="xa_try").click().run()
    assert "Dropped" in component(at)["detail"]["why"]
    assert component(at)["serial"] == 1


def test_a_layer_that_was_not_recorded_says_so_and_offers_the_nearest(start):
    at = start(seconds=30, layer="3")
    assert "layer 3 are not in this recording" in said(at)
    at = at.button(key="xa_near").click().run()
    assert "In layer 2, head" in said(at)


def test_links_set_the_controls_and_what_does_not_exist_is_said(start):
    at = start(xa_block="128", xa_voters="own", xa_block_at="5-2", xa_tab="Speed", xa_threshold="0.7")
    data = component(at)
    assert (data["block"], data["threshold"], data["picked"]) == (128, 0.7, [4, 1])
    assert "leaks" in said(at)
    wrong = said(start(xa_stride="5", xa_mode="dice", xa_block_at="2-9", xa_voters="nobody"))
    for part in ("stride 5", "scorer dice", "block 2-9", "whose queries decide nobody"):
        assert f"{part} does not exist" in wrong


@pytest.mark.parametrize("tab", list(state.TABS))
def test_every_tab_draws_what_it_says(start, tab, monkeypatch):
    monkeypatch.setattr(assets, "adapters", lambda: {**fake.shipped(), SHIPPED: shipped_entry()})
    at = start(xa_tab=tab, head="1")
    words = said(at)
    wanted = {
        "Recall and density": "the antidiagonals keep",
        "Thresholds": "heads take thresholds from",
        "Paint a pattern": "The antidiagonals miss it",
        "Before it": "By place alone",
        "Speed": "times as fast as dense",
    }[tab]
    assert wanted in words
    assert not at.error


def shipped_entry():
    path = DATA / "adapters" / SHIPPED
    return {"path": path, "config": json.loads((path / "focus_config.json").read_text("utf-8")), "user": False}


def test_recall_is_measured_on_this_head_on_the_layer_and_recorded(start):
    at = start(head="1", xa_tab="Recall and density")
    scopes = [recall.LONG, recall.HEAD, recall.LAYER]
    found = []
    for scope in scopes:
        at = widget(at, recall.SCOPE).set_value(scope).run()
        assert not at.exception
        found.append(next(m.value for m in at.markdown if "the antidiagonals keep" in m.value))
    assert len(set(found)) == 3
    assert "±" in found[0]
    assert "±" in found[2]
    assert "±" not in found[1]


def test_thresholds_are_fitted_with_the_cost_first_and_can_be_stopped(start, monkeypatch):
    record = json.loads((DATA / "results" / "xattention-programme.json").read_text("utf-8"))["record"]
    work = fake.FakeEngine._work
    monkeypatch.setattr(
        fake.FakeEngine,
        "_work",
        lambda self, kind, request: (
            {"name": None, "record": record, "thresholds": []} if kind == "thresholds" else work(self, kind, request)
        ),
    )
    at = start(seconds=30, xa_tab="Thresholds")
    assert "None is fitted for this model yet" in said(at)
    button = at.button(key="xa_fit_run")
    assert "about 30 s" in button.label
    at = button.click().run()
    kind, request = opening.engine().submitted[-1]
    assert (kind, request["recall"], request["config"]["voters"]) == ("thresholds", 0.95, "before")
    assert request["name"] not in assets.adapters()
    at = at.button(key="xa_fit_job_stop").click().run()
    assert "cancelled" in said(at.run())
    opening.engine().seconds = 0.0
    at = at.button(key="xa_programme_run").click().run()
    assert opening.engine().submitted[-1][1]["programme"] == 1
    at = at.run()
    assert "Lowering layer" in said(at)
    assert not at.error


def test_thresholds_are_fitted_on_no_more_than_the_model_reads(start):
    at = start(model="gpt2-novels", xa_tab="Thresholds", layer="3")
    assert "In layer 1, head" in said(at)
    at.button(key="xa_fit_run").click().run()
    assert opening.engine().submitted[-1][1]["context"] == 1024


def test_an_own_text_asks_to_run_and_then_is_shown(start):
    at = start(text="own")
    at = at.text_area(key="own_text").set_value(OWN).run()
    assert "has not run yet" in said(at)
    at = at.button(key="run_now").click().run()
    at = at.run()
    assert opening.engine().submitted[-1][1]["variant"] == "dense"
    assert "has not run yet" not in said(at)
    data = component(at)
    assert data["count"] < 300
    assert "ship" in data["starts"][0]


@pytest.mark.parametrize("words", [3, 90])
def test_an_opened_trace_of_any_length_is_drawn_until_another_text_is_chosen(start, words, tmp_path):
    path = make_trace(" ".join(["sea"] * words), model="somewhere/else", attention=(1,)).save(tmp_path / "t.npz")
    at = start(seconds=30)
    at.session_state["_opened"] = {"path": str(path), "kind": "opened", "name": "t.npz"}
    at = at.run()
    data = component(at)
    assert (data["count"], data["n"]) == (words, -(-words // 64))
    assert "opened" in said(at)
    for key in state.TABS:
        at = widget_tab(at, key)
        assert not at.exception
        assert not at.error
    at = at.selectbox(key="text").set_value(assets.text_names("passage")[1]).run()
    assert component(at)["count"] > words
    assert "opened" not in said(at)


def widget_tab(at, name):
    at.session_state[state.TAB] = name
    return at.run()


def test_painted_scores_are_read_and_anything_else_is_refused():
    cells = np.zeros((paint.SIDE, paint.SIDE), np.int8)
    cells[40, 3], cells[3, 40] = -6, 6
    found = paint.read(base64.b64encode(cells.tobytes()).decode())
    assert found[40, 3] == -6
    assert found[3, 40] == 0
    for wrong in (None, "", "x", base64.b64encode(b"ab").decode(), "é" * 5462):
        assert paint.read(wrong) is None
