"""An engine without a model: jobs take a moment and give synthetic Traces. Chosen by FOCUS_LAB_ENGINE."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.ui import selection, settings
from focus_core import assets
from focus_core.errors import FocusError, InvalidInput, TooLarge
from focus_core.jobs.store import key_of
from focus_core.variants import VARIANTS, config_fields
from tests.app import fake_vision
from tests.app.fake_groups import apply_edits, draw_map
from tests.app.synthetic import make_dense, make_trace, split

SECONDS = "FAKE_SECONDS"
TOKENS = "FAKE_TOKENS"
"""Length of the one shipped Trace; unset is the first passage."""
MODEL = "smollm2"
_REAL_ADAPTERS = assets.adapters


@dataclass
class FakeEstimate:
    seconds: float = 1.0
    bytes: int = 100_000_000
    sentence: str = "About 1.0 s and 100 MB (synthetic)."


@dataclass
class FakeJob:
    kind: str
    request: dict[str, Any]
    id: str
    began: float = field(default_factory=time.time)
    takes: float = 0.0
    work: Any = None
    result: dict | None = None
    error: Any = None
    partial: list = field(default_factory=list)
    stopped: bool = False
    position: int = 0

    @property
    def key(self) -> str:
        return key_of(self.kind, self.request)

    @property
    def fraction(self) -> float:
        return min(1.0, (time.time() - self.began) / self.takes) if self.takes else 1.0

    @property
    def message(self) -> str:
        return "Layer 3 of 4."

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.takes - (time.time() - self.began))

    @property
    def state(self) -> str:
        if self.error:
            return "failed"
        if self.stopped:
            return "cancelled"
        if self.fraction < 1:
            return "running"
        if self.result is None:
            self.result = self.work()
        return "done"

    @property
    def finished(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


class FakeEngine:
    """The engine's methods that pages use."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds, self.jobs, self.submitted = folder, seconds, {}, []

    def submit(self, kind: str, request: dict[str, Any], session: str = "") -> FakeJob:
        job = FakeJob(kind, request, f"job{len(self.jobs)}", takes=self.seconds)
        job.work = lambda: self._work(kind, request)
        self.submitted.append((kind, request))
        try:
            self.estimate(kind, request)
        except FocusError as error:
            job.error = error
        self.jobs[job.id] = job
        return job

    def estimate(self, kind: str, request: dict[str, Any]) -> FakeEstimate:
        if kind == "trace":
            count = len(split(_text(request))[0])
            limit = request.get("limit")
            if count < 2:
                raise InvalidInput("The text has 1 token; one is scored by those before it.", "Give two tokens.")
            if count > 8192 and limit is None:
                raise TooLarge(f"The text has {count:,} tokens; the model reads 8,192.", "Take its first 8,192 tokens.")
        return FakeEstimate(self.seconds)

    def get(self, job_id: str) -> FakeJob | None:
        return self.jobs.get(job_id)

    def find(self, key: str) -> FakeJob | None:
        return next((job for job in self.jobs.values() if job.key == key and job.state in ("running", "done")), None)

    def key(self, kind: str, request: dict[str, Any]) -> str:
        return key_of(kind, request)

    def recall(self, key: str) -> FakeJob | None:
        return next((job for job in reversed(self.jobs.values()) if job.key == key), None)

    def cancel(self, job_id: str, session: str | None = None) -> bool:
        self.jobs[job_id].stopped = True
        return True

    def status(self) -> dict[str, Any]:
        return {"alive": True, "model": MODEL, "running": [], "queued": []}

    def _work(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        if kind == "fetch":
            return {}
        if kind == "prepare":
            return {"model": request["model"], "facts": {"layers": 4, "heads": 6, "kv_heads": 3}}
        path = self.folder / f"{len(self.jobs)}-{time.time_ns()}.npz"
        if kind == "vision":
            return fake_vision.result(request)
        if kind == "map":
            return draw_map(path, request)
        trace = make_trace(
            _text(request),
            **_arguments(request["config"]),
            limit=request.get("limit"),
            text_name=request["text_name"],
            variant=request["variant"],
            adapter=request["adapter"],
        )
        if request["variant"] == "dense":
            make_dense(trace)
        if request.get("edits"):
            apply_edits(trace, request["edits"])
        trace.save(path)
        return {"trace": str(path)}


def _arguments(config: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k in ("window", "sinks", "groups", "query_topk")} | {"config": config}


def _text(request: dict[str, Any]) -> str:
    return request["text"] if request["text"] is not None else assets.load_text(request["text_name"]).text


def shipped() -> dict[str, dict[str, Any]]:
    """One adapter that exists by name alone, so that what really ships does not matter here."""
    serve = {"groups": 16, "query_topk": 2, "key_topk": 1, "window": 128, "sinks": 4}
    record = {"settings": {"context": 2048, "batch": 1, "steps": 77}}
    config = {"kind": "router", "serve": serve, "record": record}
    return {"directed-k16": {"path": Path("directed-k16"), "config": config}}


def make() -> FakeEngine:
    """The engine, with one shipped Trace of the first passage beside it."""
    if assets.adapters is _REAL_ADAPTERS:
        assets.adapters = shipped
    folder = Path(tempfile.mkdtemp(prefix="fake-engine-"))
    name = next(iter(assets.text_names("passage")))
    if os.environ.get(TOKENS):
        return _long(folder, int(os.environ[TOKENS]))
    adapter = next(iter(settings.adapters_for(MODEL, "router")), None)
    config = {field: spec["default"] for field, spec in config_fields(VARIANTS["focus"]).items()}
    config |= settings.serve_defaults(adapter)
    recorded = make_trace(
        assets.load_text(name).text, text_name=name, recorded=True, adapter=adapter, **_arguments(config)
    )
    recorded.save(folder / "traces" / "first.npz")
    selection.traces_folder = lambda: folder / "traces"
    return FakeEngine(folder, float(os.environ.get(SECONDS, "0")))


def _long(folder: Path, tokens: int) -> FakeEngine:
    make_trace(assets.load_text("emma").text, limit=tokens, text_name="emma", recorded=True).save(
        folder / "traces" / "long.npz"
    )
    selection.traces_folder = lambda: folder / "traces"
    return FakeEngine(folder, 0.0)
