"""Recorded results are those that lie there now: one that went, or came with an older time, is no more or is there."""

import json
import os

import pytest
import streamlit as st

from app.ui import recorded


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(recorded, "results_folder", lambda: tmp_path)
    st.cache_data.clear()
    yield tmp_path
    st.cache_data.clear()


def write(path, value, time):
    path.write_text(json.dumps({"value": value}))
    os.utime(path, (time, time))


def test_what_goes_or_comes_with_an_older_time_is_seen(folder):
    def found():
        return [(one["file"], one["value"]) for one in recorded.documents("bench-")]

    write(folder / "bench-a.json", 1, 1000)
    write(folder / "bench-b.json", 2, 2000)
    assert found() == [("bench-a.json", 1), ("bench-b.json", 2)]
    (folder / "bench-a.json").unlink()
    assert found() == [("bench-b.json", 2)]
    write(folder / "bench-c.json", 3, 500)
    assert found() == [("bench-b.json", 2), ("bench-c.json", 3)]
    write(folder / "bench-c.json", 4, 600)
    assert found() == [("bench-b.json", 2), ("bench-c.json", 4)]
    assert recorded.lines() == []
