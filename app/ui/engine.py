"""The one engine client of this server process."""

from __future__ import annotations

import importlib
import os
import uuid
from typing import Any

import streamlit as st

from app.ui import links

FACTORY = "FOCUS_LAB_ENGINE"
"""Environment variable ``module:function`` that builds another engine with the same methods."""


def _close(engine: Any) -> None:
    """Clearing Streamlit's caches must not leave a worker behind."""
    if hasattr(engine, "close"):
        engine.close()


@st.cache_resource(show_spinner=False, on_release=_close)
def _engine(factory: str) -> Any:
    links.keep_to_list()
    module, _, function = factory.partition(":")
    return getattr(importlib.import_module(module), function)()


def get_engine() -> Any:
    """The engine shared by all sessions; started at the first call."""
    return _engine(os.environ.get(FACTORY) or "focus_core.jobs:Engine")


def session_id() -> str:
    """A random id of this browser session."""
    return st.session_state.setdefault("_session", uuid.uuid4().hex)
