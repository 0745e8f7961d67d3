"""A measurement of this page: recorded and shipped, or of a job that ran here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.ui.badges import badge
from app.ui.measurement import Measurement
from app.ui.view import Page


@dataclass(frozen=True)
class Measured:
    """A result and where it comes from."""

    result: dict[str, Any]
    live: bool

    @property
    def note(self) -> str:
        """What was measured, where and when, in one line."""
        about_it = self.result.get("environment") or {}
        text = self.result.get("text") or ("own text" if "tokens" in self.result else "")
        tokens = f"{self.result['tokens']:,} tokens" if "tokens" in self.result else ""
        parts = [self.result.get("model"), text, tokens, about_it.get("device"), str(about_it.get("time", ""))[:10]]
        return " · ".join(str(part) for part in (*parts, self.result.get("command")) if part)

    def badge(self) -> None:
        """Draw where the figures come from."""
        about_it = self.result.get("environment") or {}
        where = f"{about_it.get('time', '')}, {about_it.get('device', '')}"
        command = self.result.get("command")
        badge("live" if self.live else "recorded", where + (f"; {command}" if command else "") + ".")


def find(
    page: Page, run: Measurement, request: dict[str, Any] | None, shipped: dict[str, Any] | None
) -> Measured | None:
    """This session's finished job of the request, else what ships."""
    job = run.job(page, request) if request else None
    if job is not None and job.state == "done" and job.result:
        return Measured(job.result, True)
    return Measured(shipped, False) if shipped else None
