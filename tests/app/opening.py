"""Opens the app with the fake engine, for tests of several pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamlit.testing.v1 import AppTest

from app.ui import selection
from focus_core import assets
from tests.app import fake

MAIN = str(Path(__file__).resolve().parents[2] / "app" / "main.py")


@contextmanager
def app(monkeypatch) -> Iterator:
    """A function that opens the app in a session of its own; the engine stays between sessions."""
    import streamlit as st

    monkeypatch.setenv("FOCUS_LAB_ENGINE", "tests.app.fake:make")
    monkeypatch.setattr(selection, "traces_folder", selection.traces_folder)
    monkeypatch.setattr(assets, "adapters", fake.shipped)
    st.cache_resource.clear()

    def open_app(seconds: float = 0.0, **query: str) -> AppTest:
        monkeypatch.setenv(fake.SECONDS, str(seconds))
        at = AppTest.from_file(MAIN, default_timeout=60)
        for name, value in query.items():
            at.query_params[name] = value
        return at.run()

    yield open_app
    st.cache_resource.clear()


def engine():
    """The fake engine that the open apps share."""
    from app.ui.engine import get_engine

    return get_engine()


def said(at: AppTest) -> str:
    """All sentences of the page."""
    found = [*at.title, *at.markdown, *at.caption, *at.error, *at.info, *at.warning]
    return "\n".join(part.value for part in found).replace("\\", "")
