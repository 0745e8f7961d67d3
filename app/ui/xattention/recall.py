"""The tab that holds the scorers against each other: dense attention kept for the pairs that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from analysis.captions import what_ran
from analysis.xattention import recall as words
from analysis.xattention.head import Setting
from analysis.xattention.scores import MODES
from app.ui import links
from app.ui.badges import badge
from app.ui.figure import plot
from app.ui.guard import plain
from app.ui.recorded import document
from app.ui.view import Page
from app.ui.xattention import state

SCOPE = "xa_scope"
HEAD, LAYER, LONG = "head", "layer", "recorded"
RECORDED = "xattention-recall.json"


def render(page: Page) -> None:
    """Draw the tab."""
    shown = state.shown_head(page)
    long = recorded(page.model)
    scopes = ([HEAD, LAYER] if shown is not None else []) + ([LONG] if long else [])
    if not scopes:
        st.caption("There is nothing to compare yet: it needs the queries and keys of a layer.")
        return
    labels = {HEAD: "This head", LAYER: "All heads of this layer", LONG: _long_label(long)}
    notices: list[str] = []
    default = LONG if long else HEAD
    links.check(SCOPE, scopes, default, notices, labels.__getitem__)
    links.say_above(notices)
    if st.session_state.get(SCOPE) not in (None, *scopes):
        st.session_state[SCOPE] = default
    scope = st.segmented_control(
        "Measured on",
        scopes,
        default=default,
        required=True,
        format_func=labels.__getitem__,
        key=SCOPE,
        bind="query-params",
        label_visibility="collapsed",
    )
    setting = state.setting()
    if scope == LONG:
        found, note = words.Comparison.from_json(long["curves"][curve_name(setting)]), _long_note(long)
    else:
        layer, head = shown
        heads = [head] if scope == HEAD else list(range(int(page.trace.provenance["heads"])))
        found, note = _here(page, layer, tuple(heads), setting), what_ran(page.trace, layer)
    st.markdown(f"**{words.sentence(found, setting.threshold)}**", help=_HELP)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        badge("recorded" if scope == LONG or page.source.kind == "recorded" else page.source.kind)
        if setting.voters == "own":
            badge("leaks")
        st.caption(plain(f"{note} · {_what(setting)}"))
    plot(
        words.figure(found, setting.threshold),
        key="xa_recall",
        alt="Dense attention kept against pairs kept over the thresholds, one line a scorer.",
        name="Recall and density of XAttention's scorers",
        rows=lambda: words.table(found),
        note=f"{note} · {_what(setting)}",
    )
    st.caption(
        "The published ablation finds the antidiagonals several points of task accuracy ahead at 32,768 tokens; here "
        "it is attention of a small model, and a short text leaves little to choose from."
    )


_HELP = (
    "Dense attention: the share of the model's own attention that lies in kept blocks. Points are per cent of it, "
    "after ± two standard errors over the heads. Each head is compared at as many pairs as its antidiagonals keep."
)


def _what(setting: Setting) -> str:
    who = "the queries before choose" if setting.voters == "before" else "a block's own queries choose"
    return f"blocks of {setting.block}, stride {setting.stride}, {who}"


def _here(page: Page, layer: int, heads: tuple[int, ...], setting: Setting) -> words.Comparison:
    modified = Path(page.source.path).stat().st_mtime
    key = (page.source.path, modified, layer, heads, setting.block, setting.stride, setting.voters)
    return _compared(*key, page)


@st.cache_data(max_entries=16, show_spinner="Cutting the blocks of these heads …")
def _compared(
    path: str,
    modified: float,
    layer: int,
    heads: tuple[int, ...],
    block: int,
    stride: int,
    voters: str,
    _page: Page,
) -> words.Comparison:
    of = Setting(stride=stride, block=block, voters=voters)
    scores = {mode: state.read(_page.source, layer, list(heads), mode, of) for mode in MODES}
    return words.compare(scores, len(_page.trace), block, voters)


# ---- recorded on a long text ----------------------------------------------------------------------------------------


def curve_name(setting: Setting) -> str:
    """Name of a setting's curves in the recording."""
    return f"{setting.block}/{setting.stride}/{setting.voters}"


def recorded(model: str) -> dict[str, Any] | None:
    """The recording on a long text, where it is of this model."""
    found = document(RECORDED)
    return found if found is not None and found["about"]["model"] == model else None


def _long_label(found: dict[str, Any] | None) -> str:
    return f"{found['about']['heads']} heads, {found['about']['tokens']:,} tokens" if found else ""


def _long_note(found: dict[str, Any]) -> str:
    about = found["about"]
    layers = ", ".join(map(str, about["layers"]))
    return (
        f"{about['model']} · {about['text']}, first {about['tokens']:,} tokens · layers {layers} · "
        f"{about['time'][:10]} · {about['command']}"
    )
