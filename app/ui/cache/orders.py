"""Slim's two orders of operation side by side: formulas for any card, and what was measured."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis import cache_orders as orders
from analysis.cache_card import PRESETS
from analysis.numbers import sig3
from app.ui import links
from app.ui.figure import plot
from app.ui.guard import fragment, plain
from app.ui.recorded import document

BATCH, CARD, INTENSITY, SHAPE = "cache_batch", "cache_chip", "cache_intensity", "cache_width"
BATCHES = (1, 4, 16, 64, 256)
OWN = "Another"
TIMED = "The layer that was timed"
RECORDED = "cache-orders-cpu.json"


_INTENSITY = (1.0, 10_000.0, 20.0)
"""Least, most and usual."""


def _from_link(result: dict[str, Any]) -> None:
    notices: list[str] = []
    shapes, cards = list(_shapes(result, document(RECORDED))), [*orders.CARDS, OWN]
    links.check(SHAPE, shapes, shapes[0], notices)
    links.check(BATCH, BATCHES, BATCHES[0], notices)
    links.check(CARD, cards, cards[0], notices)
    low, high, usual = _INTENSITY
    links.amount(INTENSITY, low, high, f"{usual:g}", notices)
    links.say_above(notices)


def render(result: dict[str, Any]) -> None:
    """Draw the tab; its controls rerun it alone."""
    _from_link(result)
    fragment(_draw, result)


def _draw(result: dict[str, Any]) -> None:
    measured = document(RECORDED)
    shapes = _shapes(result, measured)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        named = st.selectbox("Shape", list(shapes), key=SHAPE, bind="query-params", width=220)
        width, heads = shapes[named or next(iter(shapes))]
        batch = st.segmented_control(
            "Batch",
            BATCHES,
            default=BATCHES[0],
            required=True,
            key=BATCH,
            bind="query-params",
            help="Sequences decoded together: they share the weights, and each has its own cache.",
        )
        card = st.selectbox(
            "Card",
            [*orders.CARDS, OWN],
            key=CARD,
            bind="query-params",
            width=180,
            help="Operations a byte, as the paper gives them.",
        )
        if card == OWN:
            intensity = st.number_input(
                "Operations a byte", *_INTENSITY, key=INTENSITY, bind="query-params", width=160,
                help="Peak operations a second over memory bytes a second.",
            )  # fmt: skip
        else:
            intensity = orders.CARDS[card or next(iter(orders.CARDS))]
    batch = int(batch or 1)
    st.markdown(f"**{plain(orders.sentence(width, heads, batch, float(intensity)))}**")
    points = []
    if (
        measured is not None
        and batch == 1
        and (measured["about"]["width"], measured["about"]["heads"]) == (width, heads)
    ):
        points = measured["rows"]
    plot(
        orders.figure(width, heads, batch, float(intensity), points),
        key="cache_orders",
        alt="Time of a decoded token over dense's by cached length, for both orders.",
        name="Slim's two orders",
        note=f"Formulas for width {width}, {heads} heads, batch {batch}, {intensity:g} operations a byte.",
    )
    st.caption(
        f"Lines: formulas for one layer of width {width:,} with {heads} heads and one-byte numbers; the slower of "
        f"reading and computing decides. Order 2 needs {sig3(orders.enough(heads))} operations a byte (2h + 2) to stay "
        "bound by reading, however long the cache."
        + (f" Points: {plain(_origin(measured))}." if points and measured else "")
    )
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("**Order 1: values first**")
        st.latex(r"V = K\,W_{KV}, \quad o_i = s_i V_i \qquad (2n+6)\,d^2 + 4nd")
    with right:
        st.markdown("**Order 2: scores first**")
        st.latex(r"u_i = s_i K, \quad o_i = u_i W_{KV,i} \qquad 8d^2 + 2nd\,(h+1)")


def _shapes(result: dict[str, Any], measured: dict[str, Any] | None) -> dict[str, tuple[int, int]]:
    """Width and heads of published models with a key a query head, of the one that is shown, and of what was timed."""
    found = {p.title: (p.heads * p.head_dim, p.heads) for p in PRESETS if p.heads == p.kv_heads}
    about = result.get("about", {})
    if "heads" in about:
        found["The model shown"] = (about["heads"] * about["head_dim"], about["heads"])
    if measured is not None:
        found[TIMED] = (measured["about"]["width"], measured["about"]["heads"])
    return found


def _origin(measured: dict[str, Any]) -> str:
    about = measured["about"]
    where = about["environment"]
    return (
        f"recorded on {where['device']}, {where['threads']} threads, {str(where['time'])[:10]}, width "
        f"{about['width']}, {about['heads']} heads, {about['dtype']}, batch 1, by {about['command']}"
    )
