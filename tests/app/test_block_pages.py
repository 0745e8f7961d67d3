"""The pages with a variant that keeps whole blocks: nothing may show it as dense or as groups."""

import json

import pytest
from streamlit.testing.v1 import AppTest

from app.ui import selection
from focus_core import assets
from tests.app import fake
from tests.app.synthetic import HEADS
from tests.app.test_blocks import as_blocks


def page():
    import streamlit as st

    from app.ui import sidebar
    from app.ui.guard import guarded
    from app.views import groups, masks, overview

    view = {"overview": overview, "masks": masks, "groups": groups}[st.query_params.get("shown", "overview")].VIEW
    guarded(lambda: view.render(sidebar.select(view)))


@pytest.fixture
def start(monkeypatch):
    """Open a page with XAttention chosen, and run it."""
    import streamlit as st

    real = fake.make_trace

    def made(text, **arguments):
        if arguments.get("variant") != "xattention":
            return real(text, **arguments)
        return as_blocks(real(text, **{**arguments, "window": 0, "sinks": 0}))

    monkeypatch.setenv("FOCUS_LAB_ENGINE", "tests.app.fake:make")
    monkeypatch.setenv(fake.SECONDS, "0")
    monkeypatch.setattr(selection, "traces_folder", selection.traces_folder)
    monkeypatch.setattr(assets, "adapters", fake.shipped)
    monkeypatch.setattr(fake, "make_trace", made)

    def open_page(shown: str, **query: str) -> AppTest:
        st.cache_resource.clear()
        st.cache_data.clear()
        at = AppTest.from_function(page, default_timeout=60)
        for name, value in {"shown": shown, "variant": "xattention", **query}.items():
            at.query_params[name] = value
        at.run()
        at = at.run()
        at.button(key="run_now").click().run()
        return at.run()

    yield open_page
    st.cache_resource.clear()
    st.cache_data.clear()


def component(at: AppTest, name: str) -> dict:
    (found,) = [e.proto for e in at.get("bidi_component") if e.proto.component_name == f"focus_lab_{name}"]
    return json.loads(found.json)


def said(at: AppTest) -> str:
    parts = [*at.title, *at.markdown, *at.caption, *at.error, *at.info, *at.warning]
    return "\n".join(p.value for p in parts)


def test_the_strip_draws_the_blocks_of_the_chosen_head(start):
    at = start("overview")
    assert not at.exception
    assert not at.error
    data = component(at, "strip")
    assert data["blocks"]["size"] == 16
    assert data["window"] == 0
    assert "dense attention by definition" not in said(at)
    choice = at.selectbox(key="router")
    assert choice.options == [f"Blocks of head {h}" for h in range(HEADS)]
    other = choice.set_value(3).run()
    assert component(other, "strip")["blocks"]["bits"] != data["blocks"]["bits"]


def test_the_canvas_draws_them_and_names_what_keeps_them(start):
    at = start("masks")
    assert not at.exception
    assert not at.error
    data = component(at, "mask")
    assert [term["kind"] for term in data["mask"]["terms"]] == ["blocks"]
    assert 0 < data["shares"]["block"] < 1
    assert "group" not in data["shares"]
    assert at.selectbox(key="router").options == [f"Blocks of head {h}" for h in range(HEADS)]
    over = [o for o in at.selectbox(key="over").options if "of this run" in o]
    assert over == [f"Over Head {h} of this run" for h in range(1, HEADS)]
    at = at.selectbox(key="over").set_value("router.2").run()
    assert not at.exception
    assert [term["kind"] for term in component(at, "mask")["other"]["terms"]] == ["blocks"]


def test_token_groups_says_that_there_are_none(start):
    at = start("groups")
    assert not at.exception
    assert not at.error
