"""What stands below the mask while a pair is held: where the query's dense attention went."""

from __future__ import annotations

import numpy as np
import streamlit as st

from analysis import masks as words
from analysis.numbers import percent
from app.ui.bars import Bar, bars
from app.ui.strip.data import kept_by
from focus_core.trace import Trace


def render(trace: Trace, layer: int, heads: list[int], query: int, key: int) -> None:
    """The held query's dense attention: the pair's share and rank, and where the most goes."""
    if f"queries.{layer}" not in trace.arrays:
        return
    row = slice(query, query + 1)
    mass = words.dense_rows(trace, layer, row, heads)[0, : query + 1]
    kept = trace.pattern(layer).tile(0, heads[0], row, slice(0, query + 1))[0]
    lost = words.lost_pairs(trace, layer, row, heads)
    order = np.argsort(-mass, kind="stable")
    st.markdown(
        f"**Where the dense attention of token {query + 1:,} went** ({words.heads_text(heads)}, layer {layer})",
        help="Orange is lost: dropped, though among the tokens that together hold 90 % of its attention.",
    )
    if key <= query:
        rank = int(np.flatnonzero(order == key)[0]) + 1
        st.caption(
            f"The held key, token {key + 1:,}, got {_tiny(float(mass[key]))}: number {rank:,} of {query + 1:,}. "
            f"All dropped keys together held {percent(float(mass[~kept].sum()))}."
        )
    gone = set(lost.keys.tolist())
    p = trace.provenance
    sinks = p.get("sinks") or 0
    rows = []
    for at in map(int, order[:8]):
        if not kept[at]:
            kind = note = "lost" if at in gone else "dropped"
        elif query - at < p["window"]:
            kind, note = "window", "itself" if at == query else "nearby"
        elif at < sinks:
            kind, note = "sink", "first token"
        else:
            kind, note = "kept", f"by {kept_by(trace)}"
        rows.append(Bar(trace.tokens[at], f"{at + 1:,}", float(mass[at]), kind, note))
    bars(rows)


def _tiny(share: float) -> str:
    return percent(share) if share >= 1e-5 else "less than 0.001 %"
