"""The main picture: the text to pick from, both codes and their overlap, and what that does to the score."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from analysis.captions import what_ran
from analysis.features.codes import Change, Overlap, Row, overlap, row
from analysis.features.figures import overlap_figure, overlap_table
from analysis.numbers import percent, sig3
from app.ui import runs
from app.ui.export import document, saveable
from app.ui.features.shown import Shown
from app.ui.features.state import TEXT_KEY
from app.ui.features.text import part, pick_tokens, text_data
from app.ui.figure import plot
from app.ui.guard import plain

_SUB = {"delta_color": "off", "delta_arrow": "off"}


def answer(shown: Shown, found: Overlap, weights: Row) -> str:
    """The page's sentence: the picked pair in numbers."""
    count = int(found.shared.sum())
    names = f"“{plain(shown.token(shown.query))}” and “{plain(shown.token(shown.key))}”"
    kept = f"{shown.codes.features} of {len(found.query)} dimensions kept"
    before, after = (percent(float(w[shown.key])) for w in (weights.dense, weights.sparse))
    if count == 0 and shown.codes.no_overlap == "exclude":
        return f"With {kept}, {names} share none: the pair is dropped, and its attention of {before} with it."
    share = f"share {count}" if count else "share none"
    return (
        f"With {kept}, {names} {share}, and the pair's score is {_signed(found.score if count else 0.0)}, where dense "
        f"attention has {_signed(found.dense_score)}: the attention of the one to the other goes from {before} to "
        f"{after}."
    )


def overlap_of(shown: Shown) -> tuple[Overlap, Row]:
    """The picked pair's codes, and the query's attention."""
    return overlap(shown.data, shown.query, shown.key, shown.codes), row(shown.data, shown.query, shown.codes)


def render(shown: Shown, found: Overlap, weights: Row) -> None:
    """Draw the text beside the codes, and the figures below."""
    text, codes = st.columns([1, 1.35], gap="medium")
    names = shown.token(shown.query), shown.token(shown.key)
    with text:
        data = text_data(shown.trace, shown.query, shown.key, weights, len(found.query))
        title = f"What “{names[0]}” attends to with codes, {shown.where}"
        with saveable(
            key="features_codes",
            name=title,
            page=lambda: document(title, part(data), note=what_ran(shown.trace, shown.layer)),
            rows=lambda: _keys(shown, weights),
        ):
            pick_tokens(data, key=TEXT_KEY)
    with codes:
        plot(
            overlap_figure(found, shown.rotary, (f"query “{names[0]}”", f"key “{names[1]}”")),
            key="features_bars",
            alt=f"Dimensions of query {names[0]} and key {names[1]}; {int(found.shared.sum())} survive in both.",
            name=f"Codes of {names[0]} and {names[1]}, {shown.where}",
            rows=lambda: overlap_table(found),
            note=what_ran(shown.trace, shown.layer),
        )
    _figures(shown, found, weights, shown.change())


def _keys(shown: Shown, weights: Row) -> pd.DataFrame:
    """One row a key that the query may see."""
    count = len(weights.dense)
    return pd.DataFrame(
        {
            "token": range(1, count + 1),
            "text": shown.trace.tokens[:count],
            "shared_dimensions": weights.shared.astype(int),
            "dense_attention": weights.dense,
            "attention": weights.sparse,
        }
    )


def _figures(shown: Shown, found: Overlap, weights: Row, head: Change) -> None:
    one, two, three, four = st.columns(4, gap="medium")
    one.metric(
        "Score of the pair",
        _signed(found.score),
        f"dense {_signed(found.dense_score)}",
        help="Sum of the products of the shared dimensions, over the root of the head's size.",
        **_SUB,
    )
    two.metric(
        "Attention of the pair",
        percent(float(weights.sparse[shown.key])),
        f"dense {percent(float(weights.dense[shown.key]))}",
        help="Its share of this query's attention.",
        **_SUB,
    )
    three.metric(
        "Lands on other keys",
        percent(head.moved),
        f"pairs share {sig3(head.shared)} dimensions",
        help=f"Of this head's attention, mean over {head.rows:,} queries of the text: half the sum of all differences "
        f"to dense attention. {percent(head.empty)} of the pairs share no dimension.",
        **_SUB,
    )
    with four:
        runs.run_box(shown.page)


def _signed(value: float) -> str:
    return ("−" if value < 0 else "") + sig3(abs(value))
