"""The app with the fake engine, opened anew by each test."""

import pytest
from streamlit.testing.v1 import AppTest

from app.ui import selection
from focus_core import assets
from tests.app import fake
from tests.app.opening import MAIN


@pytest.fixture
def start(monkeypatch):
    """Open the app with the fake engine; query parameters by name."""
    import streamlit as st

    monkeypatch.setenv("FOCUS_LAB_ENGINE", "tests.app.fake:make")
    monkeypatch.setattr(selection, "traces_folder", selection.traces_folder)
    monkeypatch.setattr(assets, "adapters", fake.shipped)

    def open_app(seconds: float = 0.0, **query: str) -> AppTest:
        monkeypatch.setenv(fake.SECONDS, str(seconds))
        st.cache_resource.clear()
        at = AppTest.from_file(MAIN, default_timeout=60)
        for name, value in query.items():
            at.query_params[name] = value
        return at.run()

    yield open_app
    st.cache_resource.clear()
