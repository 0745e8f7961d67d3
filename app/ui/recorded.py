"""Recorded results that ship: read once for all pages, by the file's name, by its beginning, or as lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from analysis import records
from analysis.records import Record
from focus_core import assets


def results_folder() -> Path:
    """Where recorded results ship."""
    return assets.DATA / "results"


def document(name: str, folder: Path | None = None) -> dict[str, Any] | None:
    """One document by its file's name, among the shipped results or in another folder.

    Returns:
        The document with the name of its file under ``file``; None where there is none that can be read.
    """
    path = (folder or results_folder()) / name
    return _document(str(path), path.stat().st_mtime) if path.is_file() else None


def documents(prefix: str = "") -> list[dict[str, Any]]:
    """The shipped results whose files' names begin so."""
    return _documents(*_state(), prefix)


def lines() -> list[Record]:
    """Every line of every recorded result."""
    return _lines(*_state())


def _state() -> tuple[str, int]:
    """The folder and a number that is another one when a file comes, goes or changes, whatever its time."""
    folder = results_folder()
    found = [(path.name, path.stat()) for path in folder.glob("*.json") if path.is_file()]
    return str(folder), hash(tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in found)))


@st.cache_data(show_spinner=False, max_entries=16)
def _document(path: str, modified: float) -> dict[str, Any] | None:
    return records.read(Path(path))


@st.cache_data(show_spinner=False, max_entries=16)
def _documents(folder: str, state: int, prefix: str) -> list[dict[str, Any]]:
    return records.documents(Path(folder), prefix)


@st.cache_data(show_spinner=False, max_entries=4)
def _lines(folder: str, state: int) -> list[Record]:
    return records.records(records.documents(Path(folder)))
