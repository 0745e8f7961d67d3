import re
import sys

import pytest
from streamlit.testing.v1 import AppTest

from app.ui import links, selection
from focus_core.errors import InvalidInput, TooLarge
from tests.app import fake
from tests.app.opening import MAIN, engine, said

KOREAN = "모든 토큰이 다른 모든 토큰을 보아야 할까요? " * 12


def metric(at: AppTest, label: str) -> str:
    return next(m.value for m in at.metric if m.label == label)


def own(at: AppTest, text: str) -> AppTest:
    at.sidebar.text_area(key="own_text").input(text)
    return at.run()


def run(at: AppTest) -> AppTest:
    return at.button(key="run_now").click().run()


def test_first_paint_is_the_recording_and_needs_no_torch(start):
    before = set(sys.modules)
    at = start(seconds=1000)
    assert not at.exception
    assert "Does every token need to see every other?" in said(at)
    assert "recorded" in said(at)
    assert metric(at, "Pairs computed").endswith("%")
    assert not {m for m in set(sys.modules) - before if m.split(".")[0] in ("torch", "transformers", "umap")}
    kinds = [kind for kind, _ in engine().submitted]
    assert kinds == ["prepare", "trace"]


def test_the_live_run_replaces_the_recording_without_a_click(start):
    at = start(seconds=0)
    at.run()
    assert "live" in said(at)
    assert "recorded]" not in said(at)
    assert not [w for w in at.warning if "differs" in w.value]


def test_a_live_run_that_differs_is_reported(start, monkeypatch):
    at = start(seconds=1000)
    real = fake.make_trace
    monkeypatch.setattr(fake, "make_trace", lambda *a, **k: real(*a, **k, shift=0.2))
    for job in engine().jobs.values():
        job.takes = 0
    at.run()
    assert "The live run differs from the recording: perplexity" in said(at)


def test_values_in_a_link_that_do_not_exist_are_said_and_the_rest_is_used(start):
    at = start(layer="999", head="2", text="brown news opening", variant="nonsense")
    assert at.sidebar.selectbox(key="head").value == "2"
    assert at.sidebar.selectbox(key="text").value == "brown news opening"
    assert "layer 999 does not exist; showing 1" in said(at)
    assert "attention nonsense does not exist" in said(at)
    at.button(key="notices_ok").click().run()
    assert "does not exist" not in said(at)


def test_a_text_that_is_too_long_for_the_app_is_said_to_be(start):
    at = start(text="brown news")
    assert at.sidebar.selectbox(key="text").value == "persuasion opening"
    assert re.search(
        r"text brown news is too long for the app: [\d,]+ tokens, and it shows 8,192 at most; show", said(at)
    )
    assert "text nothing does not exist; showing" in said(start(text="nothing"))


def test_an_address_without_a_page_is_said_once(start, monkeypatch):
    monkeypatch.setattr(links, "asked_page", lambda: "nopage")
    at = start()
    monkeypatch.undo()
    assert "There is no page /nopage; showing Overview." in said(at)
    at.button(key="notices_ok").click().run()
    assert "nopage" not in said(at)


def keys(block) -> set[str]:
    """The keys of a block's containers."""
    inner = [keys(child) for child in block.children.values() if hasattr(child, "children")]
    return {getattr(block.proto, "id", "").rpartition("-")[2]}.union(*inner)


def test_the_headline_of_an_earlier_text_is_grey(start):
    at = start(seconds=0)
    assert "headline" in keys(at.main)
    at.sidebar.selectbox(key="text").select("own")
    at.run()
    assert "headline_earlier" in keys(at.main)
    assert "headline" not in keys(at.main)


def test_a_changed_selection_keeps_the_picture_and_offers_the_run_with_its_cost(start):
    at = start(seconds=0)
    at.sidebar.selectbox(key="text").select("brown news opening")
    at.run()
    assert "has not run yet" in said(at)
    assert "earlier settings" in said(at)
    assert "(synthetic)" in said(at)
    at = run(at)
    assert "has not run yet" not in said(at)
    assert "live" in said(at)


def test_own_text_never_enters_the_link_and_runs(start):
    at = own(start(text="own"), "A secret sentence of my own. " * 60)
    assert "secret" not in str(dict(at.query_params))
    at = run(at)
    request = [r for kind, r in engine().submitted if kind == "trace"][-1]
    assert request["text_name"] is None
    assert request["text"].startswith("A secret")
    assert "live" in said(at)


def test_no_text_yet_is_not_an_error(start):
    at = start(text="own")
    assert not at.exception
    assert not at.error
    assert at.metric
    assert "There is no text to run yet" in said(at)


def test_a_text_within_the_window_is_dense_by_definition_and_two_ways_out_work(start):
    at = run(own(start(text="own"), "Only a few words of text are here."))
    assert "dense attention by definition" in said(at)
    assert metric(at, "Perplexity against dense") == "–"
    assert "too short to judge" in next(m.delta for m in at.metric if m.label == "Perplexity against dense")
    label = at.button(key="short_window").label
    assert "not the trained one" in label
    at.button(key="short_window").click().run()
    assert "has not run yet" in said(at)
    at.button(key="short_text").click().run()
    assert at.sidebar.selectbox(key="text").value == "persuasion opening"


@pytest.mark.parametrize(("text", "why"), [("a", "single word"), ("Hello", "single word"), (" \n ", "empty")])
def test_a_text_of_one_token_or_none_is_refused_beside_it_before_a_run(start, text, why):
    at = own(start(text="own"), text)
    assert why in "".join(e.value for e in at.sidebar.error)
    assert at.button(key="run_nothing").disabled
    assert not [b for b in at.button if b.key in ("run_now", "way_again")]
    at.button(key="way_text").click().run()
    assert at.sidebar.selectbox(key="text").value == "persuasion opening"


def test_a_text_over_the_limit_offers_its_first_tokens(start):
    at = own(start(text="own"), "word " * 9000)
    assert "the model reads 8,192" in said(at)
    at.button(key="way_limit").click().run()
    at = run(at)
    assert [r for kind, r in engine().submitted if kind == "trace"][-1]["limit"] == 8192
    assert "live" in said(at)


def test_many_parts_of_characters_are_said(start):
    at = run(own(start(text="own"), KOREAN))
    assert "only parts of characters" in said(at)
    assert at.button(key="partial_text")


FAILURES = [TooLarge("It needs 9 GB; 2 GB are free.", "Up to 700 tokens fit."), InvalidInput("It cannot be so.")]


@pytest.mark.parametrize("error", FAILURES)
def test_a_failed_run_says_why_and_the_old_picture_stays(start, error):
    at = start(seconds=1000)
    next(reversed(engine().jobs.values())).error = error
    at.run()
    assert error.message in said(at)
    assert at.metric
    assert bool([b for b in at.button if b.key == "way_limit"]) == ("700" in error.hint)
    at.button(key="way_again").click().run()
    assert error.message not in said(at)


def test_stop_answers_at_once_and_the_run_can_be_asked_for_again(start):
    at = start(seconds=1000)
    job = next(j for j in engine().jobs.values() if j.kind == "prepare")
    job.takes = 0
    at.run()
    at.button(key="run_stop").click().run()
    assert "was cancelled" in said(at)
    assert at.button(key="run_now")


def test_nothing_unexpected_becomes_a_traceback(start, monkeypatch):
    at = start()

    def broken(trace):
        raise RuntimeError("secret detail")

    monkeypatch.setattr("analysis.overview.figures", broken)
    at.run()
    assert not at.exception
    assert "did not expect (RuntimeError)" in said(at)
    assert "secret detail" not in said(at)
    monkeypatch.undo()


def test_a_head_shows_its_own_numbers(start):
    at = start(seconds=1000, head="5")
    layer_line = next(m for m in at.metric if m.label == "Pairs computed").delta
    at.sidebar.selectbox(key="head").select("0")
    at.run()
    assert next(m for m in at.metric if m.label == "Pairs computed").delta != layer_line


def test_no_trace_at_all_still_shows_the_page(start, monkeypatch, tmp_path):
    at = start(seconds=1000)
    monkeypatch.setattr(selection, "traces_folder", lambda: tmp_path)
    at = AppTest.from_file(MAIN, default_timeout=60).run()
    assert not at.exception
    assert "Nothing has run here yet" in said(at)


def test_stop_lets_go_of_a_run_that_others_asked_for_too(start, monkeypatch):
    at = start(text="own")
    engine().seconds = 1000
    at = run(own(at, "A few words that two people read. " * 40))
    monkeypatch.setattr(type(engine()), "cancel", lambda self, job_id, session=None: False)
    at.button(key="run_stop").click().run()
    assert "runs on for others" in at.toast[0].value
    assert not at.error
    assert at.button(key="run_now")
    before = len(engine().submitted)
    at.run()
    assert len(engine().submitted) == before


def test_a_button_that_sets_a_control_prints_no_warning(start, monkeypatch, caplog):
    from streamlit import logger
    from streamlit.elements.lib import policies

    monkeypatch.setattr(policies, "_shown_default_value_warning", False)
    monkeypatch.setattr(logger.get_logger(policies.__name__), "propagate", True)
    at = run(own(start(text="own"), "Only a few words of text are here."))
    at.button(key="short_window").click().run()
    assert at.sidebar.number_input(key="focus.directed-k16.window").value == 1
    assert "default value" not in caplog.text


def test_a_token_of_a_link_is_held_before_the_browser_has_answered(start):
    at = start(tok="300")
    assert at.query_params["tok"] == "300"
    assert at.session_state["_pin"] == 299


def test_a_link_names_settings_router_and_token(start):
    at = start(seconds=1000, set="window:32,query_topk:3", router="1", tok="300", text="brown news opening")
    assert at.sidebar.number_input(key="focus.directed-k16.window").value == 32
    assert at.sidebar.number_input(key="focus.directed-k16.query_topk").value == 3
    assert at.selectbox(key="router").value == 1
    assert not at.warning
    assert "_select" not in at.session_state, "the text that the link means is not shown yet"
    engine().seconds = 0
    at = run(at)
    for job in engine().jobs.values():
        job.takes = 0
    at.run()
    assert at.session_state["_select"][0] == 299
    assert at.query_params["tok"] == "300", "it stays while the strip has not said what it holds"
    assert at.query_params["set"] == "query_topk:3,window:32"
    at.sidebar.number_input(key="focus.directed-k16.window").set_value(128)
    at.sidebar.number_input(key="focus.directed-k16.query_topk").set_value(2).run()
    assert "set" not in at.query_params


@pytest.mark.parametrize(
    ("state", "shown"), [({"router": "Blocks of head 7"}, 0), ({"router": 9}, 0), ({"router": 2}, 2), ({}, 0)]
)
def test_a_mask_of_another_trace_that_the_control_still_holds_is_none(monkeypatch, state, shown):
    """As a browser leaves it: Streamlit gives the label where no option has it any more."""
    monkeypatch.setattr(selection.st, "session_state", state)
    assert selection.shown_router(3) == shown
    selection.keep_router(3)
    assert state.get("router", 0) == shown


def test_settings_and_tokens_in_a_link_that_cannot_be_are_said(start):
    at = start(seconds=1000, set="window:0,groups:8,query_topk:17,sinks:x,key_topk:2", router="9")
    for said_of in ("window cannot be 0", "groups:8 is no setting", "query_topk cannot be 17", "sinks cannot be x"):
        assert said_of in said(at)
    assert "router 9 does not exist" in said(at)
    assert at.query_params["set"] == "key_topk:2"
    assert "token 99999 does not exist" in said(start(seconds=1000, tok="99999"))
    assert start(seconds=1000, tok="300").session_state["_select"][0] == 299


def test_the_damage_picture_says_what_cannot_be_hurt_and_what_a_nat_is(start):
    at = start(seconds=1000, picture="Where it hurts")
    assert "The first 132 tokens (window and first tokens together)" in said(at)
    heading = next(m for m in at.markdown if "Hurt most" in m.value)
    assert "1 nat is e" in heading.help
