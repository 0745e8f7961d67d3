"""The shared sidebar: shows only the controls that the view needs and gives back what they select."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import streamlit as st

from app.ui import afresh, files, links, reopen, selection, settings, texts
from app.ui.engine import get_engine, session_id
from app.ui.guard import drawn_whole
from app.ui.jobs import job_status
from app.ui.preload import preload_charts
from app.ui.view import Page, View
from focus_core.models.shapes import shape_of

OTHER_MODEL = reopen.OTHER_MODEL
OTHER_LABEL = "Another model …"
_GIVEN = "_head_given"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def select(view: View) -> Page:
    """Draw the controls that the view needs and build its Page; what is not shown keeps its last value."""
    engine = get_engine()
    notices: list[str] = []
    drawn_whole()
    links.rewrite(view.key)
    reopen.from_link(engine, notices)
    with st.sidebar:
        model = _model(engine, notices) if view.needs.model else st.session_state.get("_model", _default_model())
        text = texts.choose(notices) if view.needs.text else None
        variant, config, adapter = "focus", {}, None
        if view.needs.variant:
            variant, config, adapter = settings.choose(model, notices)
        page = texts.limited(Page(engine, session_id(), model, text, variant, config, adapter))
        selection.still_opened(page)
        source = None
        if view.needs.text and view.needs.variant:
            source = selection.find(engine, page.request())
            links.write("run", selection.link_of(engine, page.request(), source))
        facts = facts_of(engine, model, source)
        links.drop_notices_of_others(model)
        links.keep_notices(notices)
        of_model: list[str] = []
        layer = _layer(facts, of_model) if view.needs.layer else 0
        links.keep_notices(of_model, model)
        head = _head(facts, of_model, view.needs.head, replace(page, layer=layer)) if view.needs.head else None
        page = replace(page, layer=layer, head=head, source=source, notices=links.keep_notices(of_model, model))
        if view.needs.text and view.needs.variant:
            files.run_files(page)
        preload_charts()
    return page


def _default_model() -> str:
    from focus_core.models.catalog import DEFAULT

    return DEFAULT


def _model(engine: Any, notices: list[str]) -> str:
    from focus_core.models.catalog import list_models

    _forget_failures_once_fetched(engine)
    entries = {entry.name: entry for entry in list_models()}
    _hub_id_of_link(notices)
    options = [*entries, OTHER_MODEL]

    def label(name: str) -> str:
        return entries[name].title if name in entries else OTHER_LABEL

    links.check("model", options, _default_model(), notices, label)
    choice = st.selectbox(
        "Model",
        options,
        index=options.index(_default_model()),
        format_func=label,
        key="model",
        bind="query-params",
        help="Any causal language model of Hugging Face's transformers. The first one is on this machine.",
    )
    model = choice
    if choice == OTHER_MODEL:
        model = st.text_input(
            "Hugging Face id, folder or .gguf file",
            placeholder="HuggingFaceTB/SmolLM2-360M",
            key="model_id",
            persist_state="session",
        ).strip()
        if not model:
            st.caption("Until you name one, the shipped model is used.")
            model = _default_model()
        elif reason := links.refused(model):
            st.warning(reason)
            model = _default_model()
    elif not entries[choice].available:
        st.warning(f"It is not on this machine yet. To get it: `{entries[choice].how_to_get}`")
        if choice == _default_model():
            _fetch(engine)
    elif entries[choice].note:
        st.caption(entries[choice].note)
    st.session_state["_model"] = model
    other = choice == OTHER_MODEL and model != _default_model()
    links.write("hub", model if other and is_hub_id(model) else "")
    links.write("folder", last_part(model) if other and not is_hub_id(model) else "")
    return model


def last_part(model: str) -> str:
    """What a link may say of a folder or file of this machine: its own name, without where it lies."""
    name = re.split(r"[\\/]", model.rstrip("\\/"))[-1]
    return re.sub(r"[^\w .-]", "", name).strip(" .")[:60] or "unnamed"


def is_hub_id(model: str) -> bool:
    """Whether a model's name may stand in a link: an id of Hugging Face's hub, never a path of this machine."""
    return bool(_HUB_ID.fullmatch(model)) and not Path(model).exists()


def _hub_id_of_link(notices: list[str]) -> None:
    raw = links.opening("hub")
    folder = links.opening("folder")
    if raw and is_hub_id(raw):
        links.seed("model", OTHER_MODEL)
        st.session_state["model_id"] = raw
        return
    if raw:
        notices.append(f"In the link, hub {raw[:60]} is no model id; showing the shipped model.")
        return
    asked = st.query_params.get("model", "").casefold() in (OTHER_MODEL, OTHER_LABEL.casefold())
    if st.session_state.get("model_id") or "_model" in st.session_state or not (folder or asked):
        return
    meant = f"the model “{folder[:60]}”" if folder else "a model that is not in the list, and does not name it"
    notices.append(
        f"The link means {meant}: where a model lies on a machine never stands in a link. Name its folder at the left; "
        "until then the shipped model is shown."
    )


def _fetch(engine: Any) -> None:
    """One button that gets the default model's package, and how far that is."""
    job = job_status(
        engine, st.session_state.get("_fetch"), key="fetch", what="getting the model", session=session_id()
    )
    if job is None or job.finished:
        st.button("Get it (93 MB)", icon=":material/download:", key="fetch_now", on_click=_ask_for_it, args=(engine,))


def _ask_for_it(engine: Any) -> None:
    st.session_state["_fetch"] = engine.submit("fetch", {}, session=session_id()).id


def _forget_failures_once_fetched(engine: Any) -> None:
    """What failed for want of the model may be asked for again."""
    job_id = st.session_state.get("_fetch")
    job = engine.get(job_id) if job_id else None
    if job is not None and job.state == "done":
        for key in ("_fetch", "_prepare", "_runs"):
            st.session_state.pop(key, None)


def facts_of(engine: Any, model: str, source: selection.Source | None) -> dict[str, Any] | None:
    """``layers`` and ``heads`` of a model, from a Trace, its files or its preparation; None while nothing says."""
    if source and (source.current or source.trace.provenance.get("model") == model):
        return source.trace.provenance
    if shape := shape_of(model):
        return {"layers": shape.layers, "heads": shape.heads}
    job_id = st.session_state.get("_prepare", {}).get(model)
    job = engine.get(job_id) if job_id else None
    return (job.result or {}).get("facts") if job and job.state == "done" else None


def _layer(facts: dict[str, Any] | None, notices: list[str]) -> int:
    if facts is None:
        st.slider("Layer", 0, 1, 0, disabled=True, help="The model's layers are known after it has loaded.")
        return 0
    layers = int(facts["layers"])
    if layers == 1:
        return 0
    # The same for every run, since a link leaves the default out.
    default = afresh.LAYER
    links.check("layer", range(layers), default, notices)
    asked = int(st.session_state.get("layer") or 0)
    if asked >= layers:
        notices.append(f"This model has {layers} layers: layer {asked} does not exist; showing {layers - 1}.")
        st.session_state["layer"] = layers - 1
    return st.slider(
        "Layer",
        0,
        layers - 1,
        default,
        key="layer",
        bind="query-params",
        help="Groups are learned for each layer: look how they change from the first to the last.",
    )


def _head(
    facts: dict[str, Any] | None, notices: list[str], usual: bool | Callable[[Page], int], page: Page
) -> int | None:
    heads = int(facts["heads"]) if facts else 1
    one = callable(usual)
    options = [*([] if one else ["all"]), *map(str, range(heads))]

    def label(head: str) -> str:
        return "All heads (mean)" if head == "all" else f"Head {head}"

    if callable(usual):
        _give_head(lambda: min(usual(page), heads - 1), label("all"))
    elif head_is_given():
        # What a page of one head took for itself is nobody's choice on the others.
        st.session_state["head"] = "all"
        forget_given_head()
    links.check("head", options, options[0], notices, label)
    if facts and (asked := st.session_state.get("head", options[0])) not in options:
        shown = "head 0" if one else "all heads"
        notices.append(f"This model has {heads} query heads: head {asked} does not exist; showing {shown}.")
        st.session_state["head"] = options[0]
    choice = st.selectbox(
        "Attention head",
        options,
        format_func=label,
        key="head",
        bind="query-params",
        help="Whose dense attention is compared with what is kept.",
        on_change=forget_given_head,
    )
    return None if choice in (None, "all") else int(choice)


def _give_head(usual: Callable[[], int], every: str) -> None:
    """Choose the head that a page of one head shows while nobody has chosen any."""
    if str(st.query_params.get("head", "")).casefold() in ("all", every.casefold()):
        del st.query_params["head"]
    asked = st.session_state.get("head", st.query_params.get("head"))
    if asked in (None, "all") or head_is_given():
        st.session_state["head"] = st.session_state[_GIVEN] = str(usual())


def head_is_given() -> bool:
    """Whether the head in the control is a page's own, and nobody's choice."""
    given = st.session_state.get(_GIVEN)
    return given is not None and st.session_state.get("head", given) == given


def forget_given_head() -> None:
    """Take the head in the control for someone's choice (a callback of what sets it)."""
    st.session_state.pop(_GIVEN, None)
