"""The tab of all heads: measures by layer and head, a ranking, and the heads that look alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st

from analysis.captions import what_ran
from analysis.heads import MEASURES, Measure, ranked, recorded, scale, similar, values
from app.ui import links, runs
from app.ui.export import document, saveable
from app.ui.grid import Panel, grid_data, head_grid, part
from app.ui.guard import plain
from app.ui.view import Page
from focus_core.trace import Trace

_SHORT = {
    "Pairs kept": "Pairs, %",
    "Dense attention kept": "Dense, %",
    "Entropy of dense attention": "Entropy",
    "Attention on the first tokens": "First, %",
}
"""The page beside the similar heads holds six columns only with short headings; pointing at one gives the whole."""
_NARROW = 64
_ORDER = {"high": "Highest first", "low": "Lowest first"}


def render(page: Page, trace: Trace, layer: int) -> None:
    """Draw the tab."""
    have = recorded(trace)
    if trace.provenance["variant"] == "dense":
        have = [m for m in have if m.field not in ("kept_pairs", "mass_kept")]
    if not have:
        st.info("This run recorded no numbers of single heads: with dense attention every head keeps every pair.")
        _missing(page, trace)
        return
    picked = (layer, page.head)
    data = grid_data(panels_of(trace, have), picked)
    st.caption("Every head of the model at once. Click one, and the mask above and the sidebar follow.")
    name = f"Layers and heads, {trace.provenance['variant']}"
    with saveable(
        key="head_grid",
        name=name,
        page=lambda: document(name, part(data), note=what_ran(trace)),
        rows=lambda: table(trace),
    ):
        head_grid(data, key="head_grid", on_pick=choose)
    _missing(page, trace)
    left, right = st.columns([1.7, 1], gap="medium")
    with left:
        _finder(trace, have)
    with right:
        _similar(trace, layer, page.head)


def panels_of(trace: Trace, have: Sequence[Measure]) -> list[Panel]:
    """One panel a measure, each on the scale of its own values."""
    return [
        Panel(m.title, m.meaning, m.unit, found, *scale(found))
        for m in have
        if (found := values(trace, m.field)) is not None
    ]


def choose(layer: int, head: int) -> None:
    """Select a layer and head in the sidebar (a callback)."""
    # The sidebar's report draws this tab's panels: at the top, each would import the other.
    from app.ui import sidebar

    st.session_state["layer"] = layer
    st.session_state["head"] = str(head)
    sidebar.forget_given_head()


def table(trace: Trace) -> pd.DataFrame:
    """One row a head with every measure that was recorded; shares are 0 to 1."""
    layers, heads = int(trace.provenance["layers"]), int(trace.provenance["heads"])
    rows = pd.DataFrame({"layer": np.repeat(np.arange(layers), heads), "head": np.tile(np.arange(heads), layers)})
    for measure in recorded(trace):
        rows[measure.field] = values(trace, measure.field).ravel()
    return rows


def _missing(page: Page, trace: Trace) -> None:
    gone = [m.title.lower() for m in MEASURES.values() if values(trace, m.field) is None]
    if gone:
        st.caption(f"This recording is older than {' and '.join(gone)}: a run now has them.")
        if page.source and page.source.kind != "live":
            st.button("Run it now", key="heads_run", icon=":material/play_arrow:", on_click=_rerun, args=(page,))


def _rerun(page: Page) -> None:
    runs.try_again(page)
    request = page.request()
    runs.selection.remember(request, page.engine.submit("trace", request, session=page.session).id)


def _finder(trace: Trace, have: list) -> None:
    st.markdown("**Find heads**", help="Ranks all heads by one number. Click a row to look at that head.")
    fields = [m.field for m in have]
    titles = {m.field: m.title for m in have}
    notices: list[str] = []
    links.check("rank", fields, fields[0], notices, titles.get)
    links.check("rank_way", _ORDER, "high", notices, _ORDER.get)
    if st.session_state.get("rank") not in (None, *fields):
        st.session_state["rank"] = fields[0]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        field = st.selectbox("Rank by", fields, format_func=titles.get, key="rank", bind="query-params")
        way = st.segmented_control(
            "Order",
            list(_ORDER),
            default="high",
            required=True,
            format_func=_ORDER.get,
            key="rank_way",
            bind="query-params",
            label_visibility="collapsed",
        )
    for notice in notices:
        st.caption(plain(notice))
    measure = MEASURES[field]
    st.caption(f"{measure.meaning} Sorted by: {getattr(measure, way or 'high')}.")
    order = ranked(trace, field, highest=way != "low")
    rows = pd.DataFrame({"Layer": [at[0] for at in order], "Head": [at[1] for at in order]})
    for each in have:
        found = values(trace, each.field)
        factor = 100 if each.unit == "%" else 1
        rows[each.title] = [factor * found[at] for at in order]
    _table(rows, {m.title: m.unit for m in have}, key=f"finder_{field}_{way}", order=order)


def _similar(trace: Trace, layer: int, head: int | None) -> None:
    st.markdown(
        "**Heads that look alike**",
        help="Cosine similarity of two heads' dense attention over the same queries: 1 is the same picture. "
        + str(trace.provenance.get("similar_how") or ""),
    )
    if "similar" not in trace.arrays:
        st.caption("This recording does not hold which heads look alike; a run of a text of this size does.")
        return
    if head is None:
        st.caption(f"All heads are shown at once; this list is for layer {layer}, head 0. Click a head to choose it.")
    near = similar(trace, layer, head or 0, 12)
    rows = pd.DataFrame(near, columns=["Layer", "Head", "Similarity"])
    st.caption(f"Most like layer {layer}, head {head or 0}.")
    _table(rows, {"Similarity": ""}, key=f"similar_{layer}_{head}", order=[(at, h) for at, h, _ in near])


def _table(rows: pd.DataFrame, units: dict[str, str], *, key: str, order: list[tuple[int, int]]) -> None:
    columns = {
        name: st.column_config.NumberColumn(
            _SHORT.get(name, name),
            format="%.3f" if not unit else "%.1f" if unit == "%" else "%.2f",
            width="small" if len(units) > 1 else None,
            help=f"{name}, {unit}" if unit else name,
        )
        for name, unit in units.items()
    }
    columns |= {name: st.column_config.NumberColumn(width=_NARROW) for name in ("Layer", "Head")}
    st.dataframe(
        rows,
        key=key,
        hide_index=True,
        height=320,
        column_config=columns,
        selection_mode="single-row",
        on_select=lambda: _chosen(key, order),
    )


def _chosen(key: str, order: list[tuple[int, int]]) -> None:
    rows = st.session_state[key]["selection"]["rows"]
    if rows:
        choose(*order[rows[0]])
