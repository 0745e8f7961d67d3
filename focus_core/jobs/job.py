"""One piece of work: what was asked, where it stands, what came out."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from focus_core.jobs.costs import Estimate

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
MAX_PARTIALS = 1000


class Problem(NamedTuple):
    """Why a job failed: one sentence, and one that says what would work."""

    message: str
    hint: str = ""


@dataclass(eq=False)
class Job:
    """A live view of one job: the engine's threads move it on, pages only read it.

    Attributes:
        kind: name of the handler.
        request: what was asked, as JSON values.
        key: hash of kind and request; the name of its folder in the run store.
        state: ``queued``, ``running``, ``done``, ``failed`` or ``cancelled``. ``result`` and ``error`` are set
            before the state changes.
        position: jobs ahead of it in the queue; 0 while it runs and afterwards.
        fraction: 0 to 1. message: what it does now, one short sentence.
        partial: results so far; they stay after a cancel or a failure (``complete`` is then False).
        result: the handler's result; paths in it are absolute.
        error: why it failed or was refused.
        estimate: the cost that was foreseen; None when it could not be.
        from_store: True when the result was found, not computed now.
    """

    kind: str
    request: dict[str, Any]
    key: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    state: str = QUEUED
    position: int = 0
    fraction: float = 0.0
    message: str = ""
    partial: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    error: Problem | None = None
    estimate: Estimate | None = None
    from_store: bool = False
    sessions: set[str] = field(default_factory=set)
    created: float = field(default_factory=time.time)
    started: float | None = None
    ended: float | None = None

    @property
    def finished(self) -> bool:
        """True once nothing about it will change."""
        return self.state in (DONE, FAILED, CANCELLED)

    @property
    def complete(self) -> bool:
        """True when the result is whole; False marks partial results."""
        return self.state == DONE

    @property
    def seconds(self) -> float:
        """Seconds of work so far."""
        return 0.0 if self.started is None else (self.ended or time.time()) - self.started

    @property
    def seconds_left(self) -> float | None:
        """Seconds of work still to come, from its own pace once it has one, else from the estimate."""
        if self.finished:
            return 0.0
        if self.state == RUNNING and self.fraction > 0.05:
            return self.seconds * (1 - self.fraction) / self.fraction
        return None if self.estimate is None else max(0.0, self.estimate.seconds - self.seconds)

    def keep_partial(self, data: dict[str, Any]) -> None:
        """Append a partial result; the oldest go first when there are too many."""
        self.partial.append(data)
        if len(self.partial) > MAX_PARTIALS:
            del self.partial[0]

    def end(self, state: str, *, result: dict[str, Any] | None = None, error: Problem | None = None) -> None:
        """Set the outcome once; later outcomes are ignored."""
        if self.finished:
            return
        self.result, self.error, self.ended, self.position = result, error, time.time(), 0
        if state == DONE:
            self.fraction = 1.0
        self.message = {DONE: "Done.", CANCELLED: "Cancelled."}.get(state, error.message if error else "Failed.")
        self.state = state
