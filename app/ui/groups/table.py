"""The group table, what each group is made of, who may see whom, and examples."""

from __future__ import annotations

import math

import pandas as pd
import streamlit as st

from analysis import looks
from analysis.captions import what_ran
from analysis.group_figures import kinds_heatmap, sight_heatmap
from analysis.groups import Group, kinds_by_group, who_sees_whom
from analysis.looks_figure import looks_by_head
from analysis.numbers import sig3
from analysis.palette import group_color, group_label
from analysis.parts import KINDS
from app.ui.figure import plot
from app.ui.groups import shown as page_state
from app.ui.groups.lines import both_sides
from app.ui.groups.shown import SIDE, SIDE_NAMES, Shown
from app.ui.guard import fragment
from app.ui.view import Page


def render(page: Page) -> None:
    """Draw the tab."""
    fragment(_draw, page)


def _draw(page: Page) -> None:
    shown = page_state.shown(page)
    if shown is None:
        page_state.no_groups(page)
        return
    side = side_control(shown)
    groups = shown.table(side)
    if not any(group.size for group in groups):
        st.info(f"In {shown.where}, queries look into no group: they see near and first tokens alone.")
        _looks(shown)
        return
    _table(groups, side)
    page_state.to_link(shown.trace, page.source.current)
    picked, _ = page_state.picked()
    if picked is not None:
        both_sides(shown, picked)
    left, right = st.columns(2, gap="large")
    with left:
        _made_of(shown, side, picked)
    with right:
        _sight(shown, picked)
    _looks(shown)


def side_control(shown: Shown) -> str:
    """Which side of a directed router is shown; a shared one has only keys."""
    if len(shown.sides) == 1:
        st.caption("This router is shared: what a token is and what it looks for are the same groups.")
        return "keys"
    side = st.segmented_control(
        "Side",
        list(shown.sides),
        default="keys",
        required=True,
        format_func=SIDE_NAMES.get,
        key=SIDE,
        bind="query-params",
        label_visibility="collapsed",
        help="A directed router sorts every token twice: into the group that others find it in, and into the groups "
        "that it looks into.",
    )
    return side or "keys"


def frame(groups: list[Group]) -> pd.DataFrame:
    """The table as people read it and as it is saved."""
    return pd.DataFrame(
        {
            "group": [group_label(g.number) for g in groups],
            "name from its tokens": [g.name for g in groups],
            "tokens": [g.size for g in groups],
            "load": [g.load for g in groups],
            "purity": [None if math.isnan(g.purity) else 100 * g.purity for g in groups],
            "purity is of": [None if g.tag is None else KINDS[g.tag] for g in groups],
            "most typical tokens": [" · ".join(f"{w} {count}" for w, count, _ in g.typical[:8]) for g in groups],
        }
    )


def _table(groups: list[Group], side: str) -> None:
    rows = frame(groups)
    key = f"groups_rows_{side}"
    picked, _ = page_state.picked()
    fullest = max(groups, key=lambda g: g.load)
    empty = sum(g.size == 0 for g in groups)
    st.caption(
        f"The fullest group, {group_label(fullest.number)}, holds {sig3(fullest.load)} times its fair share"
        + (f"; {empty} of {len(groups)} are empty." if empty else "; none is empty.")
        + " Select a row to read its tokens in context; the map selects it too."
    )
    st.dataframe(
        rows.style.apply(
            lambda column: [f"background-color: {group_color(g.number)}40" for g in groups], subset=["group"]
        ),
        key=key,
        hide_index=True,
        on_select=lambda: _chosen(key),
        selection_mode="single-row",
        selection_default={"selection": {"rows": [] if picked is None else [picked], "columns": [], "cells": []}},
        height=min(38 + 35 * len(groups), 640),
        column_config={
            "group": st.column_config.TextColumn("", width=44, help="The group's letter; its colour is the map's."),
            "name from its tokens": st.column_config.TextColumn(
                "Name",
                width=270,
                help="Taken from the data: the kinds that make up half of it, and its most typical tokens.",
            ),
            "tokens": st.column_config.NumberColumn("Tokens", width=70, format="localized"),
            "load": st.column_config.NumberColumn(
                "Load", width=64, format="%.2f ×", help="Its share of the tokens over the fair share. 1 is balanced."
            ),
            "purity": st.column_config.ProgressColumn(
                "Purity",
                width=110,
                format="%.0f %%",
                min_value=0,
                max_value=100,
                help="Share of its tagged tokens that have its most frequent part of speech, named beside it.",
            ),
            "purity is of": st.column_config.TextColumn("of", width=90),
            "most typical tokens": st.column_config.TextColumn(
                "Most typical tokens, with their count",
                width="large",
                help="By log-odds against all other groups (Monroe 2008), not by mere frequency.",
            ),
        },
    )


def _chosen(key: str) -> None:
    rows = st.session_state[key]["selection"]["rows"]
    page_state.pick(rows[0] if rows else None)


def _made_of(shown: Shown, side: str, picked: int | None) -> None:
    st.markdown("**What each group is made of**")
    if shown.parts is None:
        st.caption("This run has no words to tag.")
        return
    counts = kinds_by_group(shown.trace, shown.layer, shown.router, shown.parts, side)
    rows = pd.DataFrame(counts, columns=list(KINDS))
    rows.insert(0, "group", [group_label(g) for g in range(len(counts))])
    plot(
        kinds_heatmap(counts, picked),
        key=f"groups_kinds_{side}",
        alt=f"Heatmap: share of each group's tokens by part of speech, {SIDE_NAMES[side].lower()}, {shown.where}.",
        name=f"groups by part of speech {shown.where}",
        rows=rows,
        note=what_ran(shown.trace, shown.layer),
    )
    st.caption(f"{shown.parts.source} First tokens are left out: all see them, whatever their group.")


def _sight(shown: Shown, picked: int | None) -> None:
    st.markdown("**Who may see whom**")
    sight = who_sees_whom(shown.trace, shown.layer, shown.router)
    kept, possible = int(sight.pairs.sum()), int(sight.possible.sum())
    k = len(sight.may)
    letters = [group_label(g) for g in range(k)]
    rows = pd.DataFrame(
        [
            {
                "token in": letters[a],
                "looks into": letters[b],
                "share of tokens": sight.may[a, b],
                "far pairs kept": int(sight.pairs[a, b]),
                "far pairs possible": int(sight.possible[a, b]),
            }
            for a in range(k)
            for b in range(k)
        ]
    )
    plot(
        sight_heatmap(sight, picked),
        key="groups_sight",
        alt=f"Heatmap: for each group, the share of its tokens that look into each group, {shown.where}.",
        name=f"who may see whom {shown.where}",
        rows=rows,
        note=what_ran(shown.trace, shown.layer),
    )
    st.caption(
        f"Read along a row. Of {possible:,} far pairs (beyond the window, first tokens aside), "
        f"{kept:,} are kept by group."
    )


def _looks(shown: Shown) -> None:
    """How many groups each head looks into, where they differ."""
    p = shown.trace.provenance
    table = looks.table_of(p.get("adapter"), p.get("config"))
    if table is None:
        return
    st.markdown("**How many groups each head looks into**")
    rows = [
        {"layer": layer, "KV head": head, "groups": number}
        for layer, row in enumerate(table)
        for head, number in enumerate(row)
    ]
    plot(
        looks_by_head(table, (shown.layer, shown.router)),
        key="groups_looks",
        alt=f"Heatmap: groups that the queries of each layer and KV head look into, {looks.span(table)}.",
        name="groups looked into by head",
        rows=pd.DataFrame(rows),
        note=what_ran(shown.trace),
    )
    here = table[shown.layer][shown.router]
    none = sum(number == 0 for row in table for number in row)
    st.caption(
        "Chosen by what each number costs a calibration text, for a budget of pairs. "
        f"{none} of {len(rows)} heads look into no group: they see near and first tokens alone. "
        f"The outlined one, {shown.where}, looks into {here or 'none'}."
    )
