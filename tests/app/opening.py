"""Opens the app with the fake engine, for tests of several pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamlit.testing.v1 import AppTest

from app.ui import selection
from focus_core import assets
from tests.app import fake, fake_compare

ROOT = Path(__file__).resolve().parents[2]
MAIN = str(ROOT / "app" / "main.py")
START = "import sys; sys.path.insert(0, {root!r})\nfrom app.main import main\nmain({view!r})"


@contextmanager
def app(monkeypatch, view: str = "overview", *, anew: bool = False) -> Iterator:
    """A function that opens the app in a session of its own, query parameters by name.

    Args:
        monkeypatch: pytest's.
        view: the page that opens.
        anew: whether every opening has an engine of its own; else it stays between sessions.
    """
    import streamlit as st

    def forget() -> None:
        st.cache_resource.clear()
        st.cache_data.clear()

    monkeypatch.setenv("FOCUS_LAB_ENGINE", "tests.app.fake:make")
    monkeypatch.setattr(selection, "traces_folder", selection.traces_folder)
    monkeypatch.setattr(assets, "adapters", fake.shipped)
    forget()

    def open_app(seconds: float = 0.0, tokens: int | None = None, **query: str) -> AppTest:
        monkeypatch.setenv(fake.SECONDS, str(seconds))
        if tokens:
            monkeypatch.setenv(fake.TOKENS, str(tokens))
        if anew:
            forget()
        at = AppTest.from_string(START.format(root=str(ROOT), view=view), default_timeout=60)
        for name, value in query.items():
            at.query_params[name] = value
        return at.run()

    yield open_app
    forget()


def open_compare(**query: str) -> AppTest:
    """Open the Compare page in a session of its own, beside those that are open."""

    def page():
        from app.ui import sidebar
        from app.ui.guard import guarded
        from app.views.compare import VIEW

        guarded(lambda: VIEW.render(sidebar.select(VIEW)))

    at = AppTest.from_function(page, default_timeout=60)
    for name, value in query.items():
        at.query_params[name] = value
    return at.run()


@contextmanager
def compare(monkeypatch, results: Path) -> Iterator:
    """A function that opens the Compare page on a new fake engine, query parameters by name.

    Args:
        monkeypatch: pytest's.
        results: folder of the recorded results.
    """
    import streamlit as st

    def forget() -> None:
        st.cache_resource.clear()
        st.cache_data.clear()

    monkeypatch.setenv("FOCUS_LAB_ENGINE", "tests.app.fake_compare:make")
    monkeypatch.setattr(assets, "adapters", fake_compare.shipped)
    # The fake engine brings a shipped Trace of its own; the next test file finds the real ones again.
    monkeypatch.setattr(selection, "traces_folder", selection.traces_folder)
    monkeypatch.setattr("app.ui.recorded.results_folder", lambda: results)

    def open_anew(**query: str) -> AppTest:
        forget()
        return open_compare(**query)

    yield open_anew
    forget()


def engine():
    """The fake engine that the open apps share."""
    from app.ui.engine import get_engine

    return get_engine()


def said(at: AppTest) -> str:
    """All sentences of the page."""
    assert not at.exception
    found = [*at.title, *at.markdown, *at.caption, *at.error, *at.info, *at.warning, *at.success]
    return "\n".join(part.value for part in found).replace("\\", "")
