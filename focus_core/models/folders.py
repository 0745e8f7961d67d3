"""Where converted models are kept, in folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from focus_core.errors import NotAvailable
from focus_core.jobs.files import cache_folder

PREFIX = ".making-"
ABANDONED_AFTER = 24 * 3600.0


def models_folder() -> Path:
    """The folder of converted models in the user's cache, created when missing.

    Raises:
        NotAvailable: the folder cannot be created or written.
    """
    folder = cache_folder().resolve() / "models"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise NotAvailable(
            f"The cache folder {folder} cannot be written.", "Set FOCUS_LAB_CACHE to a folder that can be."
        )
    return folder


def hub_folder() -> Path:
    """Where Hugging Face keeps its copies: ``HF_HUB_CACHE``, or ``hub`` in ``HF_HOME``."""
    if given := os.environ.get("HF_HUB_CACHE"):
        return Path(given).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HF_HOME") or base / "huggingface").expanduser() / "hub"


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``target`` in one step when the block ends without an error.

    When another process made ``target`` meanwhile, its folder stays and ours goes. Folders that killed processes left
    beside ``target`` are removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(target.parent)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{PREFIX}{_host()}-{os.getpid()}-"))
    try:
        yield temporary
        try:
            os.replace(temporary, target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_abandoned(folder: Path) -> list[Path]:
    """Remove temporary folders whose process is gone (on this host) or that are a day old; returns them."""
    removed = []
    for path in folder.glob(f"{PREFIX}*"):
        host, _, rest = path.name.removeprefix(PREFIX).partition("-")
        process = rest.split("-")[0]
        try:
            alive = host != _host() or not process.isdigit() or _alive(int(process))
            if alive and time.time() - path.stat().st_mtime < ABANDONED_AFTER:
                continue
        except FileNotFoundError:
            continue
        shutil.rmtree(path, ignore_errors=True)
        removed.append(path)
    return removed


def _host() -> str:
    return "".join(c for c in socket.gethostname() if c.isalnum()) or "host"


def _alive(process: int) -> bool:
    if sys.platform == "win32":  # signal 0 would end the process there
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
