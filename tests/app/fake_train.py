"""The synthetic engine with training, k-means and collapse: steps arrive as time passes. Chosen by FOCUS_LAB_ENGINE."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from focus_core import assets
from focus_core.errors import InvalidInput
from focus_core.handlers.collapse import DEFAULTS
from focus_core.handlers.train import TOY
from focus_core.trace import Trace
from tests.app import fake
from tests.app.synthetic import KV_HEADS, LAYERS, make_trace

NO_ADAPTERS = "FAKE_NO_ADAPTERS"
DIM = 4


class TrainEngine(fake.FakeEngine):
    """A run's steps come one by one over the seconds that it takes; a stopped one keeps those it has."""

    def submit(self, kind: str, request: dict[str, Any], session: str = ""):
        before = self.recall(self.key(kind, request))
        if kind in ("train", "collapse") and before is not None and before.state in ("running", "done"):
            return before
        job = super().submit(kind, request, session)
        if job.error is None and kind in ("train", "collapse"):
            made = LiveJob(kind, request, job.id, takes=self.seconds)
            made.work, made.told = job.work, list(self._told(made))
            if before is not None:
                made.began -= self.seconds * len(before.partial) / len(made.told)
            self.jobs[job.id] = made
            return made
        return job

    def estimate(self, kind: str, request: dict[str, Any]) -> fake.FakeEstimate:
        if kind == "train" and request["source"] == "text" and request["settings"]["context"] > 512:
            raise InvalidInput("The text has 1,142 tokens; training on it takes 2,048.", "Take a longer text.")
        if kind == "trace" and request["variant"] == "focus" and request["adapter"] is None:
            raise InvalidInput("focus needs a trained adapter, and none ships for this model.", "Train one.")
        if kind == "kmeans":
            assets.check_adapter_name(request["name"])
        return super().estimate(kind, request)

    def _told(self, job: Any) -> list[dict[str, Any]]:
        if job.kind == "collapse":
            return records(job.request)
        folder = self.folder / job.key
        folder.mkdir(parents=True, exist_ok=True)
        return steps(job.request, folder)

    def _work(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        if kind == "collapse":
            return {"records": records(request), "about": {}, "complete": True}
        if kind == "kmeans":
            write_adapter(self.folder / "kmeans", "kmeans", request["groups"])
            assets.keep_adapter(request["name"], self.folder / "kmeans")
            return {"name": request["name"]}
        if kind == "train":
            told = steps(request, self.folder / self.key(kind, request))
            return {"history": [part for part in told if "step" in part], "about": told[0]["about"]}
        return super()._work(kind, request)


class LiveJob(fake.FakeJob):
    """Tells as much as has come."""

    told: list[dict[str, Any]] = []  # noqa: RUF012
    stopped_at: int | None = None

    @property
    def partial(self) -> list[dict[str, Any]]:
        if self.stopped and self.stopped_at is None:
            self.stopped_at = self._count()
        return self.told[: self._count() if self.stopped_at is None else self.stopped_at]

    @partial.setter
    def partial(self, value: list) -> None:
        """The base's constructor sets an empty one."""

    def _count(self) -> int:
        return max(1, math.floor(self.fraction * len(self.told)))


def steps(request: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """A run whose groups even out, with a look every other step."""
    settings = {**TOY, **request["settings"]}
    groups, count = settings["groups"], settings["steps"]
    text = request["text"] or assets.load_text(request["text_name"]).text
    base = make_trace(text, groups=groups, limit=60, window=settings["window"])
    kept = {k: v for k, v in base.arrays.items() if k in ("token_ids", "byte_span")}
    Trace(base.provenance, base.text, base.tokens, kept).save(folder / "probe.npz")
    write_adapter(folder, "router", groups)
    told: list[dict[str, Any]] = [{"about": {"folder": str(folder), "settings": settings, "texts": "five novels"}}]
    rng = np.random.default_rng(0)
    for step in range(count + 1):
        even = np.full(groups, 1.0)
        skewed = np.eye(groups)[0] * groups
        load = even + (skewed - even) * 0.8 ** (step + 1)
        part: dict[str, Any] = {"step": step}
        if step:
            part["load"] = [[load.round(3).tolist()] * KV_HEADS] * LAYERS
            part |= {"loss": 4 - step / count, "temperature": 0.2, "gate": "soft", "largest_group": load[0]}
        if step % 5 == 0:
            part |= {"served_ppl": 42 - step / count, "kept_pairs": 0.5 - 0.2 * step / count}
        if step == 0:
            part["dense_ppl"] = 39.75
        if step % max(1, count // 5) == 0:
            part["look"] = f"step-{step:05d}.npz"
            look = make_trace(text, groups=groups, limit=60, seed=step)
            bits = np.roll(look.arrays["key_bits"], step, -1)
            points = rng.normal(size=(KV_HEADS, 60, DIM)).astype(np.float16)
            arrays = {f"key_points.{n}": points for n in range(LAYERS)}
            arrays |= {f"centroids.{n}": points[:, :groups] for n in range(LAYERS)}
            np.savez(folder / part["look"], key_bits=bits, query_bits=bits, **arrays)
        told.append(part)
    return told


def records(request: dict[str, Any]) -> list[dict[str, Any]]:
    """A toy run in which nothing collapses but the run without balancing."""
    settings = {**DEFAULTS, **request["settings"]}
    found = []
    for step in range(settings["steps"] + 1):
        for balance in ("none", "loss", "sinkhorn", "bias", "paper"):
            top = 0.2 + 0.7 * step / settings["steps"] if balance == "none" else 0.2
            load = [[top, *[(1 - top) / 7] * 7]] * 4
            record = {"balance": balance, "step": step, "loss": 4.0, "load": load}
            if step % settings["look_every"] == 0:
                back = {"centroids": top, "projection": 0.2, "hidden": top}
                numbers = {"centroids": 1.0, "projection": 0.5, "hidden": 0.1}
                record |= {"largest": top, "back": back, "moved": numbers, "spread": numbers}
                record |= {"served_ppl": 31.0, "dense_ppl": 30.0, "kept_pairs": 0.4, "rank": 8.0}
            found.append(record)
    return found


def write_adapter(folder: Path, kind: str, groups: int) -> None:
    """A folder that passes for an adapter of the fake model."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = {"layers": 30, "hidden_size": 576, "heads": 9, "kv_heads": 3, "vocab": 49152}
    serve = {"groups": groups, "query_topk": 1, "key_topk": 1, "window": 32, "sinks": 4}
    config = {"groups": groups, "form": "shared", "routers": 1}
    document = {"format": 1, "kind": kind, "config": config, "serve": serve, "model": shape, "record": {}}
    (folder / "focus_config.json").write_text(json.dumps(document))
    (folder / "focus_adapter.safetensors").write_bytes(b"weights")


def shipped() -> dict[str, dict[str, Any]]:
    """What ships in this world, and what is kept in the cache folder."""
    found = {} if os.environ.get(NO_ADAPTERS) else {k: {**v, "user": False} for k, v in fake.shipped().items()}
    for file in sorted(assets.user_adapters_folder().glob("*/focus_config.json")):
        found[file.parent.name] = {"path": file.parent, "config": json.loads(file.read_text()), "user": True}
    return found


def make() -> TrainEngine:
    """The engine."""
    assets.adapters = shipped
    base = fake.make()
    return TrainEngine(Path(base.folder), base.seconds)
