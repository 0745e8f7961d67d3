"""Models, adapters and what a server lets people load, as the sidebar and the run box show them."""

from pathlib import Path

import pytest

from focus_core import assets
from focus_core.errors import InvalidInput
from tests.app import fake
from tests.app.opening import engine, said
from tests.tiny import save_tiny


def test_a_model_that_cannot_be_prepared_says_why(start):
    at = start(seconds=1000)
    for job in engine().jobs.values():
        job.error = InvalidInput("There is no model here.", "Name another.")
    at.run()
    assert "There is no model here" in said(at)
    at.button(key="way_reset").click().run()
    assert not at.exception
    assert at.sidebar.selectbox(key="model").value == "smollm2"


def test_the_way_back_clears_what_was_chosen_from_controls_and_address(start):
    at = start(seconds=1000, model="gpt2-novels", head="1", text="brown news opening", tok="7")
    assert {"model", "head", "text"} <= set(at.query_params)
    for job in engine().jobs.values():
        job.error = InvalidInput("There is no model here.", "Name another.")
    at.button(key="run_now").click().run()
    for job in engine().jobs.values():
        job.error = InvalidInput("There is no model here.", "Name another.")
    at.run()
    at.button(key="way_reset").click().run()
    assert "did not expect" not in said(at)
    assert not {"model", "head", "text", "set"} & set(at.query_params)
    assert at.sidebar.selectbox(key="model").value == "smollm2"
    assert at.sidebar.selectbox(key="head").value == "all"


def test_a_server_open_to_others_keeps_to_its_list(start, monkeypatch):
    monkeypatch.setenv("FOCUS_LAB_MODELS", "smollm2,some/model")
    at = start(model="another")
    at.sidebar.text_input(key="model_id").input("/etc/passwd")
    at.run()
    assert "does not load" in "".join(w.value for w in at.sidebar.warning)
    assert not [r for _, r in engine().submitted if r["model"] != "smollm2"]


def test_a_server_open_to_others_loads_the_default_model_alone_without_a_list(start, monkeypatch):
    import streamlit as st

    from focus_core.handlers import _requests as requests

    monkeypatch.setenv("FOCUS_LAB_MODELS", "")
    monkeypatch.delenv("FOCUS_LAB_MODELS")
    real = st.get_option
    monkeypatch.setattr(st, "get_option", lambda name: "0.0.0.0" if name == "server.address" else real(name))
    at = start(model="another")
    at.sidebar.text_input(key="model_id").input("some/model").run()
    assert "does not load" in "".join(w.value for w in at.sidebar.warning)
    with pytest.raises(InvalidInput, match="not on this server's list"):
        requests.model_name({"model": "some/model"})
    assert requests.model_name({"model": "smollm2"}) == "smollm2"


@pytest.mark.parametrize("name", ["~nobody-of-that-name/x", "a" * 300, "x\0y", "<img src=x onerror=alert(1)>"])
def test_any_name_of_a_model_keeps_the_page(start, name):
    at = start(model="another")
    at.sidebar.text_input(key="model_id").input(name).run()
    assert not at.exception
    assert "did not expect" not in said(at)


def test_a_model_with_fewer_layers_and_heads_keeps_the_page(start, tmp_path):
    save_tiny(tmp_path / "tiny", "llama", layers=2, heads=3)
    at = start(model="another")
    at.session_state["head"] = "5"
    at.sidebar.slider(key="layer").set_value(3).run()
    assert at.sidebar.selectbox(key="head").value == "5"
    at.sidebar.text_input(key="model_id").input(str(tmp_path / "tiny")).run()
    assert "did not expect" not in said(at)
    assert at.sidebar.slider(key="layer").value == 1
    assert at.sidebar.selectbox(key="head").value == "all"


def test_a_model_that_turns_out_wrong_says_its_own_reason_not_that_groups_are_missing(start):
    at = start(seconds=1000)
    at.sidebar.selectbox(key="model").select("another").run()
    at.sidebar.text_input(key="model_id").input("some/model").run()
    job = next(j for j in engine().jobs.values() if j.request["model"] == "some/model")
    job.error = InvalidInput("There is no such model.", "Name another.")
    at.run()
    assert "There is no such model" in "".join(e.value for e in at.error)


def test_a_preparation_that_was_killed_is_past_once_a_run_has_loaded_the_model(start):
    at = start()
    next(job for job in engine().jobs.values() if job.kind == "prepare").error = InvalidInput("Killed.", "Again.")
    at.run()
    assert "live" in said(at)
    at.sidebar.selectbox(key="variant").select("window").run()
    assert "Killed" not in said(at)
    assert at.button(key="run_now")


def test_what_the_adapter_fixes_is_text_and_what_is_for_the_command_line_is_not_there(start):
    at = start(seconds=1000)
    fields = {w.key for w in [*at.sidebar.number_input, *at.sidebar.selectbox] if (w.key or "").startswith("focus.")}
    assert fields == {f"focus.directed-k16.{name}" for name in ("query_topk", "key_topk", "window", "sinks")}
    assert at.sidebar.number_input(key="focus.directed-k16.query_topk").max == 16
    assert "Groups: **16**" in [m.value for m in at.sidebar.markdown]
    request = [r for kind, r in engine().submitted if kind == "trace"][-1]
    assert [request["config"][name] for name in ("groups", "gate", "backend")] == [16, "hard", "auto"]
    at.sidebar.selectbox(key="variant").select("random").run()
    assert at.sidebar.number_input(key="random.groups").value == 16


def test_adapters_are_named_by_what_they_are_and_the_default_stays(start, monkeypatch):
    def router(form, groups, routers):
        return {"kind": "router", "config": {"form": form, "groups": groups, "routers": routers}, "serve": {}}

    entries = {
        "a": router("directed", 16, 3),
        "b": router("shared", 4, 1),
        "c": router("paper", 4, 1),
        "d": router("shared", 4, 1),
        "k": {"kind": "kmeans", "config": {"groups": 16}, "serve": {}},
    }
    monkeypatch.setattr(assets, "adapters", lambda: {n: {"path": Path(n), "config": c} for n, c in entries.items()})
    at = start(seconds=1000, adapter="c")
    box = at.sidebar.selectbox(key="adapter")
    assert box.options == [
        "Directed, K=16, one router a KV head",
        "Shared, K=4 (b)",
        "Paper's form, K=4 (its soft gate leaks)",
        "Shared, K=4 (d)",
    ]
    assert box.value == "c"
    assert "Groups: **4**" in [m.value for m in at.sidebar.markdown]
    assert "`a`" in box.help
    at.sidebar.selectbox(key="variant").select("kmeans").run()
    assert at.sidebar.selectbox(key="adapter").options == ["k-means, K=16"]


def test_the_shipped_default_is_the_directed_adapter(start, monkeypatch):
    at = start(seconds=1000)
    monkeypatch.setattr(assets, "adapters", fake._REAL_ADAPTERS)
    at = at.run()
    assert at.sidebar.selectbox(key="adapter").value == "smollm2-directed-k16"


def test_one_button_gets_the_default_model_and_what_failed_without_it_starts_anew(start, monkeypatch):
    from focus_core.models import catalog

    here = catalog.packaged_gguf
    monkeypatch.setattr(catalog, "packaged_gguf", lambda: None)
    monkeypatch.setattr(catalog, "prepared_default", lambda: None)
    at = start(seconds=1000)
    for job in engine().jobs.values():
        job.error = InvalidInput("The package is missing.", "Get it.")
    at.run()
    at.button(key="fetch_now").click().run()
    asked = engine().submitted[-1]
    assert asked == ("fetch", {})
    assert not [b for b in at.button if b.key == "fetch_now"]
    monkeypatch.setattr(catalog, "packaged_gguf", here)
    next(job for job in engine().jobs.values() if job.kind == "fetch").takes = 0
    at.run()
    assert "The package is missing" not in said(at)
    assert [kind for kind, _ in engine().submitted].count("prepare") == 2
