"""Small JSON files that are whole or absent, and the cache folder of this program."""

from __future__ import annotations

import contextlib
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
    """The file's value; None when it is absent or not JSON."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write atomically: a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=indent)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
