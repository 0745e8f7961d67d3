"""Training runs as the pages see them: what is asked for, which run answers it, and what has come of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from analysis import training as words
from app.ui import links
from app.ui.guard import show_error
from app.ui.view import Page
from focus_core import assets
from focus_core.errors import FocusError
from focus_core.handlers.train import NOVELS, TOY
from focus_core.trace import Trace

KIND, KMEANS = "train", "kmeans"
LINK = "trained"
GROUPS, WINDOW, CONTEXT, STEPS, BALANCE, FORM, SOURCE = (
    f"train_{name}" for name in ("groups", "window", "context", "steps", "balance", "form", "source")
)
CHOICES: dict[str, tuple[str, tuple[Any, ...]]] = {
    GROUPS: ("groups", (4, 8, 16)),
    WINDOW: ("window", (16, 32, 64, 128)),
    CONTEXT: ("context", (128, 256, 512, 1024)),
    STEPS: ("steps", (10, 20, 40, 80, 160)),
    BALANCE: ("balance", ("bias", "sinkhorn", "loss", "none")),
    FORM: ("form", ("shared", "directed")),
}
"""The controls: which setting each is, and what it can be."""


def default(control: str) -> Any:
    """What a control says before anyone touches it."""
    return NOVELS if control == SOURCE else TOY.get(CHOICES[control][0], "bias")


@dataclass(frozen=True)
class Run:
    """A training run and what it has told.

    Attributes:
        job: the job. history: its steps. about: what it said of itself. folder: where its files lie.
        same: whether it answers the present controls.
    """

    job: Any
    history: list[dict[str, Any]]
    about: dict[str, Any]
    folder: Path
    same: bool

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return int(self.about["settings"]["steps"])

    @property
    def done(self) -> int:
        """Steps that have been made."""
        return max((part["step"] for part in self.history), default=0)

    @property
    def running(self) -> bool:
        """Whether it goes on now."""
        return not self.job.finished

    def look(self, step: int) -> Trace | None:
        """The probe text with the groups after this step; None where it was not looked at or a file is gone."""
        name = next((part["look"] for part in self.history if part["step"] == step and "look" in part), None)
        base = _base(str(self.folder / "probe.npz"))
        path = self.folder / str(name)
        return words.look_trace(base, path) if name and base is not None and path.is_file() else None


@st.cache_resource(max_entries=8, show_spinner=False)
def _loaded(path: str, modified: float) -> Trace:
    return Trace.load(path)


def _base(path: str) -> Trace | None:
    try:
        return _loaded(path, Path(path).stat().st_mtime)
    except (OSError, FocusError):
        return None


def request(page: Page) -> dict[str, Any] | None:
    """The ``train`` job that the controls ask for; None while there is no text."""
    if page.text is None:
        return None
    settings = {CHOICES[c][0]: st.session_state.get(c) or default(c) for c in CHOICES}
    source = st.session_state.get(SOURCE) or NOVELS
    return {"model": page.model, **page.text.fields, "source": source, "settings": settings}


def find(page: Page, asked: dict[str, Any] | None) -> Run | None:
    """The run of these controls, however it stands; else the one that was watched last or that the link names."""
    key = page.engine.key(KIND, asked) if asked else None
    job = page.engine.recall(key) if key else None
    same = job is not None
    linked = links.opening(LINK)
    watched = st.session_state.get("_trained") or linked
    if job is None and watched:
        job = page.engine.recall(watched)
    if job is None or job.kind != KIND:
        if linked:
            links.write(LINK, "")
            links.keep_notices([f"In the link, trained {linked[:60]} is no training run on this machine."])
            st.rerun()
        return None
    st.session_state["_trained"] = job.key
    links.write(LINK, job.key)
    return read(job, same)


def read(job: Any, same: bool = True) -> Run:
    """What a job has told."""
    result = job.result or {}
    parts = list(job.partial)
    about = result.get("about") or words.about_of(parts) or {"settings": {**TOY, **job.request.get("settings", {})}}
    history = words.history_of(result.get("history") or parts)
    return Run(job, history, about, Path(about.get("folder", "")), same)


def longest_shipped() -> dict[str, Any] | None:
    """Settings of the shipped adapter that read most text; None when none ships with its record."""
    shipped = [entry["config"] for entry in assets.adapters().values() if not entry.get("user")]
    runs = [config.get("record", {}).get("settings") for config in shipped]
    return max(filter(None, runs), key=lambda s: s["context"] * s["batch"] * s["steps"], default=None)


def start(page: Page, asked: dict[str, Any]) -> None:
    """Begin, join or go on with a run (a button's callback)."""
    st.session_state["_trained"] = page.engine.submit(KIND, asked, session=page.session).key


def name_for(run: Run) -> str:
    """A free name to keep the run's adapter under."""
    settings = run.about["settings"]
    model = re.sub(r"[^a-z0-9]+", "-", str(run.job.request["model"]).rsplit("/", 1)[-1].lower()).strip("-") or "model"
    return free_name(f"{model}-{settings['form']}-k{settings['groups']}-{settings['steps']}steps")


def free_name(base: str) -> str:
    """The name, or the name with the next free number."""
    taken, name, count = assets.adapters(), base[:50], 1
    while name in taken:
        count += 1
        name = f"{base[:50]}-{count}"
    return name


def keep(run: Run, key: str) -> None:
    """Keep a run's adapter under the name in a text field (a button's callback)."""
    try:
        name = str(st.session_state.get(key, "")).strip()
        assets.keep_adapter(name, run.folder)
    except (FocusError, OSError) as error:
        st.session_state["_train_error"] = getattr(error, "message", str(error)), getattr(error, "hint", "")
        return
    st.session_state["_train_kept"] = name, run.job.key


def kept_of(run: Run) -> str | None:
    """The name that this run's adapter was kept under, in this session; None before, and where it was deleted."""
    name, key = st.session_state.get("_train_kept") or ("", "")
    return name if key == run.job.key and name in assets.adapters() else None


def use(name: str, variant: str = "focus") -> None:
    """Select an adapter at the left (a button's callback)."""
    if name not in assets.adapters():
        st.session_state["_train_error"] = f"The adapter {name} is no longer here.", "Save it again under a name."
        return
    links.seed("variant", variant)
    links.seed("adapter", name)


def delete(name: str) -> None:
    """Delete one of the user's adapters (a button's callback)."""
    try:
        assets.delete_adapter(name)
    except FocusError as error:
        st.session_state["_train_error"] = error.message, error.hint
    if st.session_state.get("adapter") == name:
        st.session_state.pop("adapter")
    if (st.session_state.get("_train_kept") or ("",))[0] == name:
        st.session_state.pop("_train_kept")


def show_problem() -> None:
    """What went wrong in a callback, once."""
    if problem := st.session_state.pop("_train_error", None):
        show_error(*problem)
