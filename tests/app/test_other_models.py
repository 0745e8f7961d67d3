"""A model of this machine that is not in the list: its links, its context, and what is said where it has no groups."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.ui import sidebar
from focus_core import assets
from tests.app import fake, fake_train
from tests.app.opening import MAIN, app, engine, said
from tests.tiny import save_tiny


@pytest.fixture
def start(monkeypatch, tmp_path):
    monkeypatch.setenv("FOCUS_LAB_CACHE", str(tmp_path / "cache"))
    with app(monkeypatch) as open_app:
        yield open_app


@pytest.fixture
def folder(tmp_path):
    save_tiny(tmp_path / "my-novels", layers=2, heads=4, kv_heads=2)
    return str(tmp_path / "my-novels")


def take(at: AppTest, folder: str) -> AppTest:
    at.sidebar.selectbox(key="model").select("another").run()
    return at.sidebar.text_input(key="model_id").input(folder).run()


def test_a_link_names_the_folder_and_its_run_selects_the_model_again(start, folder):
    at = take(start(), folder)
    assert at.query_params["folder"] == "my-novels"
    at.button(key="run_now").click().run()
    link = dict(at.query_params)
    assert folder not in str(link)
    again = start(run=at.query_params["run"], model="Another model …", folder="my-novels")
    assert again.sidebar.text_input(key="model_id").value == folder
    assert "The link means" not in said(again)
    assert "live" in said(again)
    without = start(model="Another model …", folder="my-novels")
    assert "The link means the model “my-novels”: where a model lies on a machine never stands in a link" in said(
        without
    )


@pytest.mark.parametrize(
    ("path", "name"),
    [("/a/b/tiny-novels/", "tiny-novels"), ("C:\\x\\m.gguf", "m.gguf"), ("/<b>*/", "b"), ("/", "unnamed")],
)
def test_only_the_last_part_of_a_path_is_named(path, name):
    assert sidebar.last_part(path) == name


def test_groups_that_were_made_here_stand_in_the_link_and_unknown_ones_are_said(start, monkeypatch):
    found = {"mine": {**fake.shipped()["directed-k16"], "path": Path("mine"), "user": True}}
    monkeypatch.setattr(assets, "adapters", lambda: found)
    at = start()
    assert at.query_params["adapter"] == "mine"
    found = {**fake.shipped(), **found}
    assert "adapter" not in start().query_params
    at = start(adapter="mine")
    assert at.sidebar.selectbox(key="adapter").value == "mine"
    assert at.query_params["adapter"] == "mine"
    assert start(adapter="mine (made here)").sidebar.selectbox(key="adapter").value == "mine"
    assert "trained groups gone does not exist" in said(start(adapter="gone"))
    found = {}
    assert "trained groups mine does not exist; showing none" in said(start(adapter="mine"))


def test_a_text_that_may_pass_the_models_context_is_cut_and_said_before_the_run(start, folder):
    at = take(start(), folder)
    assert "At most the first 1,024 tokens are taken." in said(at)
    at.button(key="run_now").click().run()
    request = [r for kind, r in engine().submitted if kind == "trace"][-1]
    assert request["limit"] == 1024
    at.sidebar.selectbox(key="model").select("smollm2").run()
    assert "limit" not in next(r for kind, r in engine().submitted if kind == "trace")
    assert "At most" not in said(at)


def test_what_is_shown_of_another_model_names_both(start, folder):
    at = take(start(seconds=1000), folder)
    assert "with Focus on SmolLM2" in said(at)
    assert "not on my-novels" in said(at)


@pytest.mark.parametrize("key", ["overview", "masks", "groups"])
def test_a_model_without_groups_is_told_once(monkeypatch, tmp_path, folder, key):
    import streamlit as st

    monkeypatch.setenv("FOCUS_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(fake_train.NO_ADAPTERS, "1")
    with app(monkeypatch):
        monkeypatch.setenv("FOCUS_LAB_ENGINE", "tests.app.fake_train:make")
        monkeypatch.setenv(fake.SECONDS, "0")
        monkeypatch.setattr(assets, "adapters", fake_train.shipped)
        st.cache_resource.clear()
        code = (
            f"import sys; sys.path.insert(0, {MAIN.rsplit('/app/', 1)[0]!r})\nfrom app.main import main\nmain({key!r})"
        )
        at = take(AppTest.from_string(code, default_timeout=60).run(), folder)
        assert not at.exception
        boxes = [box.value for box in [*at.main.info, *at.main.error, *at.main.warning]]
        assert sum("groups" in box or "adapter" in box for box in boxes) == 1
        assert len(boxes) <= 2
        at.button(key="way_groups_kmeans").click().run()
        assert "No groups were made" not in said(at)
        assert "k-means groups for my-novels are ready" in "".join(s.value for s in at.success)
        assert at.button(key="way_groups_use")
