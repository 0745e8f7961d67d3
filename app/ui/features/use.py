"""Tab: which dimensions survive for each token, and how evenly each head uses its dimensions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from analysis.captions import what_ran
from analysis.features.codes import supports, use_entropy
from analysis.features.figures import survive_figure
from analysis.numbers import percent
from app.ui.export import document, saveable
from app.ui.features.measured import Measured
from app.ui.features.shown import Shown
from app.ui.figure import plot
from app.ui.grid import Panel, grid_data, head_grid, part
from app.ui.mask.heads import choose

TOKENS = 48
SIDES = {"queries": "Queries", "keys": "Keys"}
_EVENLY = (
    "The entropy of which dimensions are kept, as a share of its most, the logarithm of their number: 100 % is all "
    "alike. Low means that a few dimensions are kept by nearly all tokens, so that pairs share more than k²/d of them."
)


def render(shown: Shown, measured: Measured | None) -> None:
    """Draw the tab."""
    left, right = st.columns([1.5, 1], gap="large")
    with left:
        _tokens(shown)
    with right:
        _heads(shown, measured)


def _tokens(shown: Shown) -> None:
    sides = ["queries", "keys"] if shown.codes.sparse == "both" else ["keys"]
    if st.session_state.get("features_side") not in (None, *sides):
        st.session_state["features_side"] = sides[0]
    side = st.segmented_control(
        "Side",
        sides,
        default=sides[0],
        required=True,
        format_func=SIDES.get,
        key="features_side",
        label_visibility="collapsed",
    )
    at = sides.index(side) if side in sides else 0
    side = sides[at]
    kept = supports(shown.data, shown.codes)[0 if side == "queries" else 1]
    values = shown.data.queries if side == "queries" else shown.data.keys
    middle = shown.query if side == "queries" else shown.key
    first = max(0, min(middle - TOKENS // 2, len(values) - TOKENS))
    last = min(first + TOKENS, len(values))
    often = int((kept.mean(0) > 2 * kept.mean()).sum())
    st.markdown(
        f"**{SIDES[side]} use their {kept.shape[1]} dimensions evenly to {percent(use_entropy(kept))}; {often} are "
        "kept more than twice as often as the average one.**",
        help=_EVENLY,
    )
    st.caption(f"Tokens {first + 1:,} to {last:,} around the picked one; the bars count the whole text.")
    name = f"Dimensions that survive, {side}, {shown.where}"
    plot(
        survive_figure(values, kept, first, [shown.token(n) for n in range(first, last)], shown.rotary),
        key="features_survive",
        alt=f"Which dimensions survive in each token's {side}, {shown.where}.",
        name=name,
        rows=lambda: _rows(shown, values, kept),
        note=what_ran(shown.trace, shown.layer),
    )


def _rows(shown: Shown, values: np.ndarray, kept: np.ndarray) -> pd.DataFrame:
    token, dimension = kept.nonzero()
    texts = [shown.trace.tokens[t] for t in token]
    return pd.DataFrame({"token": token + 1, "text": texts, "dimension": dimension, "value": values[token, dimension]})


def _heads(shown: Shown, measured: Measured | None) -> None:
    st.markdown(
        "**How evenly every head uses its dimensions**",
        help=_EVENLY,
    )
    if measured is None:
        st.caption("Not measured for this model yet: the tab “Error by k” does.")
        return
    result = measured.result
    measured.badge()
    panels, layers = _panels(result), result["layers"]
    data = grid_data(panels, (shown.layer, shown.page.head), "Click to look at its codes.")
    title = f"How evenly dimensions are used, {result['entropy']['features']} kept"
    low = min(float(np.nanmin(p.values)) for p in panels)
    st.caption(
        f"{result['entropy']['features']} features kept of {result['head_dim']}; the lowest is {percent(low)}. "
        "Click a head to look at it."
    )
    with saveable(
        key="features_entropy",
        name=title,
        page=lambda: document(title, part(data), note=measured.note),
        rows=lambda: pd.DataFrame(
            {
                "layer": np.repeat(layers, result["heads"]),
                "head": np.tile(np.arange(result["heads"]), len(layers)),
                **{p.title.lower(): p.values[layers].ravel() for p in panels},
            }
        ),
    ):
        head_grid(data, key="features_entropy", on_pick=choose)


def _panels(result: dict) -> list[Panel]:
    share = result["heads"] // result["kv_heads"]
    sides = {side: np.array(result["entropy"][side], np.float32) for side in SIDES}
    sides["keys"] = sides["keys"].repeat(share, 1)
    floor = float(min(values.min() for values in sides.values()))
    panels = []
    for side, values in sides.items():
        # Layers that are native have no codes: their rows stay empty.
        every = np.full((max(result["layers"]) + 1, result["heads"]), np.nan, np.float32)
        every[result["layers"]] = values
        meaning = f"How evenly the {side} keep their {result['head_dim']} dimensions: 100 % is all alike."
        if side == "keys":
            meaning += " Query heads that share keys have the same."
        panels.append(Panel(SIDES[side], meaning, "%", every, floor, 1.0))
    return panels
