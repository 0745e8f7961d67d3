"""Links, runs that are opened again, Trace files, and what becomes of values that do not exist."""

import io
import os
import subprocess
import sys
import weakref
import zipfile
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app.ui import engine as engines
from app.ui import links, opened_files, reopen, selection
from app.ui.sidebar import is_hub_id
from focus_core.errors import InvalidInput, TooLarge
from focus_core.trace_files import MAX_BYTES, open_trace
from tests.app.opening import app, engine, said
from tests.app.synthetic import make_trace
from tests.tiny import save_tiny

OWN = "A quiet sentence that is mine alone. " * 60


@pytest.fixture
def start(monkeypatch):
    with app(monkeypatch) as open_app:
        yield open_app


def run_own(at):
    at.sidebar.text_area(key="own_text").input(OWN)
    at.run()
    return at.button(key="run_now").click().run()


def test_every_live_run_that_is_shown_has_its_id_in_the_link(start):
    at = start()
    at.run()
    first = at.query_params["run"]
    assert engine().find(first).request["text_name"] == "persuasion opening"
    at.sidebar.selectbox(key="text").select("brown news opening").run()
    assert "run" not in at.query_params
    at.button(key="run_now").click().run()
    assert at.query_params["run"] != first


def test_a_run_alone_sets_text_settings_and_picture_and_the_text_stays_out_of_the_link(start):
    at = start(text="own")
    at.sidebar.number_input(key="focus.directed-k16.window").set_value(32)
    at = run_own(at)
    run = at.query_params["run"]
    assert "quiet" not in str(dict(at.query_params))
    other = start(run=run, layer="2", head="3", tok="12")
    assert other.sidebar.text_area(key="own_text").value == OWN
    assert other.sidebar.number_input(key="focus.directed-k16.window").value == 32
    assert other.sidebar.slider(key="layer").value == 2
    assert other.sidebar.selectbox(key="head").value == "3"
    assert other.session_state["_select"][0] == 11
    assert "live" in said(other)
    assert "has not run yet" not in said(other)
    assert other.query_params["run"] == run


def test_a_page_loaded_again_during_a_run_of_ones_own_text_joins_it(start):
    at = run_own(start(text="own", seconds=1000))
    run = at.query_params["run"]
    again = start(run=run, seconds=1000)
    assert again.sidebar.text_area(key="own_text").value == OWN
    assert again.button(key="run_stop")
    assert len([kind for kind, request in engine().submitted if kind == "trace" and request["text"]]) == 1


def test_a_run_that_is_gone_is_said_and_the_rest_of_the_link_is_used(start):
    at = start(run="f" * 32, text="brown news opening")
    assert f"The run {'f' * 12} of the link is not on this machine" in said(at)
    assert at.sidebar.selectbox(key="text").value == "brown news opening"
    assert not at.error


def test_a_link_with_a_hub_model_sets_it_and_a_path_is_refused(start):
    at = start(hub="someone/some-model")
    assert at.sidebar.text_input(key="model_id").value == "someone/some-model"
    assert at.query_params["hub"] == "someone/some-model"
    at = start(hub="/etc/passwd")
    assert "hub /etc/passwd is no model id" in said(at)


def test_a_path_of_this_machine_never_stands_in_a_link(start, tmp_path):
    save_tiny(tmp_path / "m")
    at = start(model="another")
    at.sidebar.text_input(key="model_id").input(str(tmp_path / "m")).run()
    assert str(tmp_path) not in str(dict(at.query_params))
    assert not is_hub_id(str(tmp_path / "m"))
    assert not is_hub_id("hf_token")
    assert not is_hub_id("../up")


def test_another_model_takes_the_nearest_layer_and_head_and_says_so(start, tmp_path):
    save_tiny(tmp_path / "m", layers=2, heads=4, kv_heads=2)
    at = start(layer="3", head="5")
    at.sidebar.selectbox(key="model").select("another").run()
    at.sidebar.text_input(key="model_id").input(str(tmp_path / "m")).run()
    assert "This model has 2 layers: layer 3 does not exist; showing 1." in said(at)
    assert "This model has 4 query heads: head 5 does not exist; showing all heads." in said(at)
    at.button(key="notices_ok").click().run()
    assert "does not exist" not in said(at)


# ---- Trace files ---------------------------------------------------------------------------------------------------


class Upload:
    def __init__(self, raw, name="mine.npz"):
        self.raw, self.name = raw, name

    def getvalue(self):
        return self.raw


def saved(tmp_path, **options):
    path = make_trace("The small town slept under snow. " * 80, **options).save(tmp_path / "t.npz")
    return path.read_bytes()


def test_a_trace_file_is_shown_without_a_model_or_a_run(start, tmp_path):
    raw = saved(tmp_path, variant="focus", model="nowhere/unknown-model", query_topk=3)
    at = start(seconds=1000)
    before = len(engine().submitted)
    opened = tmp_path / "o.npz"
    opened.write_bytes(raw)
    at.session_state["_opened"] = {"path": str(opened), "kind": "opened", "name": "mine.npz"}
    at.run()
    assert not at.exception
    assert "opened" in said(at)
    assert "Read from mine.npz; it needs no model." in said(at)
    assert len(engine().submitted) == before


def test_an_uploaded_file_sets_the_controls_or_says_what_is_wrong(monkeypatch, tmp_path):
    state = {}
    monkeypatch.setattr(reopen.st, "session_state", state)
    monkeypatch.setattr(links.st, "session_state", state)
    monkeypatch.setattr(opened_files, "_session_folder", lambda: tmp_path)
    raw = saved(tmp_path, text_name=None, adapter="gone-adapter")
    state[reopen.FILE] = Upload(raw)
    reopen.from_file()
    assert state["_opened"]["kind"] == "opened"
    assert state["own_text"].startswith("The small town")
    assert any("gone-adapter, are not on this machine" in notice for notice in state["_notices"])
    state[reopen.FILE] = Upload(b"not a zip", "holiday.npz")
    reopen.from_file()
    assert state["_notices"][-1].startswith("holiday.npz: This is not a Trace file")


@pytest.fixture
def session(monkeypatch, tmp_path):
    """A session's state without the app; its opened files lie in ``tmp_path / "session"``."""
    state = {}
    for module in (reopen, links, selection):
        monkeypatch.setattr(module.st, "session_state", state)
    folder = tmp_path / "session"
    folder.mkdir()
    monkeypatch.setattr(opened_files, "_session_folder", lambda: folder)
    return state


def upload(state, raw, name="mine.npz"):
    state[reopen.FILE] = Upload(raw, name)
    reopen.from_file()
    return "".join(state.get("_notices", [])[-1:])


def test_a_refused_file_is_named_as_its_user_called_it_and_does_not_stay(session, tmp_path):
    assert upload(session, b"no zip", "a *b*\n# c.npz").startswith("a *b* # c.npz: This is not a Trace file")
    wrong = rewritten(tmp_path, lambda a: a.update(document=np.frombuffer(b'{"format": 9}', np.uint8))).read_bytes()
    assert upload(session, wrong) == (
        "mine.npz: This is not a Trace file: it has Trace format 9, this version reads 1. "
        "Use one that was saved here, or written by `python -m focus_core trace`."
    )
    assert "_opened" not in session
    assert not list((tmp_path / "session").iterdir())


@pytest.mark.parametrize(
    "error", [TypeError("unhashable"), RecursionError(), MemoryError(), OSError(28, "No space left")]
)
def test_whatever_goes_wrong_in_an_upload_is_a_sentence(session, tmp_path, monkeypatch, error):
    def fail(request, notices):
        raise error

    monkeypatch.setattr(reopen, "select", fail)
    said = upload(session, saved(tmp_path))
    assert said.startswith("mine.npz: It could not be")
    assert str(tmp_path) not in said
    assert "_opened" not in session
    assert not list((tmp_path / "session").iterdir())


def test_a_session_keeps_one_opened_file_and_its_memory_goes_with_it(session, tmp_path):
    upload(session, saved(tmp_path))
    first = Path(session["_opened"]["path"])
    loads = []
    for _ in range(2):
        loads.append(selection._load(first))
    assert loads[0] is loads[1]
    kept = weakref.ref(loads.pop())
    loads.clear()
    upload(session, saved(tmp_path, seed=5))
    second = Path(session["_opened"]["path"])
    assert list(second.parent.iterdir()) == [second] != [first]
    assert kept() is None
    kept = weakref.ref(selection._load(second))
    opened_files._ended(second.parent)
    assert not second.parent.exists()
    assert kept() is None


def test_an_opened_file_comes_back_after_a_lost_connection_or_is_said_to_be_closed(session, tmp_path):
    upload(session, saved(tmp_path))
    path = Path(session["_opened"]["path"])
    path.unlink()
    reopen.stay_open()
    assert path.exists()
    path.unlink()
    session[reopen.FILE] = None
    reopen.stay_open()
    assert "_opened" not in session
    assert "mine.npz was closed" in session["_notices"][-1]


def test_opened_files_go_with_their_session_and_its_server(monkeypatch, tmp_path):
    monkeypatch.setattr(opened_files, "_folder", lambda: tmp_path)

    def script():
        import streamlit as st

        from app.ui import opened_files

        st.write(str(opened_files.keep(b"x")))

    path = Path(AppTest.from_function(script).run().markdown[0].value)
    assert path.read_bytes() == b"x"
    assert path.is_relative_to(tmp_path)
    opened_files.st.cache_resource.clear()
    assert not list(tmp_path.iterdir())


def test_what_servers_that_were_killed_left_is_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(opened_files.tempfile, "gettempdir", lambda: str(tmp_path))
    host = opened_files._host()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {
        f"{opened_files.PREFIX}{host}-{os.getpid()}-a": True,
        f"{opened_files.PREFIX}{host}-{ended.pid}-b": False,
        f"{opened_files.PREFIX}elsewhere-{ended.pid}-c": True,
        f"{opened_files.PREFIX}k3j2h1": False,
        "another-program": True,
    }
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.npz").write_bytes(b"x")
    opened_files.sweep.cache_clear()
    opened_files.sweep()
    assert {name: (tmp_path / name).exists() for name in names} == names


def test_a_last_shown_file_that_is_gone_gives_way_to_what_ships(start):
    at = start(seconds=1000)
    at.session_state["_last"] = ("/gone/t.npz", "opened")
    at.sidebar.selectbox(key="text").select("own").run()
    assert not at.exception
    assert at.session_state["_last"] == ("/gone/t.npz", "opened")
    assert "Nothing has run here yet" not in said(at)


def rewritten(tmp_path, change):
    with np.load(io.BytesIO(saved(tmp_path))) as data:
        arrays = {name: data[name] for name in data.files}
    change(arrays)
    path = tmp_path / "changed.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda a: a.pop("document"), "is not a Trace file"),
        (lambda a: a.update(nll=a["nll"][:-3]), "nll has the shape"),
        (lambda a: a.update(key_bits=a["key_bits"][:2]), "key_bits has the shape"),
        (lambda a: a.pop("kept_pairs"), "kept_pairs is missing"),
        (lambda a: a.update({"queries.99": a["queries.1"]}), "queries.99 belongs to no layer"),
        (lambda a: a.update(nll=np.array(["x"] * len(a["nll"]))), "not real numbers"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path, change, why):
    with pytest.raises(InvalidInput, match=why):
        open_trace(rewritten(tmp_path, change))


def test_nothing_is_unpickled_and_sizes_have_limits(tmp_path, monkeypatch):
    path = rewritten(tmp_path, lambda a: a.update(evil=np.array([{"a": 1}], dtype=object)))
    with pytest.raises(InvalidInput, match="not a Trace file"):
        open_trace(path)
    large = tmp_path / "large.npz"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(TooLarge, match="a Trace has 134 MB at most"):
        open_trace(large)
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("document.npy", b"\0" * 4096)
    monkeypatch.setattr("focus_core.trace_files.MAX_UNPACKED", 1000)
    with pytest.raises(TooLarge, match="Unpacked, the file has"):
        open_trace(bomb)


# ---- who asks ------------------------------------------------------------------------------------------------------


def test_a_browser_is_the_same_asker_after_a_reload(monkeypatch):
    def cookie(mask: bytes) -> str:
        token = b"0123456789abcdef"
        return f"2|{mask.hex()}|{bytes(t ^ mask[i % 4] for i, t in enumerate(token)).hex()}|1700000000"

    class Context:
        cookies: dict

    monkeypatch.setattr(engines.st, "context", Context)
    found = set()
    for mask in (b"abcd", b"wxyz"):
        Context.cookies = {"_streamlit_xsrf": cookie(mask)}
        found.add(engines._browser())
    assert len(found) == 1
    assert len(found.pop()) == 32
    for bad in ("", "2|zz|zz|1", "1"):
        Context.cookies = {"_streamlit_xsrf": bad}
        assert engines._browser() == ""


def test_the_last_page_of_a_browser_lets_go_of_its_jobs(monkeypatch):
    released = []
    monkeypatch.setattr(engines, "_running", [type("E", (), {"release": staticmethod(released.append)})])
    engines._live["browser"] = 2
    engines._ended("browser")
    assert released == []
    engines._ended("browser")
    assert released == ["browser"]


def test_a_run_behind_the_models_preparation_can_be_stopped(start):
    at = start(seconds=1000)
    assert "preparation" in str([p.text for p in at.get("progress")]) or at.button(key="run_stop")
    at.button(key="run_stop").click().run()
    trace = next(job for job in engine().jobs.values() if job.kind == "trace")
    assert trace.state == "cancelled"
    assert "The run was cancelled" in said(at)


def test_shipped_traces_are_not_opened_runs(start):
    at = start(seconds=1000)
    assert "run" not in at.query_params
    assert selection.shipped()
