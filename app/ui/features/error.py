"""Tab: error against dense attention by number of features, beside short embeddings."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analysis.captions import what_ran
from analysis.features.codes import Codes
from analysis.features.errors import (
    BY,
    LABELS,
    error_figure,
    error_sentence,
    error_table,
    head_curve,
    head_figure,
)
from app.ui import links
from app.ui.features import maps
from app.ui.features.measured import Measured
from app.ui.features.shown import Shown
from app.ui.features.state import BY as BY_KEY
from app.ui.figure import plot
from app.ui.measurement import Measurement
from app.ui.view import Page

RUN = Measurement("features", "features_errors", "measuring the error of every layer", drawn=False)
LIMIT = 512
LAYERS = {"all": "All layers (mean)", "one": "This layer"}


def request_of(page: Page, adapter: str) -> dict[str, Any] | None:
    """The job that measures the selected text's first tokens; None without a text."""
    if page.text is None:
        return None
    return {
        "model": page.model,
        **page.text.fields,
        "limit": min(LIMIT, page.text.limit or LIMIT),
        "adapter": None if adapter == maps.NONE else adapter,
    }


def render(shown: Shown, measured: Measured | None) -> None:
    """Draw the tab."""
    if measured is None:
        st.info("Nothing was recorded for this model; a run here measures it.", icon=":material/straighten:")
    else:
        _figure(shown, measured)
    request = request_of(shown.page, shown.maps)
    if request is not None:
        RUN.box(
            shown.page,
            request,
            f"Measure the first {request['limit']} tokens of this text",
            key="features_errors_run",
            progress="features_errors",
            caption=False,
        )
    _head(shown)


def _figure(shown: Shown, measured: Measured) -> None:
    result = measured.result
    notices: list[str] = []
    links.check(BY_KEY, BY, "bytes", notices, lambda by: BY[by])
    links.say_above(notices)
    st.markdown(f"**{error_sentence(result, shown.codes.features)}**")
    with st.container(horizontal=True, vertical_alignment="center"):
        measured.badge()
        by = st.segmented_control(
            "By",
            list(BY),
            default="bytes",
            required=True,
            format_func=BY.get,
            key=BY_KEY,
            bind="query-params",
            label_visibility="collapsed",
        )
        here = shown.layer in result["layers"]
        which = st.segmented_control(
            "Layers",
            list(LAYERS) if here else ["all"],
            default="all",
            required=True,
            format_func=LAYERS.get,
            key="features_layers",
            label_visibility="collapsed",
        )
    layer = shown.layer if which == "one" and here else None
    over = "mean over the layers" if layer is None else f"layer {layer}"
    plot(
        error_figure(result, by or "bytes", layer),
        key="features_error",
        alt=f"Error of the attention output by {BY[by or 'bytes'].lower()}, {over}.",
        name=f"Error of the attention output, {over}",
        rows=lambda: error_table(result),
        note=measured.note,
    )
    st.caption(
        f"Root of the summed squared difference to dense attention's output over that of the output itself, {over}; "
        f"{result['tokens']:,} tokens of {result.get('text') or 'your text'}, queries, keys and values of the dense "
        f"pass. Fitted on {result['fit']['tokens']:,} tokens of {result['fit']['texts']}."
    )


def _head(shown: Shown) -> None:
    ways = {LABELS["features"]: Codes(2), LABELS["keys"]: Codes(2, sparse="keys")}
    if shown.rotary and shown.maps == maps.NONE:
        ways[LABELS["pairs"]] = Codes(2, select="pairs")
    dim = shown.data.queries.shape[1]
    grid = sorted({max(1, dim * share // 16) for share in (1, 2, 3, 4, 6, 8, 12)})
    st.markdown(f"**This head, live: {shown.where}**")
    plot(
        head_figure(head_curve(shown.data, ways, grid)),
        key="features_head_error",
        alt=f"Share of the attention that lands on other keys, by features kept, {shown.where}.",
        name=f"Attention that lands elsewhere, {shown.where}",
        note=what_ran(shown.trace, shown.layer),
    )
    st.caption(
        "A recording holds no values, so this is the error of the attention weights: half the summed difference to "
        "dense attention, mean over 96 queries."
    )
