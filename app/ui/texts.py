"""The text control: shipped passages, paste, upload."""

from __future__ import annotations

import dataclasses
import re
from itertools import islice

import streamlit as st

from app.ui import links
from app.ui.view import Page, TextChoice
from focus_core import assets
from focus_core.errors import FocusError, InvalidInput
from focus_core.models.catalog import DEFAULT
from focus_core.models.shapes import shape_of

OWN = "own"
OWN_LABEL = "Your own text …"
MAX_TOKENS = 8192
"""Longest shipped text in the menu; longer ones are for the command line."""
MAX_MEGABYTES = 1
MAX_BYTES = MAX_MEGABYTES << 20
_SURE_BYTES = 2
"""A text of fewer bytes a token than this would be a rare one, whatever the tokenizer."""
_ONE_TOKEN_BYTES = 24
"""A single word that is longer is several tokens to every tokenizer of a language model."""


def names() -> list[str]:
    """Shipped texts short enough to show, passages first."""
    return [n["name"] for n in assets.catalog()["texts"] if (n.get("tokens") or 0) <= MAX_TOKENS]


def choose(notices: list[str]) -> TextChoice | None:
    """Draw the text controls; None while the user has not given a text of their own."""
    options = [*names(), OWN]
    titles = {entry["name"]: entry["title"] for entry in assets.catalog()["texts"]}

    def label(name: str) -> str:
        return titles.get(name, OWN_LABEL)

    links.check("text", options, options[0], notices, label, why=_too_long)
    choice = st.selectbox(
        "Text",
        options,
        format_func=label,
        key="text",
        bind="query-params",
        help="Shipped passages have at least 1,024 tokens, so that there is something beyond the window.",
    )
    if choice != OWN:
        text = assets.load_text(choice)
        return TextChoice(text.name, text.title, text.text)
    return _own()


def _too_long(asked: str) -> str:
    """Why a shipped text that the menu lacks is not shown; empty for any other name."""
    for entry in assets.catalog()["texts"]:
        if asked in (entry["name"].casefold(), entry["title"].casefold()) and (entry.get("tokens") or 0) > MAX_TOKENS:
            return f"is too long for the app: {entry['tokens']:,} tokens, and it shows {MAX_TOKENS:,} at most"
    return ""


def _own() -> TextChoice | None:
    pasted = st.text_area(
        "Paste a text",
        height=140,
        key="own_text",
        persist_state="session",
        placeholder="A few paragraphs: 1,000 tokens or more show the most.",
        help="It stays in this browser session and on this machine; it never becomes part of a link.",
    )
    upload = st.file_uploader(
        "or choose a text file",
        key="own_file",
        max_upload_size=MAX_MEGABYTES,
        help="Plain text in UTF-8.",
    )
    try:
        if upload is not None:
            return _checked(upload.name, upload.name, upload.getvalue())
        if pasted:
            return _checked("Your text", "This text", pasted.encode("utf-8", "replace"))
    except FocusError as error:
        st.error(f"{error.message} {error.hint}")
    return None


def _checked(title: str, name: str, raw: bytes) -> TextChoice:
    """A text that can run, or an error that says what can."""
    text = assets.decode_text(raw, name, max_bytes=MAX_BYTES)
    words = list(islice(re.finditer(r"\w+|[^\w\s]+", text), 2))
    if len(words) < 2 and len(text.strip().encode()) <= _ONE_TOKEN_BYTES:
        raise InvalidInput(
            f"{name} is a single word, which may be a single token: each token is scored by those before it.",
            "Give a few words at least; 1,000 tokens or more show the most.",
        )
    return TextChoice(None, title, text)


def set_limit(text: str, count: int, model: str) -> None:
    """Take only the first tokens of this text with this model from now on (a button's callback)."""
    st.session_state["_limit"] = (text, count, model)


def limited(page: Page) -> Page:
    """The page with the limit that was agreed to for this very text, or that the model's context may set.

    Another model's tokens are counted when it runs: where they may be more than it reads, its first ones are taken.
    """
    if page.text is None:
        return page
    agreed = st.session_state.get("_limit")
    if agreed and (page.text.text, page.model) == (agreed[0], agreed[2]):
        return dataclasses.replace(page, text=dataclasses.replace(page.text, limit=agreed[1]))
    shape = None if page.model == DEFAULT else shape_of(page.model)
    if shape is not None and len(page.text.text.encode("utf-8", "replace")) > shape.context * _SURE_BYTES:
        return dataclasses.replace(page, text=dataclasses.replace(page.text, limit=shape.context))
    return page
