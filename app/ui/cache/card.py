"""What a card of a given memory holds: context and batch by variant, with the formula."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis import cache_card as card
from analysis.cache import others
from analysis.numbers import memory, percent
from app.ui import links
from app.ui.cache import lines
from app.ui.figure import plot
from app.ui.guard import fragment, plain
from app.ui.runs import model_label
from app.ui.view import Page
from focus_core.jobs.costs import say_count
from focus_core.models.shapes import Shape, shape_of

SHAPE, MEMORY, BATCH, LENGTH, FORMAT = (f"cache_card_{name}" for name in ("shape", "gb", "batch", "length", "format"))
THIS = "The chosen model"


_SIZE, _BATCH, _LENGTH = (1.0, 10_000.0, 24.0), (1, 100_000, 1), (1, 100_000_000, 8192)
"""Least, most and usual: GB, sequences, tokens."""
_USUAL_FORMAT = 1


def _from_link() -> None:
    notices: list[str] = []
    titles, formats = [*(preset.title for preset in card.PRESETS), THIS], list(card.FORMATS)
    links.check(SHAPE, titles, titles[0], notices)
    links.check(FORMAT, formats, formats[_USUAL_FORMAT], notices)
    for key, (low, high, usual) in ((MEMORY, _SIZE), (BATCH, _BATCH), (LENGTH, _LENGTH)):
        links.amount(key, low, high, f"{usual:,g}", notices)
    links.say_above(notices)


def render(page: Page, result: dict[str, Any]) -> None:
    """Draw the tab; its controls rerun it alone."""
    _from_link()
    fragment(_draw, page, result)


def _draw(page: Page, result: dict[str, Any]) -> None:
    presets = {preset.title: preset for preset in card.PRESETS}
    one, two, three, four, five = st.columns([1.6, 1, 1, 1, 1.2], gap="small", vertical_alignment="bottom")
    named = one.selectbox("Model", [*presets, THIS], key=SHAPE, bind="query-params")
    size = two.number_input("Card, GB", *_SIZE, key=MEMORY, bind="query-params")
    kind = three.selectbox("Numbers", list(card.FORMATS), index=_USUAL_FORMAT, key=FORMAT, bind="query-params")
    batch = four.number_input("Sequences", *_BATCH, key=BATCH, bind="query-params")
    length = five.number_input("Tokens, for the batch", *_LENGTH, key=LENGTH, bind="query-params")
    itemsize = card.FORMATS[kind or "16 bits"]
    preset = presets.get(named)
    shape = preset.shape if preset else shape_of(page.model)
    if shape is None:
        st.info("This model's size is known once it has been loaded. Take a published shape.", icon=":material/help:")
        return
    measured = {} if preset else _measured(page, result, itemsize)
    name = "" if preset else page.model
    held = card.holdings(name, shape, size * 1e9, itemsize, int(batch), int(length), lines.label, measured)
    st.markdown(f"**{plain(card.sentence(held, size * 1e9, shape.values, itemsize, int(batch), shape.context))}**")
    source = preset.source if preset else f"{model_label(page.model)}, from its files"
    plot(
        card.figure(held, shape.context),
        key="cache_card",
        alt="Longest context that fits by variant.",
        name=f"What {size:g} GB hold, {named}",
        rows=lambda: _table(held),
        note=f"{source}; {size:g} GB, {kind}, {say_count(int(batch), 'sequences')}.",
    )
    st.latex(r"n_\text{max} = \Big\lfloor \frac{M - w\,b}{B \cdot c} \Big\rfloor")
    st.caption("M: bytes of the card; w b: of the weights; c: of a token; B: sequences.")
    counts = dict.fromkeys(("Longest context", "Most sequences"), st.column_config.NumberColumn(format="localized"))
    st.dataframe(_table(held), hide_index=True, key="cache_card_table", column_config=counts, placeholder="–")
    st.caption(plain(_source(shape, source, bool(measured))))


def _measured(page: Page, result: dict[str, Any], itemsize: int) -> dict[str, float]:
    """Bytes a token by label, where they were measured on this model in this format."""
    dtype = card.MEASURED_IN.get(itemsize)
    if dtype is None or result.get("about", {}).get("model") != page.model:
        return {}
    rows = [row for row in result["rows"] if row["variant"] == "dense"] + others(result)
    found = {}
    for row in rows:
        label = lines.label({"variant": "dense", "config": {}}) if row["variant"] == "dense" else row["label"]
        if dtype in row.get("layers", {}):
            found[label] = sum(row["layers"][dtype]["bytes"])
    return found


def _table(held: list[card.Held]) -> Any:
    import pandas as pd

    return pd.DataFrame(
        {
            "Variant": [one.label for one in held],
            "Bytes a token": [memory(one.bytes) for one in held],
            "Of dense": [percent(one.bytes / held[0].bytes) for one in held],
            "Known by": [one.origin for one in held],
            "Longest context": pd.array([None if one.reason else one.context for one in held], dtype="Int64"),
            "Most sequences": pd.array([None if one.reason else one.batch for one in held], dtype="Int64"),
            "Does not apply": [one.reason for one in held],
        }
    )


def _source(shape: Shape, source: str, measured: bool) -> str:
    said = (
        f"{shape.layers} layers, {shape.kv_heads} of {shape.heads} heads with keys of their own, {shape.head_dim} "
        f"numbers each ({source}). Weights and caches alone are counted: what runs beside them needs room too."
    )
    return said + (" Measured bytes are those of this model's live caches." if measured else " Bytes are counted.")
