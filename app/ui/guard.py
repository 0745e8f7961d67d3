"""Errors as sentences: no view ever shows a traceback."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import RerunException, StopException

from focus_core.errors import FocusError

log = logging.getLogger("focus_lab")
_WHOLE = "_whole"


def show_error(message: str, hint: str = "") -> None:
    """One error in the page: what happened, and what would work."""
    st.error(f"**{plain(message)}** {plain(hint)}".strip(), icon=":material/error:")


def guarded(draw: Callable[[], None]) -> None:
    """Draw, and turn whatever goes wrong into a sentence with a way on."""
    try:
        draw()
    except (RerunException, StopException):
        raise
    except FocusError as error:
        show_error(error.message, error.hint)
        _way_out()
    except Exception as error:
        log.exception("a page failed")
        show_error(f"This page met a problem it did not expect ({type(error).__name__}).", "Nothing you made is lost.")
        _way_out()


def fragment(draw: Callable[..., None], *arguments: Any, run_every: float | None = None) -> None:
    """Draw a part that reruns alone, on its own controls or every ``run_every`` seconds; guarded like a page."""
    st.fragment(_part, run_every=run_every)(draw, *arguments)


def _part(draw: Callable[..., None], *arguments: Any) -> None:
    if st.session_state.pop(_WHOLE, False):
        st.rerun()
    guarded(lambda: draw(*arguments))


def wholly(change: Callable[..., None], *arguments: Any) -> None:
    """A button's callback whose change concerns the whole page, also where the button stands in a part of it."""
    st.session_state[_WHOLE] = True
    change(*arguments)


def drawn_whole() -> None:
    """The page is drawn from its beginning."""
    st.session_state.pop(_WHOLE, None)


def _way_out() -> None:
    from app.ui import afresh

    st.button(
        "Start again with the shipped example",
        icon=":material/restart_alt:",
        key="_guard_reset",
        on_click=wholly,
        args=(afresh.start,),
    )


def plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    for mark in "\\`*_[]<>$~:#|":
        text = text.replace(mark, "\\" + mark)
    return text
