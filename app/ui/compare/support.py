"""What a variant needs to run on the selected model, and whether it can: no model is loaded for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from analysis.numbers import sig3
from app.ui.settings import adapters_for, variant_label
from app.ui.view import Page
from focus_core import assets
from focus_core.models.facts import ModelFacts
from focus_core.models.quick import facts_from_values, quick_facts
from focus_core.variants import VARIANTS, make


def facts_of(page: Page) -> ModelFacts | None:
    """The model's facts: as it was loaded in this session, else from its files; None where nothing says."""
    job_id = st.session_state.get("_prepare", {}).get(page.model)
    job = page.engine.get(job_id) if job_id else None
    found = (job.result or {}).get("facts") if job is not None and job.state == "done" else None
    if found and "native" in found:
        return facts_from_values(found)
    return quick_facts(page.model)


def refusal(variant: str, config: dict[str, Any], facts: ModelFacts | None) -> str:
    """Why the model cannot take this variant; empty when it can, or when the model is not known yet."""
    if facts is None:
        return ""
    support = make(variant, config).supports(facts)
    return "" if support.ok else support.reason or "it cannot serve this model."


def lacking(variant: str, model: str) -> str:
    """Why a variant cannot run for want of what it learns; empty when it can."""
    cls = VARIANTS[variant]
    if cls.adapter_kind is None or cls.adapter_optional or adapters_for(model, cls.adapter_kind):
        return ""
    return f"needs an adapter of kind {cls.adapter_kind}, and there is none for this model"


def unavailable(page: Page, facts: ModelFacts | None) -> list[tuple[str, str]]:
    """(name, reason) of every variant that cannot run on this model as it ships."""
    found = []
    for name in sorted(VARIANTS):
        if said := refusal(name, {}, facts) or lacking(name, page.model):
            found.append((variant_label(name), said))
    return found


def training_of(variant: str, adapter: str | None) -> str:
    """What a line needs to learn, with the minutes that were recorded."""
    cls = VARIANTS[variant]
    if adapter is not None:
        entry = assets.adapters()[adapter]
        took = _took(entry["config"])
        return f"{'made here' if entry.get('user') else 'ships'}{f', trained in {took}' if took else ''}"
    if cls.adapter_kind is None or cls.adapter_optional:
        return "none"
    documents = [entry["config"] for entry in assets.adapters().values()]
    took = next(filter(None, (_took(d) for d in documents if d.get("kind") == cls.adapter_kind)), "")
    return f"must be trained ({took} for another model)" if took else "must be trained"


def adapter_bytes(adapter: str | None) -> int:
    """Bytes of an adapter's weights; 0 where there are none."""
    if adapter is None:
        return 0
    entry = assets.adapters()[adapter]
    folder = Path(entry["path"])
    # A table of looks is read with the weights beside it.
    beside = entry["config"].get("weights")
    path = (folder.parent / beside if beside else folder) / "focus_adapter.safetensors"
    return path.stat().st_size if path.is_file() else 0


def _took(document: dict[str, Any]) -> str:
    record = document.get("record") or {}
    seconds = record.get("seconds")
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        return ""
    device = (record.get("environment") or {}).get("device")
    return f"{sig3(seconds / 60, 2)} min{f' on {device}' if device else ''}"
