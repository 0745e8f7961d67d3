"""Fitting thresholds from the page: a job by recall or by the programme, with its cost, progress and Stop."""

from __future__ import annotations

import re
from typing import Any

import streamlit as st

from app.ui import trainings
from app.ui.jobs import job_status
from app.ui.measurement import offer
from app.ui.view import Page
from app.ui.xattention import state
from focus_core import assets
from focus_core.models.shapes import shape_of

KIND = "thresholds"
RECALL, SOURCE, REDUCTIONS = "xa_recall_goal", "xa_fit_text", "xa_reductions"
GOALS = (0.8, 0.9, 0.95, 0.98)
CONTEXT, SMALL = 2048, 512
_JOBS = "_xa_jobs"


def fit_box(page: Page) -> None:
    """Fit every head's threshold to a share of dense attention; the adapter is kept and shown."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        goal = st.segmented_control(
            "Dense attention that every head keeps",
            GOALS,
            default=0.95,
            required=True,
            format_func=lambda share: f"{100 * share:g} %",
            key=RECALL,
            persist_state="session",
        )
        options = ["novels"] + (["text"] if page.text is not None else [])
        source = st.segmented_control(
            "Fitted on",
            options,
            default="novels",
            required=True,
            format_func={"novels": "Five novels", "text": "This text"}.get,
            key=SOURCE,
            persist_state="session",
        )
    setting, shape = state.setting(), shape_of(page.model)
    context = CONTEXT if source != "text" else 1024
    base = re.sub(r"[^a-z0-9]+", "-", page.model.rsplit("/", 1)[-1].lower()).strip("-")[:30] or "model"
    request = {
        "model": page.model,
        "name": trainings.free_name(f"{base}-thresholds-{round(100 * (goal or 0.95))}"),
        "config": {"stride": setting.stride, "block": setting.block, "voters": setting.voters},
        "context": min(context, shape.context) if shape else context,
        "windows": 1,
        "recall": goal or 0.95,
    }
    if source == "text" and page.text is not None:
        request |= page.text.fields
    _run(page, "fit", request, "Fit thresholds")


def programme_box(page: Page) -> None:
    """Lower a few layers' thresholds by the paper's dynamic programme."""
    count = st.segmented_control(
        "Layers to lower",
        (1, 2, 3),
        default=1,
        required=True,
        key=REDUCTIONS,
        persist_state="session",
        help="Every cell of its table is a run of the model, so that all heads of a large one are out of reach.",
    )
    setting = state.setting()
    config = {"stride": setting.stride, "block": setting.block, "voters": setting.voters}
    request = {"model": page.model, "config": config, "context": SMALL, "windows": 1, "programme": count or 1}
    _run(page, "programme", request, "Run the programme")


def result_of(page: Page, which: str) -> dict[str, Any] | None:
    """What the last finished job of this model gave in this session."""
    asked = st.session_state.get(_JOBS, {}).get((which, page.model))
    job = page.engine.get(asked) if asked else None
    return job.result if job is not None and job.state == "done" else None


def _run(page: Page, which: str, request: dict[str, Any], label: str) -> None:
    jobs: dict[tuple[str, str], str] = st.session_state.setdefault(_JOBS, {})
    asked = jobs.get((which, page.model))
    job = page.engine.get(asked) if asked else None
    if job is not None and job.state != "done":
        job_status(page.engine, asked, key=f"xa_{which}_job", what="the fit", session=page.session)
        if not job.finished:
            return
    elif job is not None and (name := (job.result or {}).get("name")) in assets.adapters():
        st.success(
            f"Kept as {name}; it can be chosen for XAttention on the other pages.", icon=":material/bookmark_added:"
        )
    if offer(page, KIND, request, label, key=f"xa_{which}_run"):
        jobs[which, page.model] = page.engine.submit(KIND, request, session=page.session).id
        st.rerun()
