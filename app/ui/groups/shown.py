"""What the tabs share: the shown router, the selected group and token, the tables, and what is said without groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import streamlit as st

from analysis.agreement import Agreement, agreement
from analysis.groups import SIDES, Group, group_count, group_table, has_groups, is_directed
from analysis.palette import group_label
from analysis.parts import Parts, parts_of
from app.ui import links, runs, selection
from app.ui.settings import variant_label
from app.ui.strip.data import router_count
from app.ui.view import Page
from focus_core import assets
from focus_core.trace import Trace

TAB = "groups_tab"
TRAIN = "Train"
SIDE, MEASURE, SCOPE = "side", "measure", "routers"
SIDE_NAMES = {"keys": "What tokens are", "queries": "What they look for"}
SCOPES = {"mean": "Mean of routers", "one": "This router"}


@dataclass(frozen=True)
class Shown:
    """One layer and router of a Trace.

    Attributes:
        trace: the run. identity: names it for caches.
        layer: shown layer. router: shown router.
        parts: parts of speech of its tokens; None when there are none.
    """

    trace: Trace
    identity: str
    layer: int
    router: int
    parts: Parts | None

    @property
    def where(self) -> str:
        """``layer 1, KV head 0``."""
        return f"layer {self.layer}" + (f", KV head {self.router}" if router_count(self.trace) > 1 else "")

    @property
    def sides(self) -> tuple[str, ...]:
        """Keys, and queries where the router is directed."""
        return SIDES if is_directed(self.trace) else SIDES[:1]

    def table(self, side: str = "keys") -> list[Group]:
        """The groups of one side."""
        return _table(self.identity, self.layer, self.router, side, self.trace, self.parts)


def shown(page: Page) -> Shown | None:
    """What the tabs draw; None where the shown layer of the Trace has no groups."""
    trace = page.trace
    if trace is None:
        return None
    layer = min(page.layer, int(trace.provenance["layers"]) - 1)
    if not has_groups(trace, layer):
        return None
    name = identity(page)
    return Shown(trace, name, layer, min(router(), router_count(trace) - 1), _parts(name, trace))


def identity(page: Page) -> str:
    """Names the shown Trace for caches."""
    trace = page.trace
    return f"{page.source.path} {trace.provenance.get('time')} {len(trace)}"


@st.cache_resource(max_entries=6, show_spinner=False)
def _parts(identity: str, _trace: Trace) -> Parts | None:
    return parts_of(_trace)


@st.cache_resource(max_entries=64, show_spinner=False)
def _table(identity: str, layer: int, router: int, side: str, _trace: Trace, _parts: Parts | None) -> list[Group]:
    return group_table(_trace, layer, router, _parts, side)


@st.cache_resource(max_entries=32, show_spinner=False)
def here(
    identity: str,
    layer: int,
    router: int,
    clustered: bool,
    _trace: Trace,
    _parts: Parts,
    _clusters: np.ndarray | None,
) -> Agreement | None:
    """Agreement of the keys of the shown layer and router alone: quick enough for the page's first sentence."""
    return agreement(_trace, _parts, router=router, layers=[layer], kmeans=_clusters, bootstraps=100)


# ---- controls -------------------------------------------------------------------------------------------------------


def router() -> int:
    """The shown router, as the control or the link says."""
    return selection.shown_router()


def router_label(number: int) -> str:
    """A router as its control names it."""
    return f"Groups of KV head {number}"


def router_control(trace: Trace) -> None:
    """The menu of routers, where there are several."""
    count = router_count(trace)
    if count < 2:
        return
    selection.keep_router(count)
    each = int(trace.provenance["heads"]) // int(trace.provenance["kv_heads"])
    chosen = st.selectbox(
        "Router",
        range(count),
        format_func=router_label,
        key="router",
        persist_state="session",
        label_visibility="collapsed",
        width=210,
        help=f"A KV head holds keys and values for {each} query heads; its router puts each token into groups for it.",
    )
    links.write("router", str(chosen) if chosen else "")


def picked() -> tuple[int | None, int | None]:
    """The selected (group, token)."""
    return st.session_state.get("_group"), st.session_state.get("_pin")


def pick(group: int | None, token: int | None = None) -> None:
    """Select a group, or a token with its group, everywhere (also a button's callback)."""
    st.session_state["_group"], st.session_state["_pin"] = group, token
    st.session_state["_pick_serial"] = st.session_state.get("_pick_serial", 0) + 1


def keep(group: int | None, token: int | None) -> None:
    """Note what the map selected itself."""
    st.session_state["_group"], st.session_state["_pin"] = group, token


def from_link(trace: Trace, current: bool, notices: list[str]) -> None:
    """Take the router, group and token that the opening link names; what does not exist is said."""
    links.check("router", range(router_count(trace)), 0, notices, router_label, bound=False)
    letters = [group_label(g) for g in range(group_count(trace))] if "key_bits" in trace.arrays else []
    if raw := links.opening("group"):
        if raw in letters:
            pick(letters.index(raw), st.session_state.get("_pin"))
        else:
            notices.append(f"In the link, group {raw[:60]} does not exist; none is selected.")
    if (raw := links.opening("tok")) and current:
        if token := links.number(raw, len(trace)):
            pick(st.session_state.get("_group"), token - 1)
        else:
            notices.append(f"In the link, token {raw[:60]} does not exist; none is held.")


def to_link(trace: Trace, current: bool) -> None:
    """Put the selection into the address, dropping what this Trace does not have."""
    group, token = picked()
    if "key_bits" not in trace.arrays or (group is not None and group >= group_count(trace)):
        group = None
    if token is not None and token >= len(trace):
        token = None
    keep(group, token)
    links.write("group", "" if group is None else group_label(group))
    if current:
        links.write("tok", "" if token is None else str(token + 1))


# ---- without groups -------------------------------------------------------------------------------------------------


def no_groups(page: Page) -> None:
    """Say why there is nothing to draw, and what would give groups."""
    trace = page.trace
    if trace is None:
        st.info("Nothing has run here yet: press Run, or choose a shipped passage.", icon=":material/play_circle:")
        return
    p = trace.provenance
    own = p["native"][min(page.layer, int(p["layers"]) - 1)]
    if "key_bits" in trace.arrays and own is not None:
        st.info(
            f"Layer {page.layer} is the model's own sliding window of {own:,} tokens and has no groups. "
            "Choose another layer at the left.",
            icon=":material/layers:",
        )
        return
    st.info(
        f"This run has no groups: {variant_label(str(p['variant']))} attention does not sort tokens. "
        "Take groups that were learned, learn some now, or let k-means make some.",
        icon=":material/category:",
    )
    with st.container(horizontal=True):
        kinds = {entry["config"].get("kind") for entry in assets.adapters().values()}
        if "router" in kinds:
            st.button("Show trained groups", key="way_focus", on_click=runs.use_variant, args=("focus",))
        if TRAIN in tab_names():
            st.button("Train a router now", key="way_train", on_click=open_tab, args=(TRAIN,))
        st.button("Use k-means instead", key="way_kmeans", on_click=runs.use_variant, args=("kmeans",))


def open_tab(name: str) -> None:
    """Open a tab of the page (a button's callback)."""
    st.session_state[TAB] = name


def tab_names() -> list[str]:
    """The tabs whose modules are there, in order."""
    from app.views.groups import tabs

    return list(tabs())
