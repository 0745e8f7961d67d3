"""Small JSON files that are whole or absent, and the cache folder of this program."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """``FOCUS_LAB_CACHE``, or ``focus-lab`` in the user's cache folder of the platform; it may not exist yet."""
    if own := os.environ.get("FOCUS_LAB_CACHE"):
        return Path(own).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "focus-lab"


def user_path(name: str | Path) -> Path:
    """The path that a person wrote, with ``~`` and ``~user`` filled in where there is such a home."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def read_json(path: Path) -> Any:
    """The file's value, unpacked where its name ends in ``.gz``; None when it is absent or not JSON."""
    try:
        data = path.read_bytes()
        return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (OSError, ValueError, EOFError):
        return None


def write_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write atomically: a reader sees the old file or the new one, never half of it. Packed for ``.gz``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        data = json.dumps(value, indent=indent).encode()
        with os.fdopen(handle, "wb") as file:
            # Without a time of its own, the same value is the same file.
            file.write(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
