"""Whether code that was measured is still the code that is here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def source_hash(sources: Iterable[str]) -> str:
    """Hash of Python sources, so that a figure says what code it is of.

    Args:
        sources: files, or folders whose ``*.py`` count, relative to the folder that holds ``focus_core``.

    Returns:
        SHA-256 in hexadecimal of the files' bytes, each folder's in the order of their names.

    Raises:
        FileNotFoundError: a source is not there, or a folder has none.
    """
    found = hashlib.sha256()
    for source in sources:
        path = ROOT / source
        files = sorted(path.glob("*.py")) if path.is_dir() else [path]
        if not files:
            raise FileNotFoundError(f"{source} has no Python sources.")
        for file in files:
            found.update(file.read_bytes())
    return found.hexdigest()


def code_changed(document: Mapping[str, Any]) -> bool | None:
    """Whether the sources that a recorded result names differ today from what was measured.

    Args:
        document: a result with ``sources`` and ``source_hash``.

    Returns:
        True also where a source is no more; None where the result does not name its sources.
    """
    sources, measured = document.get("sources"), document.get("source_hash")
    if not sources or not measured:
        return None
    try:
        return source_hash(sources) != measured
    except OSError:
        return True


def kernel_sources() -> list[str]:
    """Every folder of kernels, for a result that may have been computed by any of them."""
    kernels = ROOT / "focus_core" / "kernels"
    folders = {path.parent for path in kernels.rglob("*.py")}
    return sorted(folder.relative_to(ROOT).as_posix() for folder in folders)
