"""Train a router now and watch it learn: loss, served perplexity, loads, the strip and the map from step 0 on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from analysis import training as words
from analysis.groups import group_table, has_groups
from analysis.numbers import percent, sig3
from app.ui import links, selection, trainings
from app.ui import scatter as map_component
from app.ui.badges import badge
from app.ui.figure import plot
from app.ui.groups import ways
from app.ui.guard import fragment, plain, show_error
from app.ui.jobs import about, sentence
from app.ui.scatter.data import scatter_data
from app.ui.strip import token_strip
from app.ui.strip.data import router_count, strip_data
from app.ui.trainings import BALANCE, CHOICES, CONTEXT, FORM, GROUPS, SOURCE, STEPS, WINDOW, Run
from app.ui.view import Page
from focus_core.errors import FocusError
from focus_core.handlers.train import NOVELS, TEXT
from focus_core.maps import principal_axes
from focus_core.trace import Trace

STEP = "train_step"
NAME = "train_name"
_POLL = 1.0
_BALANCES = {"bias": "Bias by load", "sinkhorn": "Sinkhorn", "loss": "Balance loss", "none": "Nothing"}
_FORMS = {"shared": "Shared", "directed": "Directed"}


def render(page: Page) -> None:
    """Draw the tab."""
    controls, picture = st.columns([1, 2.9], gap="large")
    with controls:
        asked = _controls(page)
        run = trainings.find(page, asked)
        _buttons(page, asked, run)
        trainings.show_problem()
        if run is not None and not run.running:
            _keep(run)
        ways.own_adapters()
    with picture:
        if run is None:
            _nothing()
        elif run.running:
            fragment(_progress, page, run.job.key, run_every=_POLL)
        else:
            fragment(_replayed, page, run)


def _controls(page: Page) -> dict[str, Any] | None:
    st.markdown("**A router, trained now**", help="The model's own weights stay as they are; only the router learns.")
    notices: list[str] = []
    for control, (_, options) in CHOICES.items():
        links.check(control, options, trainings.default(control), notices, _LABELS.get(control, str))
    links.check(SOURCE, (NOVELS, TEXT), NOVELS, notices, _SOURCES.get)
    for notice in notices:
        st.warning(plain(notice), icon=":material/link_off:")
    _pick(SOURCE, "Learns from", (NOVELS, TEXT), _SOURCES.get, "Your text's end is held back to measure on.")
    _pick(GROUPS, "Groups", CHOICES[GROUPS][1], str, "K: far tokens see each other only within a group.")
    _menu(STEPS, "Steps", "Times that the router is corrected.")
    with st.expander("More settings", icon=":material/tune:"):
        _menu(CONTEXT, "Tokens a window", "How much text the router reads at a time.")
        _pick(WINDOW, "Window", CHOICES[WINDOW][1], str, "Nearest tokens that are always seen.")
        _pick(
            BALANCE,
            "Groups kept even by",
            CHOICES[BALANCE][1],
            _BALANCES.get,
            "Without it one group may take all tokens: see the tab Collapse.",
        )
        _pick(FORM, "Queries and keys", CHOICES[FORM][1], _FORMS.get, "Directed: a token may look for other groups.")
    return trainings.request(page)


_SOURCES = {NOVELS: "Five novels", TEXT: "This text"}
_LABELS = {BALANCE: _BALANCES.get, FORM: _FORMS.get}


def _pick(key: str, label: str, options: tuple, name: Any, help: str) -> None:
    st.segmented_control(
        label,
        options,
        default=trainings.default(key),
        format_func=name,
        required=True,
        key=key,
        bind="query-params",
        help=help,
    )


def _menu(key: str, label: str, help: str) -> None:
    """A choice of numbers too many to stand side by side in a narrow column."""
    options = CHOICES[key][1]
    st.selectbox(label, options, index=options.index(trainings.default(key)), key=key, bind="query-params", help=help)


def _buttons(page: Page, asked: dict[str, Any] | None, run: Run | None) -> None:
    if asked is None:
        st.caption("There is no text to look at yet: paste one at the left, or choose a shipped one.")
        return
    if run is not None and run.same and run.running:
        return
    if run is not None and run.running:
        st.caption("Shown is a run with other settings that goes on; another one waits for it.")
    if run is not None and run.same and run.job.state == "failed" and run.job.error:
        show_error(f"Training stopped: {run.job.error.message}", run.job.error.hint)
    try:
        cost = page.engine.estimate(trainings.KIND, asked)
    except FocusError as error:
        show_error(error.message, error.hint)
        if asked["source"] == TEXT:
            st.button("Learn from the novels", key="train_novels", on_click=_set, args=(SOURCE, NOVELS))
        if asked["settings"]["context"] > 128:
            st.button("Take 128 tokens a window", key="train_smaller", on_click=_set, args=(CONTEXT, 128))
        return
    whole = run is not None and run.same and run.job.state == "done"
    if whole:
        st.caption(":material/check: This run is whole. Change a setting to train another.")
        return
    goes_on = run is not None and run.same and run.done > 0
    left = cost.seconds * (1 - run.done / run.steps) if goes_on and run is not None else cost.seconds
    label = f"Go on from step {run.done}" if goes_on and run is not None else "Train"
    st.button(
        f"{label} · about {about(left)}",
        type="primary",
        icon=":material/play_arrow:",
        key="train_run",
        width="stretch",
        on_click=trainings.start,
        args=(page, asked),
    )
    st.caption(cost.sentence)


def _set(key: str, value: Any) -> None:
    links.seed(key, value)


def _keep(run: Run) -> None:
    """Save the adapter under a name; it is then in every list."""
    best = words.best(run.history)
    if best is None:
        return
    if kept := trainings.kept_of(run):
        st.success(
            f"Kept as {plain(kept)}; it is at the left under “Trained groups”.", icon=":material/bookmark_added:"
        )
        st.button("Use it", key="train_use", on_click=trainings.use, args=(kept,), width="stretch")
    if st.session_state.get("_train_named") != run.job.key or NAME not in st.session_state:
        st.session_state["_train_named"], st.session_state[NAME] = run.job.key, trainings.name_for(run)
    st.text_input(
        "Keep it as an adapter",
        key=NAME,
        help="Small letters, digits, dots and dashes; it is then in every list, here and on the command line.",
    )
    st.caption(
        words.gain(run.history)
        or f"Kept is step {best['step']}: perplexity {sig3(best['served_ppl'])} with {percent(best['kept_pairs'])} of "
        "the pairs."
    )
    st.caption("Of the trained steps, the one with the lowest served perplexity is kept.")
    st.button("Save", icon=":material/save:", key="train_save", on_click=trainings.keep, args=(run, NAME))


def _beside_shipped() -> str:
    longest = trainings.longest_shipped()
    if longest is None:
        return ""
    return f" beside the shipped one, which read {longest['context']:,} tokens at a time for {longest['steps']} steps"


def _nothing() -> None:
    st.markdown("#### Nothing is trained yet.")
    st.markdown(
        "Press **Train**: a fresh router starts from random groups, and you see its loss, how full each group is, and "
        f"the text and the map re-colour step by step. It is a toy{_beside_shipped()}; what it serves is measured "
        "against dense attention all the way."
    )


# ---- while it runs --------------------------------------------------------------------------------------------------


def _progress(page: Page, key: str) -> None:
    job = page.engine.recall(key)
    if job is None or job.finished:
        st.rerun()
    run = trainings.read(job)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(min(max(job.fraction, 0.0), 1.0), sentence(job, "the training"))
        if st.button("Stop", key="train_stop", icon=":material/stop_circle:"):
            page.engine.cancel(job.id, session=page.session)
            st.rerun()
    _draw(page, run, max(words.looks(run.history), default=None))


def _replayed(page: Page, run: Run) -> None:
    if not run.same:
        model = Path(str(run.job.request["model"])).name if run.job.request["model"] != page.model else ""
        which = f"a run of another model, {plain(model)}" if model else "the run before"
        st.info(f"Shown is {which}; the settings at the left have not been trained.", icon=":material/history:")
    steps = words.looks(run.history)
    shown = steps[-1] if steps else None
    if len(steps) > 1:
        if st.session_state.get(STEP) not in steps:
            st.session_state[STEP] = steps[-1]
        shown = st.select_slider("Replay: after step", steps, key=STEP, help="Step 0 is before any training.")
    _draw(page, run, shown)


def _draw(page: Page, run: Run, step: int | None) -> None:
    st.markdown(f"#### {plain(words.answer(run.history, run.steps))}", help=_HONEST)
    trace = None if step is None else run.look(step)
    layers = int(trace.provenance["layers"]) if trace is not None else page.layer + 1
    layer = min(page.layer, layers - 1)
    router = 0
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        badge("live", f"{run.about.get('texts', '')}; validated on text that it did not learn from.")
        if trace is not None:
            router = min(selection.shown_router(), router_count(trace) - 1)
            st.caption(_look_sentence(run, trace, step or 0, layer, router))
    if trace is not None and has_groups(trace, layer):
        token_strip(strip_data(trace, layer, router=router), key="train_strip")
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown(f"**How full each group is** (layer {layer})", help="Even groups are equal bands.")
        plot(
            words.loads(run.history, layer, router, run.steps, step),
            key="train_loads",
            alt=f"Share of the training tokens in each group of layer {layer} over the steps.",
            name="group loads",
            rows=lambda: words.shares(run.history, layer, router).reset_index(names="step"),
            note=f"{_what(run)} · layer {layer}",
        )
    with right:
        st.markdown("**What it costs** (served perplexity, pairs kept)", help=_HONEST)
        plot(
            words.curves(run.history, run.steps, step),
            key="train_curves",
            alt="Training loss and served perplexity over the steps, dense as a dashed line.",
            name="training curves",
            note=_what(run),
        )
    if trace is not None and has_groups(trace, layer):
        _map(trace, layer, router)


def _what(run: Run) -> str:
    """What was trained, in one line under its figures."""
    return f"{run.job.request['model']} · trained on {run.about.get('texts') or 'one text'} · {run.steps:,} steps"


_HONEST = (
    "Served perplexity: what decoding would have, each token seeing its window, the first tokens and its groups only; "
    "on held-back windows. The loss is of the soft gate, which computes all pairs and is not served."
)


def _look_sentence(run: Run, trace: Trace, step: int, layer: int, router: int) -> str:
    first = run.look(0)
    said = f"The first {len(trace):,} tokens of the text after step {step}"
    if first is None or step == 0:
        return f"{said}, with random groups." if step == 0 else f"{said}."
    return f"{said}: {percent(words.moved(first, trace, layer, router))} of them have left their first group."


def _map(trace: Trace, layer: int, router: int) -> None:
    keys = trace.arrays.get(f"key_points.{layer}")
    if keys is None:
        return
    queries = trace.arrays.get(f"query_points.{layer}")
    points = keys[router][None] if queries is None else [keys[router], queries[router]]
    placed, centroids, _ = principal_axes(points, trace.arrays[f"centroids.{layer}"][router])
    data = scatter_data(
        trace,
        layer,
        router,
        points=placed,
        centroids=centroids,
        table=group_table(trace, layer, router, None),
        parts=None,
    )
    st.markdown(f"**The routing space** (layer {layer}, the two directions in which tokens differ most)")
    map_component.scatter(data, key="train_map")
