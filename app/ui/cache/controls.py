"""The KV cache page's controls: which caches, how long a prompt, and the run with its cost."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.ui import links, runs
from app.ui.cache import lines
from app.ui.view import Page
from focus_core.errors import FocusError

LINES, PROMPT = "cache_lines", "cache_prompt"


def from_link(options: dict[str, Any], notices: list[str]) -> None:
    """Take the choices that the opening link names."""
    before = st.session_state.get(LINES)
    links.restore(LINES, options, notices, several=True)
    if st.session_state.get(LINES) != before:
        _picked()
    links.restore(PROMPT, lines.PROMPTS, notices)


def choose(page: Page, options: dict[str, dict[str, Any]], usual: list[str]) -> dict[str, Any] | None:
    """Draw the controls; the request that they make."""
    # Another model has other caches: what is chosen is kept where it exists there too.
    if st.session_state.get("_cache_model") != page.model and LINES in st.session_state:
        kept = [name for name in st.session_state[LINES] if name in options]
        st.session_state[LINES] = kept if kept and "_cache_picked" in st.session_state else usual
    st.session_state["_cache_model"] = page.model
    st.session_state.setdefault(LINES, usual)
    st.session_state[LINES] = [name for name in st.session_state[LINES] if name in options]
    chosen = st.multiselect(
        "Beside dense",
        list(options),
        key=LINES,
        format_func=lambda name: lines.label(options[name]),
        placeholder="Choose caches",
        wrap=True,
        help="Every registered variant whose cache differs from dense's, with the settings that change its size. One "
        "that this model cannot have is refused with its reason.",
        on_change=_picked,
        persist_state="session",
    )
    st.session_state.setdefault(PROMPT, lines.USUAL_PROMPT)
    prompt = st.segmented_control(
        "Tokens read before decoding",
        lines.PROMPTS,
        key=PROMPT,
        required=True,
        format_func=lambda n: f"{n:,}",
        persist_state="session",
        help=f"After them {lines.DECODED} tokens are decoded from the cache, one by one.",
    )
    links.write(LINES, "" if chosen == usual else ",".join(chosen))
    links.write(PROMPT, "" if prompt in (None, lines.USUAL_PROMPT) else str(prompt))
    return lines.request(page, [options[name] for name in chosen], int(prompt or lines.USUAL_PROMPT))


def _picked() -> None:
    st.session_state["_cache_picked"] = True


def run_box(page: Page, request: dict[str, Any] | None) -> None:
    """The Run button with its cost, or the run's progress."""
    if request is None:
        st.button("Run", type="primary", disabled=True, width="stretch", key="cache_run_button")
        st.caption("Paste a text at the left." if page.text is None else "Choose a cache.")
        return
    lines.RUN.box(
        page,
        request,
        "Run",
        key="cache_run_button",
        progress="cache_job",
        again="Measure again",
        ways_out=lambda _: _ways_out(page, request),
        type="primary",
        width="stretch",
    )


def _ways_out(page: Page, request: dict[str, Any]) -> None:
    """Buttons for the nearest things that work."""
    shorter = next((n for n in reversed(lines.PROMPTS) if n < request["prompt"] and _can(page, request, n)), None)
    if shorter:
        st.button(f"Read {shorter:,} tokens", key="cache_way_short", on_click=set_key, args=(PROMPT, shorter))
    elif page.text is None or page.text.name is None:
        first = runs.texts.names()[0]
        st.button("Take a shipped passage", key="cache_way_text", on_click=runs.use_text, args=(first,))


def _can(page: Page, request: dict[str, Any], prompt: int) -> bool:
    try:
        page.engine.estimate(lines.RUN.kind, {**request, "prompt": prompt})
    except FocusError:
        return False
    return True


def set_key(key: str, value: Any) -> None:
    """Set a control (a button's callback)."""
    st.session_state[key] = value
