"""What every measurement's result shares: its pieces put together, and where it was measured.

A result is ``{about, rows, complete}``: what was asked and where, one row a line, and whether the run came to its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def merge(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Put the pieces that a run has sent into one result; a later row of the same line and length replaces an earlier.

    Args:
        parts: ``{"about": ...}`` and ``{"row": ...}`` in the order they came; a row has a ``key`` and may have a
            ``length``.

    Returns:
        ``{about, rows, complete: False}``.
    """
    about: dict[str, Any] = {}
    rows: dict[tuple[str, int | None], dict[str, Any]] = {}
    for part in parts:
        about = part.get("about", about)
        if "row" in part:
            rows[part["row"]["key"], part["row"].get("length")] = part["row"]
    return {"about": about, "rows": list(rows.values()), "complete": False}


def provenance(about: dict[str, Any]) -> str:
    """One line: model, number format, device, text and date."""
    where = about.get("environment", {})
    text = about.get("text") or "your text"
    parts = [about.get("model"), about.get("dtype"), where.get("device"), text, str(where.get("time", ""))[:10]]
    return ", ".join(str(part) for part in parts if part)


def refused(one: dict[str, str]) -> str:
    """A sentence for a line that the model cannot take."""
    return f"{one['label']} was left out: {one['reason']} {one['hint']}".strip()
