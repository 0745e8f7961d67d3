"""Concordance lines and small letters of groups, as escaped HTML."""

from __future__ import annotations

from html import escape

import numpy as np
import streamlit as st

from analysis.examples import concordance, spread_out
from analysis.groups import far_from_sinks, members
from analysis.palette import group_color, group_label
from app.ui.groups.shown import Shown

_STYLE = """<style>
.fl-kwic{display:grid;gap:.12rem;font-size:.92rem}
.fl-kwic div{display:grid;grid-template-columns:1fr auto 1fr 4rem;gap:.45rem;align-items:baseline;white-space:pre}
.fl-kwic span{overflow:hidden;text-overflow:clip;opacity:.68;min-width:0}
.fl-kwic .b{direction:ltr;text-align:right;display:flex;justify-content:flex-end}
.fl-kwic b{font-weight:650;border-bottom:.16rem solid var(--c);padding:0 .15rem;
background:color-mix(in srgb,var(--c) 20%,transparent);border-radius:.2rem .2rem 0 0}
.fl-kwic small{opacity:.55;text-align:right;font-variant-numeric:tabular-nums}
</style>"""


def examples(shown: Shown, group: int, side: str, *, count: int = 8) -> None:
    """Draw lines of a group's tokens, evenly over the text."""
    inside = members(shown.trace, shown.layer, shown.router, side)[:, group] & far_from_sinks(shown.trace)
    found = np.flatnonzero(inside)
    if not len(found):
        st.caption("No token of this text." if side == "keys" else "No token of this text looks for it.")
        return
    lines = concordance(shown.trace, spread_out(found, count))
    rows = "".join(
        f"<div style='--c:{group_color(group)}'><span class='b' dir='auto'>{escape(line.before)}</span>"
        f"<b dir='auto'>{escape(line.text)}</b><span dir='auto'>{escape(line.after)}</span>"
        f"<small>{line.token + 1:,}</small></div>"
        for line in lines
    )
    st.html(_STYLE + f"<div class='fl-kwic'>{rows}</div>")
    st.caption(f"{len(lines)} of {len(found):,}" + (", evenly over the text." if len(lines) < len(found) else "."))


def both_sides(shown: Shown, group: int) -> None:
    """Examples of a group: its tokens, and beside them the tokens that look for it."""
    if len(shown.sides) == 1:
        st.markdown(f"**Tokens of group {group_label(group)}**")
        examples(shown, group, "keys")
        return
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown(f"**Tokens that are in {group_label(group)}**")
        examples(shown, group, "keys")
    with right:
        st.markdown(f"**Tokens that look for {group_label(group)}**")
        examples(shown, group, "queries")
