"""Ways to groups for a model that has none: train a router, or fit k-means; and the adapters that were made here."""

from __future__ import annotations

import re
from typing import Any

import streamlit as st

from app.ui import links, runs, trainings
from app.ui.guard import plain, show_error
from app.ui.jobs import about, job_status
from app.ui.settings import adapter_label
from app.ui.view import Page
from focus_core import assets
from focus_core.errors import FocusError

K = 16


def without_groups(page: Page, key: str) -> None:
    """Say that the model has no groups of the selected kind yet, and offer to make some.

    Args:
        page: the page.
        key: prefix of the buttons' keys.
    """
    name = plain(runs.model_label(page.model))
    asked = st.session_state.get("_kmeans", {}).get(page.model)
    job = page.engine.get(asked["job"]) if asked else None
    if job is not None and job.state == "done" and asked["name"] in assets.adapters():
        st.success(
            f"k-means groups for {name} are ready. The model predicts better with a router trained for it.",
            icon=":material/category:",
        )
    else:
        st.info(
            f"No groups were made for {name} yet. Focus needs a router trained for it; k-means groups take "
            "less time; the model predicts worse with them, though they may agree more with parts of speech.",
            icon=":material/category:",
        )
    with st.container(horizontal=True):
        st.button(
            "Train a router for it",
            key=f"{key}_train",
            icon=":material/model_training:",
            type="primary",
            on_click=to_train,
        )
        _kmeans(page, key)


def to_train() -> None:
    """Go to the tab Train (a button's callback)."""
    st.session_state["_go"] = "groups"
    links.seed("groups_tab", "Train")


def _kmeans(page: Page, key: str) -> None:
    """Fit k-means as a job; when it is done the groups are selected."""
    jobs: dict[str, dict[str, Any]] = st.session_state.setdefault("_kmeans", {})
    asked = jobs.get(page.model)
    job = page.engine.get(asked["job"]) if asked else None
    if job is not None and not job.finished:
        job_status(page.engine, job.id, key=f"{key}_kmeans_job", what="k-means", session=page.session)
        return
    if job is not None and job.state == "done" and asked is not None and asked["name"] in assets.adapters():
        st.button(
            "Use the k-means groups",
            key=f"{key}_use",
            icon=":material/check:",
            on_click=trainings.use,
            args=(asked["name"], "kmeans"),
        )
        return
    if job is not None and job.state == "failed" and job.error:
        show_error(job.error.message, job.error.hint)
    request = {"model": page.model, "groups": K, "name": trainings.free_name(f"{_short(page.model)}-kmeans-k{K}")}
    try:
        cost = page.engine.estimate(trainings.KMEANS, request)
    except FocusError as error:
        show_error(error.message, error.hint)
        return
    label = f"Fit k-means groups · about {about(cost.seconds)}" if cost.seconds else "Fit k-means groups"
    if st.button(label, key=f"{key}_kmeans", icon=":material/scatter_plot:", help=cost.sentence):
        found = page.engine.submit(trainings.KMEANS, request, session=page.session)
        jobs[page.model] = {"job": found.id, "name": request["name"]}
        st.rerun()


def own_adapters() -> None:
    """The adapters that were made on this machine, each with a button that deletes it."""
    own = {name: entry for name, entry in assets.adapters().items() if entry.get("user")}
    if not own:
        return
    with st.expander(f"Made here ({len(own)})", icon=":material/inventory_2:"):
        for name in own:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(plain(adapter_label(name)), width="stretch")
                if links.refused("") == "":
                    st.button(
                        "Delete",
                        key=f"delete_{name}",
                        icon=":material/delete:",
                        type="tertiary",
                        on_click=trainings.delete,
                        args=(name,),
                    )


def _short(model: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", model.rsplit("/", 1)[-1].lower()).strip("-")[:30] or "model"
