"""The app with the fake engine, opened anew by each test."""

import sys

import pytest

from tests.app.opening import app


@pytest.fixture(autouse=True)
def own_main(monkeypatch):
    """Streamlit leaves the script of a test as the main module, which every process that is spawned later would run."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture
def start(request, monkeypatch):
    """Open the page that the test file names as ``VIEW``, the Overview without one; query parameters by name."""
    with app(monkeypatch, getattr(request.module, "VIEW", "overview"), anew=True) as open_app:
        yield open_app
