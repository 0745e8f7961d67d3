"""The app with the fake engine, opened anew by each test."""

import pytest

from tests.app.opening import app


@pytest.fixture
def start(request, monkeypatch):
    """Open the page that the test file names as ``VIEW``, the Overview without one; query parameters by name."""
    with app(monkeypatch, getattr(request.module, "VIEW", "overview"), anew=True) as open_app:
        yield open_app
