"""The map: the routing space of one layer and router, drawn at once and made better by a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from analysis.captions import what_ran
from analysis.groups import describe
from analysis.palette import group_label
from app.ui import links, selection
from app.ui import scatter as component
from app.ui.badges import badge
from app.ui.bars import shown as readable
from app.ui.export import saveable
from app.ui.groups import shown as page_state
from app.ui.groups.lines import both_sides
from app.ui.groups.shown import Shown
from app.ui.guard import fragment, plain
from app.ui.jobs import begin, job_status, priced
from app.ui.scatter.data import COLOURS, MAX_SHOWN, scatter_data
from app.ui.view import Page
from focus_core.errors import FocusError
from focus_core.maps import principal_axes
from focus_core.trace import Trace

KEY = "groups_map"
HIDES = ("are", "look", "centroids")
"""What can be hidden in the map, as a link names it."""
_AXES = "_map_axes"


@dataclass(frozen=True)
class Placed:
    """Coordinates and how they were made.

    Attributes:
        points: (P, N, 2). centroids: (K, 2).
        method: ``UMAP`` or ``PCA``. origin: a badge's word. detail: said when the badge is pointed at.
    """

    points: np.ndarray
    centroids: np.ndarray
    method: str
    origin: str
    detail: str


def render(page: Page) -> None:
    """Draw the tab."""
    fragment(_draw, page)


def _draw(page: Page) -> None:
    shown = page_state.shown(page)
    if shown is None:
        page_state.no_groups(page)
        return
    placed = place(page, shown)
    if placed is None:
        st.info(
            "This run was recorded without its routing space. Run it again to see the map; "
            "the other tabs need no coordinates.",
            icon=":material/scatter_plot:",
        )
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge(placed.method, placed.detail)
        if placed.origin:
            badge(placed.origin)
        with st.container(key="groups_umap", width="content"):
            _button(page, shown, placed)
    data = dict(_packed(shown.identity, shown.layer, shown.router, placed.method, placed.origin, shown, placed))
    # The colour that the link named: later ones are the browser's own, so that the data stays the same.
    data["colour"] = st.session_state.get("_colour", "group")
    data["look"] = st.session_state.get("_map_look")
    serial = _serial()
    data["select"] = [*_sent(serial), serial]
    with saveable(
        key=KEY,
        name=f"token groups {shown.where}",
        page=lambda: component.page(data, f"Token groups: {shown.where}", _note(shown, placed)),
        rows=lambda: coordinates(shown, placed),
    ):
        after = component.scatter(data, key=KEY)
    if after and after["serial"] == data["select"][2]:
        page_state.keep(after["group"], after["token"])
    page_state.to_link(shown.trace, page.source.current)
    st.caption(_meaning(placed))
    with st.container(key="groups_umap_job"):
        _progress(page, shown)
    if len(shown.trace) > MAX_SHOWN:
        st.caption(f"The map shows the first {MAX_SHOWN:,} of {len(shown.trace):,} tokens.")
    _selected(shown)


def _meaning(placed: Placed) -> str:
    if placed.method == "UMAP":
        return (
            "Neighbours are tokens that the router treats alike. How far apart islands lie, how large they are and "
            "where the axes point means nothing."
        )
    return "The two directions in which the tokens differ most: true distances, but many others are not seen."


def _note(shown: Shown, placed: Placed) -> str:
    return f"{what_ran(shown.trace, shown.layer)} · {placed.method}"


# ---- coordinates ----------------------------------------------------------------------------------------------------


def place(page: Page, shown: Shown) -> Placed | None:
    """The best coordinates there are: the Trace's own, the recording's, a finished job's, else principal axes now."""
    trace, layer, router = shown.trace, shown.layer, shown.router
    if f"map.{layer}" in trace.arrays:
        return _of_trace(trace, layer, router, page.source.kind)
    recorded = page.source.recorded
    if recorded is not None and f"map.{layer}" in recorded.arrays and _same_sets(trace, recorded, layer, router):
        return _of_trace(recorded, layer, router, "recorded")
    job = _job(page, shown)
    path = (job.result or {}).get("map") if job is not None and job.state == "done" else None
    if path and Path(path).exists() and not st.session_state.get(_AXES):
        with np.load(path, allow_pickle=False) as found:
            points, centroids = found["points"], found["centroids"]
        if job.result["method"] != "umap":
            detail = "The text has too few different tokens for UMAP's neighbourhoods."
            return Placed(points, centroids, "PCA", "live", detail)
        detail = f"Fitted on {int(job.result['fitted']):,} of {len(trace):,} tokens, the others placed beside them."
        return Placed(points, centroids, "UMAP", "live", detail)
    axes = _axes(shown.identity, layer, router, trace)
    if axes is None:
        return None
    points, centroids, share = axes
    detail = f"These two show {100 * float(share.sum()):.0f} % of the variance."
    return Placed(points, centroids, "PCA", "", detail)


def _of_trace(trace: Trace, layer: int, router: int, origin: str) -> Placed:
    points = trace.arrays[f"map.{layer}"][router].astype(np.float32)
    centroids = trace.arrays[f"map_centroids.{layer}"][router].astype(np.float32)
    return Placed(points, centroids, "UMAP", origin, "Keys and queries were placed together.")


def _same_sets(a: Trace, b: Trace, layer: int, router: int) -> bool:
    return all(
        a.arrays[name].shape == b.arrays[name].shape
        and np.array_equal(a.arrays[name][layer, router], b.arrays[name][layer, router])
        for name in ("key_bits", "query_bits")
    )


@st.cache_resource(max_entries=32, show_spinner=False)
def _axes(identity: str, layer: int, router: int, _trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    space = _trace.routing_points(layer)
    if space is None:
        return None
    return principal_axes(space[:, router].astype(np.float32), _trace.arrays[f"centroids.{layer}"][router])


def coordinates(shown: Shown, placed: Placed) -> pd.DataFrame:
    """The map as a table: one row a token and side."""
    names = ("is", "looks for")[: len(placed.points)]
    trace = shown.trace
    sets = trace.arrays["key_bits"], trace.arrays["query_bits"]
    frames = []
    for name, points, bits in zip(names, placed.points, sets, strict=False):
        groups = [
            " ".join(group_label(g) for g in range(64) if int(b) >> g & 1) for b in bits[shown.layer, shown.router]
        ]
        frames.append(
            pd.DataFrame(
                {
                    "token": np.arange(len(trace)) + 1,
                    "text": trace.tokens,
                    "side": name,
                    "groups": groups,
                    "x": points[:, 0],
                    "y": points[:, 1],
                }
            )
        )
    return pd.concat(frames)


# ---- the job --------------------------------------------------------------------------------------------------------


def _request(page: Page, shown: Shown) -> dict[str, Any]:
    return {"trace": page.source.path, "layer": shown.layer, "router": shown.router}


def _job(page: Page, shown: Shown) -> Any:
    """The map's job: this session's, else one that was done before; None when there is none."""
    request = _request(page, shown)
    if job_id := selection.asked(request):
        return page.engine.get(job_id)
    known: dict[str, Any] = st.session_state.setdefault("_maps", {})
    mark = selection.fingerprint(request)
    if mark not in known:
        key = page.engine.key("map", request)
        found = page.engine.find(key) if key else None
        known[mark] = found if found is not None and found.state == "done" else None
    return known[mark]


def _button(page: Page, shown: Shown, placed: Placed) -> None:
    """Between the two ways of placing; the same height whatever it says, so that the map stays where it is."""
    request = _request(page, shown)
    if f"map.{shown.layer}" in shown.trace.arrays or placed.origin == "recorded":
        return
    job = _job(page, shown)
    if job is not None and job.state == "done":
        axes = bool(st.session_state.get(_AXES))
        label = "UMAP" if axes else "Principal axes"
        st.button(label, key="umap_turn", icon=":material/scatter_plot:", on_click=_turn, args=(not axes,))
        return
    if job is not None and not job.finished:
        st.button("UMAP …", key="umap_waits", icon=":material/scatter_plot:", disabled=True)
        return
    try:
        cost = page.engine.estimate("map", request)
    except FocusError as error:
        st.button("UMAP", key="umap_cannot", icon=":material/scatter_plot:", disabled=True, help=str(error))
        return
    if st.button(
        priced("UMAP", cost), key="umap_now", icon=":material/scatter_plot:", help="Places alike tokens together."
    ):
        st.session_state.pop(_AXES, None)
        begin(page, "map", request)


def _turn(axes: bool) -> None:
    st.session_state[_AXES] = axes


def _progress(page: Page, shown: Shown) -> None:
    """How far the map is, below the picture."""
    job_id = selection.asked(_request(page, shown))
    job_status(page.engine, job_id, key="umap_job", what="the map", session=page.session)


# ---- data and selection ---------------------------------------------------------------------------------------------


@st.cache_resource(max_entries=16, show_spinner=False)
def _packed(
    identity: str, layer: int, router: int, method: str, origin: str, _shown: Shown, _placed: Placed
) -> dict[str, Any]:
    return scatter_data(
        _shown.trace,
        layer,
        router,
        points=_placed.points,
        centroids=_placed.centroids,
        table=_shown.table(),
        parts=_shown.parts,
    )


def from_link(notices: list[str]) -> None:
    """Note the colour, zoom and hidden marks that the opening link names.

    The map keeps the address up to date by itself, without a rerun; what cannot be is taken out of it here.
    """
    if "_colour" in st.session_state:
        return
    raw = st.query_params.get("colour", "group")
    if raw not in COLOURS:
        notices.append(f"In the link, colour {raw[:60]} does not exist; showing group.")
        st.query_params.pop("colour", None)
        raw = "group"
    st.session_state["_colour"] = raw
    look: dict[str, Any] = {}
    if raw := st.query_params.get("zoom", ""):
        if (view := view_of(raw)) is None:
            notices.append(f"In the link, zoom {raw[:60]} does not exist; showing the whole map.")
            st.query_params.pop("zoom", None)
        else:
            look["view"] = view
    if raw := st.query_params.get("hide", ""):
        hidden = [HIDES.index(name) for name in raw.split(",") if name in HIDES]
        for name in raw.split(","):
            if name not in HIDES:
                notices.append(f"In the link, hide {name[:60]} does not exist; it is left out.")
        if not hidden:
            st.query_params.pop("hide", None)
        look["show"] = [i not in hidden for i in range(len(HIDES))]
    st.session_state["_map_look"] = look or None


def view_of(raw: str) -> list[float] | None:
    """``512-480-25`` as the middle of the view, in thousandths of the map, and its zoom in tenths; None otherwise."""
    parts = raw.split("-")
    found = [n for part, most in zip(parts, (1000, 1000, 600), strict=False) if (n := links.number(part, most))]
    if len(parts) != 3 or len(found) != 3 or found[2] < 10:
        return None
    return [found[0] / 1000, found[1] / 1000, found[2] / 10]


def _sent(serial: int) -> tuple[int | None, int | None]:
    """The selection that goes with a number: what is selected in the map since must not change the data."""
    sent = st.session_state.get("_sent_pick")
    if sent is None or sent[0] != serial:
        sent = st.session_state["_sent_pick"] = (serial, page_state.picked())
    return sent[1]


def _serial() -> int:
    """A new number where the map was made anew, so that it takes the selection again."""
    if KEY not in st.session_state:
        page_state.pick(*page_state.picked())
    return int(st.session_state.get("_pick_serial", 0))


def _selected(shown: Shown) -> None:
    group, token = page_state.picked()
    if token is not None and token < len(shown.trace):
        text = plain(readable(shown.trace.tokens[token]))
        st.markdown(f"**“{text}”** (token {token + 1:,}) {describe(shown.trace, token, shown.layer, shown.router)}.")
    if group is None:
        st.caption("Select a group, in the map or at its right, to read its tokens in context.")
        return
    both_sides(shown, group)
