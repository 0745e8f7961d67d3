"""Where Trace files that someone opened lie: as long as the session that opened them, and no longer than the server."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import socket
import tempfile
from functools import cache
from pathlib import Path

import psutil
import streamlit as st

from app.ui import selection

PREFIX = "focus-lab-opened-"


def name_of(raw: bytes) -> str:
    """The file's name here: the same for the same bytes."""
    return f"{hashlib.sha256(raw).hexdigest()[:32]}.npz"


def keep(raw: bytes) -> Path:
    """Write an upload into the session's folder; it goes when the session ends.

    Raises:
        OSError: there is no room for it, or the folder cannot be written.
    """
    path = _session_folder() / name_of(raw)
    if not path.exists():
        try:
            path.write_bytes(raw)
        except OSError:
            path.unlink(missing_ok=True)
            raise
    return path


def drop(path: Path) -> None:
    """Remove one file, and its Trace from memory."""
    if path.exists():
        selection.unload(path)
        path.unlink(missing_ok=True)


def drop_others(path: Path) -> None:
    """Keep this file alone of those that its session opened."""
    for other in path.parent.glob("*.npz"):
        if other != path:
            drop(other)


def _ended(folder: Path) -> None:
    for path in folder.glob("*.npz"):
        drop(path)
    shutil.rmtree(folder, ignore_errors=True)


@st.cache_resource(scope="session", show_spinner=False, on_release=_ended)
def _session_folder() -> Path:
    return Path(tempfile.mkdtemp(dir=_folder()))


@cache
def _folder() -> Path:
    """This server's folder, which goes with it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{_host()}-{os.getpid()}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def sweep() -> None:
    """Remove the folders of servers that were killed; once a server, when its first page is drawn."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if not _is_used(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_used(folder: Path) -> bool:
    """Whether a server that may still run made a folder; one of another host is left alone."""
    host, _, rest = folder.name.removeprefix(PREFIX).partition("-")
    number = rest.partition("-")[0]
    if not rest:  # as earlier versions named them, which never removed any
        return False
    if host != _host() or not number.isdecimal():
        return True
    try:
        # A number is given again: a process that began after the folder did not make it.
        return psutil.Process(int(number)).create_time() <= folder.stat().st_mtime + 1
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
    except (psutil.Error, OSError):
        return True


def _host() -> str:
    return "".join(c for c in socket.gethostname() if c.isalnum()) or "host"
