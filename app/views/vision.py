"""What changes when the softmax is learned? One image in two vision transformers, softmax and KArAt, side by side."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import streamlit as st

from analysis import vision as words
from analysis.numbers import duration
from analysis.vision import Looked
from app.ui import links
from app.ui.badges import badge
from app.ui.export import document, saveable
from app.ui.guard import guarded, plain
from app.ui.jobs import job_status
from app.ui.view import Needs, Page, View
from app.ui.vision import fewer, functions, heads, images, source, state, training
from app.ui.vision.maps import Tile, attention_maps, maps_data, part
from app.ui.vision.says import says
from app.ui.vision.source import Picture
from app.ui.vision.state import Shown
from focus_core.vision.models import VisionModelInfo

TABS = ["Learned functions", "All heads", "Training", "Fewer pairs"]
RECORDED = TABS[2:]
_NARROW = """<style>@media (max-width:1050px){.st-key-vision_models{flex-wrap:wrap}
.st-key-vision_models>div:first-child{min-width:100%}}</style>"""
WAIT_SECONDS = 0.6
"""A look takes less; the page waits so long before it says that it waits."""


def render(page: Page) -> None:
    """Draw the page."""
    st.title("What changes when the softmax is learned?", anchor=False)
    infos = source.listed()
    notices: list[str] = []
    sentence, notice_box = st.container(), st.container(key="vision_notices")
    tabs = TABS if infos else RECORDED
    links.check(state.TAB, tabs, tabs[0], notices)
    if not infos:
        with sentence:
            st.markdown("#### KArAt replaces softmax by functions that a model learns, one for every key.")
        _say(notice_box, page, notices)
        st.info(
            "No trained vision model is on this machine: `python -m data.build.vision digits` and then "
            "`python -m data.build.vision unpack` train and place small ones on a CPU. What was recorded is below.",
            icon=":material/image_not_supported:",
        )
        _tabs({TABS[2]: training.render, TABS[3]: fewer.render})
        _explain(None, None)
        return
    _look(page, infos, notices, sentence, notice_box)


def _look(page: Page, infos: list[VisionModelInfo], notices: list[str], sentence: Any, notice_box: Any) -> None:
    st.html(_NARROW)
    strip = st.container()
    controls = st.container(horizontal=True, vertical_alignment="bottom", gap="medium", key="vision_controls")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="vision_models"):
        about = st.container(
            horizontal=True, vertical_alignment="center", gap="small", width="stretch", key="vision_about"
        )
        pair = state.models(infos, notices)
    with controls:
        shown = state.shown(pair, notices)
    with strip:
        picture = images.choose(pair[0], notices)
    _say(notice_box, page, notices)
    looked: list[Looked] | None = None
    if picture is not None:
        looked = _main(page, pair, picture, shown, sentence, about)
    else:
        with sentence:
            st.markdown("#### Open an image, and see what softmax and KArAt attend to on it.")
    draw: dict[str, Any] = {}
    if looked is not None:
        note = _note(pair, picture)
        draw = {
            TABS[0]: partial(functions.render, looked, pair, shown, note),
            TABS[1]: partial(heads.render, looked, shown, note),
        }
    else:
        draw = dict.fromkeys(TABS[:2], _not_yet)
    _tabs({**draw, TABS[2]: training.render, TABS[3]: fewer.render})
    _explain(looked, shown)


def _say(box: Any, page: Page, notices: list[str]) -> None:
    with box:
        links.show_notices(dict.fromkeys([*page.notices, *links.keep_notices(notices)]))


def _not_yet() -> None:
    st.caption("Drawn when the models have looked at the image.")


def _main(
    page: Page, pair: list[VisionModelInfo], picture: Picture, shown: Shown, sentence: Any, about: Any
) -> list[Looked] | None:
    request = source.request_of(pair, picture)
    job = source.job_of(page, request)
    # A worker that has yet to start needs seconds: then the image is drawn at once.
    until = time.monotonic() + (WAIT_SECONDS if page.engine.status()["alive"] else 0.0)
    while not job.finished and time.monotonic() < until:
        time.sleep(0.02)
    if job.state != "done":
        with sentence:
            names = " and ".join(info.title for info in pair)
            st.markdown(f"#### {plain(names)} look at the image.")
        with about:
            st.caption(plain(picture.title), width="content")
        job_status(page.engine, job.id, key="vision_look", what="the look", session=page.session)
        attention_maps(maps_data(picture.pixels, [], None, grid=shown.grid, unit="", picked=""), key=state.MAPS)
        return None
    looked = source.looked(job.result, pair)
    with sentence:
        said = words.answer(looked, picture.label, shown.layer, shown.head, shown.query)
        st.markdown(f"#### {plain(said)}", help=plain(f"{shown.where}, {shown.whose}'s row.".capitalize()))
    _picture(pair, picture, looked, shown)
    with about:
        badge("live", _trained(pair))
        st.caption(plain(f"{picture.title}; looked at in {duration(1e3 * job.result['seconds'])}"), width="content")
    says(looked, pair, shown, picture.label)
    return looked


def _trained(pair: list[VisionModelInfo]) -> str:
    first = pair[0]
    grid = first.config.image // first.config.patch
    data = {"fashion": "Fashion-MNIST", "digits": "scikit-learn's digits"}.get(first.data, first.data)
    patch = f"{first.config.patch} x {first.config.patch}"
    return f"Trained on {data}; {grid * grid} patches of {patch} pixels and a class token."


def _picture(pair: list[VisionModelInfo], picture: Picture, looked: list[Looked], shown: Shown) -> None:
    if shown.rollout:
        tiles = [Tile(m.word, m.rollout, None) for m in looked]
        data = maps_data(picture.pixels, tiles, None, grid=shown.grid, unit="%", picked="rollout over all layers")
    else:
        rows = [m.row(shown.layer, shown.head, shown.query, shown.unit) for m in looked]
        tiles = [
            Tile(m.word, row[1:].reshape(m.grid, m.grid), float(row[0])) for m, row in zip(looked, rows, strict=True)
        ]
        unit = "%" if shown.unit == words.SHARE else ""
        data = maps_data(picture.pixels, tiles, shown.query, grid=shown.grid, unit=unit, picked=f"row of {shown.whose}")
    title = f"{picture.title}: what is attended to, {'rollout' if shown.rollout else shown.where}"
    with saveable(
        key="vision_picture",
        name=title,
        page=lambda: document(title, part(data), note=_note(pair, picture)),
        rows=lambda: words.table(looked, shown.layer, shown.head, shown.query),
    ):
        attention_maps(data, key=state.MAPS)


def _note(pair: list[VisionModelInfo], picture: Picture | None) -> str:
    names = ", ".join(f"{info.title} (seed {info.seed}, {100 * info.accuracy:.1f} % right)" for info in pair)
    return f"{picture.title if picture else ''}; {names}."


def _tabs(draw: dict[str, Any]) -> None:
    names = list(draw)
    for tab, name in zip(st.tabs(names, key=state.TAB, on_change="rerun", bind="query-params"), names, strict=True):
        with tab:
            if tab.open:
                guarded(draw[name])


def _explain(looked: list[Looked] | None, shown: Shown | None) -> None:
    with st.expander("What am I looking at?", icon=":material/help:"):
        st.markdown(
            "A vision transformer cuts an image into patches, and every patch gathers from the others by weights made "
            "of scores. Softmax turns a row's scores into weights that are never negative and add up to 1; KArAt "
            "learns the functions instead, so that a weight may take away (orange) and a row may add up to anything. "
            "Blue patches are added, and the class token's row is what the prediction reads."
        )
        st.latex(
            r"w_{ij} = \frac{e^{a_{ij}}}{\sum_k e^{a_{ik}}} \qquad \text{or} \qquad "
            r"w_{ij} = \sum_{p=1}^{r} W_{jp} \sum_{q=1}^{N} \sum_{m=1}^{G} "
            r"\alpha_{pqm} \cos(m\,a_{iq}) + \beta_{pqm} \sin(m\,a_{iq})"
        )
        learned = next((m for m in looked or [] if m.kind == "karat"), None)
        if learned is not None and shown is not None:
            st.button(
                "Try: the row of the patch that KArAt takes away most",
                key="vision_try",
                icon=":material/lightbulb:",
                on_click=_take_away,
                args=(words.most_negative(learned, shown.layer, shown.head),),
            )


def _take_away(token: int) -> None:
    """Show that patch's row, as a row."""
    st.session_state[state.SHOW] = state.ROW
    state.pick(token)


VIEW = View(
    key="vision",
    title="Vision",
    section="Methods",
    icon=":material/image_search:",
    needs=Needs(),
    render=render,
    order=40,
)
