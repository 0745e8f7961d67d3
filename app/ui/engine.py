"""The one engine client of this server process."""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
import uuid
from collections import Counter
from typing import Any

import streamlit as st

from app.ui import links

_running: list[Any] = []
FACTORY = "FOCUS_LAB_ENGINE"
"""Environment variable ``module:function`` that builds another engine with the same methods."""


def _close(engine: Any) -> None:
    """Clearing Streamlit's caches must not leave a worker behind."""
    _running.clear()
    if hasattr(engine, "close"):
        engine.close()


@st.cache_resource(show_spinner=False, on_release=_close)
def _engine(factory: str) -> Any:
    links.keep_to_list()
    module, _, function = factory.partition(":")
    engine = getattr(importlib.import_module(module), function)()
    _running[:] = [engine]
    return engine


def get_engine() -> Any:
    """The engine shared by all sessions; started at the first call."""
    return _engine(os.environ.get(FACTORY) or "focus_core.jobs:Engine")


_live: Counter[str] = Counter()
_live_lock = threading.Lock()


def session_id() -> str:
    """Who asks: this browser, so that a page that was loaded again may stop what it asked for before.

    The id ends with the last open page of the browser; a job then no longer waits for its word.
    """
    found = st.session_state.get("_session")
    if found is None:
        found = st.session_state["_session"] = _browser() or uuid.uuid4().hex
    _present(found)
    return found


def _browser() -> str:
    """A browser's own id from the token that Streamlit gives it against forged requests; empty without one.

    The cookie is ``2|mask|token xor mask|time`` with another mask each time.
    """
    parts = str(st.context.cookies.get("_streamlit_xsrf", "")).split("|")
    try:
        mask, token = bytes.fromhex(parts[1]), bytes.fromhex(parts[2])
    except (IndexError, ValueError):
        return ""
    plain = bytes(byte ^ mask[i % len(mask)] for i, byte in enumerate(token)) if mask else b""
    return hashlib.sha256(plain).hexdigest()[:32] if plain else ""


def _ended(session: str) -> None:
    with _live_lock:
        _live[session] -= 1
        if _live[session] > 0:
            return
        del _live[session]
    # The one that runs: a page that ends must not start another.
    for engine in _running:
        if hasattr(engine, "release"):
            engine.release(session)


@st.cache_resource(scope="session", show_spinner=False, on_release=_ended)
def _present(session: str) -> str:
    with _live_lock:
        _live[session] += 1
    return session
