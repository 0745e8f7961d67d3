"""What edits of the groups did: the mask before and after, the predictions, and what it costs."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import streamlit as st

from analysis.captions import what_ran
from analysis.edits import Effect, effect, next_figure, next_table, next_tokens
from analysis.masks import Overlay, overlay, row_table
from analysis.numbers import percent, sig3, spread
from analysis.overview import change_text
from app.ui.badges import badge
from app.ui.bars import shown as readable
from app.ui.export import document, saveable
from app.ui.figure import plot
from app.ui.groups.shown import Shown
from app.ui.guard import plain
from app.ui.mask import mask_canvas, mask_data, part
from app.ui.strip.data import heads_of, mask_name, router_count
from app.ui.view import Page
from focus_core.trace import Trace

_SUB = {"delta_color": "off", "delta_arrow": "off"}


def render(page: Page, shown: Shown, edits: list[dict[str, Any]], after: Trace) -> None:
    """Draw the figures, the mask and the predictions of the page's run beside those of the edited one."""
    before = page.trace
    if len(before) != len(after):
        st.info("The edited run has another number of tokens; run the selection again.", icon=":material/history:")
        return
    layers = sorted({edit["layer"] for edit in edits})
    found = effect(before, after, layers)
    st.markdown(f"#### {plain(sentence(found))}")
    with st.container(horizontal=True, gap="small"):
        badge("live", f"{after.provenance.get('time', '')} on {after.provenance.get('device', '')}.")
        if page.source.kind == "recorded":
            badge("recorded", "The run before the edits; rounding on another machine is within 0.01 nats.")
    a, b, c = st.columns(3)
    which = f"layer {layers[0]}" if len(layers) == 1 else "edited layers"
    a.metric(
        f"Pairs kept in {which}",
        percent(found.kept_here[1]),
        f"from {percent(found.kept_here[0])}; all layers {percent(found.kept[1])}",
        help="Mean over all heads. An edit changes the mask of one router's heads alone, so that mask moves by more.",
        **_SUB,
    )
    b.metric(
        "Perplexity",
        sig3(found.ppl[1], 4),
        f"{change_text(found.change)} {spread(found.spread)} from {sig3(found.ppl[0], 4)}",
        **_SUB,
    )
    c.metric("Tokens changed", f"{found.noticed:,}", f"of {len(after) - 1:,}, by 0.01 nats or more", **_SUB)
    _mask(shown, edits, before, after)
    _changed(found, before, after, place_of(shown, edits)[0])


def place_of(shown: Shown, edits: list[dict[str, Any]]) -> tuple[int, int]:
    """(layer, router) whose mask is drawn: the shown one, or the last edited one where that has no edit."""
    places = [(edit["layer"], edit["router"]) for edit in edits]
    here = (shown.layer, shown.router)
    return here if here in places else places[-1]


def _mask(shown: Shown, edits: list[dict[str, Any]], before: Trace, after: Trace) -> None:
    layer, router = place_of(shown, edits)
    head = heads_of(before, None, router)[0]
    where = f"layer {layer}" + (f", {mask_name(before, router)}" if router_count(before) > 1 else "")
    found = overlay(before.pattern(layer), after.pattern(layer), head, head)
    st.markdown(f"**The mask of {where}**: {mask_sentence(found)}")
    # One moved token is one row and one column of the mask: hardly seen, so they are held.
    moved = [edit["token"] for edit in edits if "token" in edit]
    data = mask_data(
        before,
        layer,
        head,
        label="before",
        other=after,
        other_label="after",
        shares={name: getattr(found, name) for name in ("both", "first", "second", "neither")},
        said="" if found.rows == found.count else f"Shares from {found.rows:,} of {found.count:,} rows.",
        select=(moved[0], moved[0], crc32(repr(edits).encode())) if len(edits) == len(moved) == 1 else None,
    )
    title = f"Mask before and after the edits, {where}"
    with saveable(
        key="edit_mask",
        name=title,
        page=lambda: document(title, part(data), note=what_ran(after, layer)),
        rows=lambda: row_table(before, layer, head).merge(
            row_table(after, layer, head)[["query", "kept"]], on="query", suffixes=("_before", "_after")
        ),
    ):
        mask_canvas(data, key="edit_mask")


def mask_sentence(found: Overlay) -> str:
    """What the edits did to one mask, in one sentence."""
    if found.first + found.second == 0:
        return f"the same pairs as before, {percent(found.both)} of all."
    return (
        f"{percent(found.both)} of all pairs are kept before and after, {percent(found.first)} only before the edits, "
        f"{percent(found.second)} only after them."
    )


def sentence(found: Effect) -> str:
    """What the edits did, in one sentence."""
    pairs = found.kept_here[1] - found.kept_here[0]
    if not found.noticed and abs(pairs) < 5e-5:
        return "Nothing moved: the edits changed neither the pairs nor what the model predicts."
    more = (
        "the same pairs"
        if abs(pairs) < 5e-5
        else f"{sig3(100 * abs(pairs))} percentage points {'more' if pairs > 0 else 'fewer'} pairs"
    )
    cost = (
        "perplexity stays within its own error"
        if abs(found.change) <= found.spread
        else f"perplexity {'rises' if found.change > 0 else 'falls'} by {percent(abs(found.change))}"
    )
    return f"With {more} in the edited layer, {cost}; {found.noticed:,} tokens are predicted differently."


def _changed(found: Effect, before: Trace, after: Trace, layer: int) -> None:
    most = found.most_changed()
    if not most:
        st.caption("No token's likelihood changed.")
        return
    st.markdown("**Changed most** (log-likelihood in nats)")
    with st.container(horizontal=True, gap="small"):
        for token in most:
            text, change = plain(readable(after.tokens[token], 14)), found.change_of[token]
            st.button(
                f"{text} {'+' if change > 0 else '−'}{abs(change):.2f}",
                key=f"edit_look_{token}",
                on_click=_look,
                args=(max(0, token - 1),),
            )
    if int(st.session_state.get("edit_after") or 1) > len(after):
        st.session_state["edit_after"] = len(after)
    st.session_state.setdefault("edit_after", max(0, most[0] - 1) + 1)
    left, right = st.columns([1, 3], vertical_alignment="bottom")
    token = int(left.number_input("What comes after token", 1, len(after), key="edit_after")) - 1
    right.caption(plain(around(after, token)))
    rows = next_tokens(before, after, token)
    if not rows:
        st.caption("This run did not record the likeliest next tokens.")
        return
    actual = after.tokens[token + 1] if token + 1 < len(after) else None
    plot(
        next_figure(rows, [readable(r.text) + (" ◂" if r.text == actual else "") for r in rows]),
        key="edit_next",
        alt="Bars: probability of the likeliest next tokens before and after the edits.",
        name=f"next token after token {token + 1}, before and after the edits",
        rows=lambda: next_table(rows, actual),
        note=what_ran(after, layer),
    )
    st.caption("◂ is the token that really follows. A dash: not among the eight likeliest of that run.")


def _look(token: int) -> None:
    st.session_state["edit_after"] = token + 1


def around(trace: Trace, token: int) -> str:
    """A token between brackets in the text round it."""
    before, after = ("".join(trace.tokens[a:b]) for a, b in ((max(0, token - 6), token), (token + 1, token + 7)))
    return f"…{before}[{trace.tokens[token]}]{after}…".replace("\n", "↵")
