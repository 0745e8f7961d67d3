"""The comparisons' synthetic engine, with a LoRA and with recorded probes made by hand. Chosen by FOCUS_LAB_ENGINE."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from app.ui import recorded
from focus_core import assets
from tests.app import fake_compare
from tests.probe_documents import documents


def adapters() -> dict[str, dict[str, Any]]:
    """The comparisons' routers, and a LoRA that exists by name alone."""
    lora = {"kind": "lora", "config": {"rank": 8, "through": "dense"}, "serve": {}}
    return {**fake_compare.shipped(), "lora-r8": {"path": Path("lora-r8"), "config": lora}}


def make() -> fake_compare.CompareEngine:
    """The engine; the app reads the probes from a folder of their own."""
    engine = fake_compare.make()
    assets.adapters = adapters
    folder = Path(tempfile.mkdtemp())
    for at, one in enumerate(documents()):
        (folder / f"probe-{at}.json").write_text(json.dumps(one), "utf-8")
    recorded.results_folder = lambda: folder
    return engine
