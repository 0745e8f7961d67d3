"""The synthetic engine, with comparisons made by hand. Chosen by FOCUS_LAB_ENGINE."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from focus_core import assets
from focus_core.errors import TooLarge
from focus_core.variants import make as make_variant
from tests.app import fake
from tests.comparisons import comparison, row

STOP_AFTER = "FAKE_ROWS"
"""Environment variable: rows that a running comparison has handed over."""


class CompareEngine(fake.FakeEngine):
    """Answers ``compare`` with rows whose numbers depend on the variant and the length alone."""

    def submit(self, kind: str, request: dict[str, Any], session: str = ""):
        job = super().submit(kind, request, session)
        if kind == "compare" and job.error is None:
            rows = result_of(request)["rows"][: int(os.environ.get(STOP_AFTER, "3"))]
            job.partial = [{"about": result_of(request)["about"]}, *({"row": r} for r in rows)]
        if kind == "ask" and job.error is None:
            found = answered(request)
            begun = {**found["rows"][0], "reply": "1. App", "complete": False}
            job.partial = [{"about": found["about"]}, {"row": begun}]
        if kind == "match" and job.error is None:
            found = matched(request)
            job.partial = [{"about": found["about"]}, *({"row": r} for r in found["rows"][:1])]
        return job

    def estimate(self, kind: str, request: dict[str, Any]) -> fake.FakeEstimate:
        short = request.get("text_name") != "persuasion"
        if kind == "compare" and short and max(request["lengths"]) > 1024:
            raise TooLarge(
                f"The text has 1,142 tokens and {max(request['lengths']):,} were asked for.",
                "Take shorter lengths, or a longer text such as the novel Persuasion.",
            )
        return super().estimate(kind, request)

    def _work(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        if kind == "match":
            return matched(request)
        if kind == "ask":
            return answered(request)
        return result_of(request) if kind == "compare" else super()._work(kind, request)


def result_of(request: dict[str, Any]) -> dict[str, Any]:
    """A whole result for a request."""
    rows, entries = [], [{"variant": "dense", "config": {}, "label": "dense"}, *request["entries"]]
    for length in request["lengths"]:
        for i, entry in enumerate(entries):
            gate = entry["config"].get("gate", "hard")
            dense = entry["variant"] == "dense"
            more = {"key": json.dumps([entry["variant"], entry["config"], entry.get("adapter")])}
            more["ratio"] = 1.0 if dense else (1.6 - 0.1 * i) * math.sqrt(512 / length)
            more["kept"] = 1.0 if dense else 0.2 + 0.1 * i
            more["change"] = 0.0 if dense else 0.03 / i
            if gate != "hard":
                more |= {"served": False, "leaks": gate == "paper", "ratio": None, "kept": 1.0, "backend": "soft"}
                more["change"] = -0.05 if gate == "paper" else -0.01 * entry["config"]["temperature"]
            full = make_variant(entry["variant"], entry["config"]).to_dict()
            rows.append(row(entry["variant"], entry["label"], length, config=full, **more))
    about = {**comparison()["about"], "lengths": request["lengths"], "text": request["text_name"]}
    about["theory"] = [
        {"key": r["key"], "label": r["label"], "length": n, "attention": share, "model": 0.5 + share / 2}
        for r in rows[: len(entries)]
        for n in (128, 256, 512, 1024, 2048)
        if r["served"]
        for share in (r["kept_pairs"] if r["variant"] == "dense" else r["kept_pairs"] * (256 / n) ** 0.5,)
    ]
    return {"about": about, "rows": rows, "complete": True}


def answered(request: dict[str, Any]) -> dict[str, Any]:
    """A reply of every model that an ``ask`` request names; the last one's leaves dense's."""
    entries = request["entries"]
    rows = [
        {
            **{k: entry[k] for k in ("variant", "adapter", "label")},
            "key": json.dumps([entry["variant"], entry["config"], entry["adapter"]]),
            "reply": "1. Apple\n2. Pear\n3. " + ("<b>Plum</b>" if entry is entries[-1] else "Fig"),
            "prompt_tokens": 300 if request["passage"] else 50,
            "dense_by_definition": entry["variant"] != "dense" and not request["passage"],
            "complete": True,
        }
        for entry in entries
    ]
    passage = "A passage." if request["passage"] else ""
    about = {"prompt": request["prompt"], "passage": passage, "weights": {"before": "a1" * 32, "after": "a1" * 32}}
    return {"about": {**about, "environment": comparison()["about"]["environment"]}, "rows": rows, "complete": True}


def matched(request: dict[str, Any]) -> dict[str, Any]:
    """Settings for a ``match`` request: windows come near, random groups do not reach it, the line that is asked of
    the others stays.
    """
    named, rows = request["target"].get("entry"), []
    asked = 0.3 if named else request["target"]["value"]
    for entry in request["entries"]:
        given = make_variant(entry["variant"], entry["config"]).to_dict()
        own, reaches = entry == named, entry["variant"] != "random"
        rows.append(
            {
                **{k: entry[k] for k in ("variant", "adapter", "label")},
                "key": json.dumps([entry["variant"], given, entry["adapter"]]),
                "config": {**given, "window": 297} if reaches and not own else given,
                "given": given,
                "length": request["length"],
                "asked": asked,
                "reached": asked if reaches else 0.5,
                "low": 0.4 if not reaches else 0.1,
                "high": 1.0,
                "how": "fixed" if own else "counted",
                "within": reaches,
                "near": reaches,
                "knobs": [] if own else ["window"],
                "tries": 1 if own else 9,
                "trained": 1000 if entry["adapter"] else 0,
                "computes_pairs": True,
            }
        )
    about = {
        "quantity": request["quantity"],
        "asked": asked,
        "of": named and named["label"],
        "length": request["length"],
        "windows": request["windows"],
        "text": request["text_name"],
        "refused": [{"label": "slim", "reason": "It needs one KV head a query head.", "hint": ""}],
        "environment": comparison()["about"]["environment"],
    }
    return {"about": about, "rows": rows, "complete": True}


def shipped() -> dict[str, dict[str, Any]]:
    """Two adapters that exist by name alone."""
    serve = {"groups": 16, "query_topk": 4, "window": 128, "sinks": 4}
    return {
        name: {"path": Path(name), "config": {"kind": "router", "config": {"form": form}, "serve": serve}}
        for name, form in (("directed-k16", "directed"), ("paper-k16", "paper"))
    }


def make() -> CompareEngine:
    """The engine, with adapters."""
    assets.adapters = shipped
    base = fake.make()
    return CompareEngine(Path(base.folder), base.seconds)
