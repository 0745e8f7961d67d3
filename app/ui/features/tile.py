"""Tab: FlashSFA's tile-wise softmax, one step at a time."""

from __future__ import annotations

from html import escape

import numpy as np
import streamlit as st

from analysis.captions import what_ran
from analysis.features.codes import Codes
from analysis.features.tile_figures import tile_figure, tile_sentence, tile_table
from analysis.features.tiles import STAGES, Tiles, walk
from analysis.numbers import percent, sig3
from app.ui.features.shown import Shown
from app.ui.figure import plot
from app.ui.guard import plain

ROWS, KEYS, WIDTH = 3, 12, 4
STEP = "features_step"
FIRST = STAGES.index("Scores")
"""The first step that has scores to look at."""


def render(shown: Shown) -> None:
    """Draw the tab."""
    walked, codes = walk_of(shown)
    steps = len(walked.tiles) * len(STAGES) + 1
    st.session_state[STEP] = min(st.session_state.get(STEP, FIRST), steps - 1)
    if steps < 2:
        st.caption("The picked query is too near the beginning.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.button("Back", key="features_back", icon=":material/chevron_left:", on_click=_move, args=(-1, steps))
        st.button("Next", key="features_next", icon=":material/chevron_right:", on_click=_move, args=(1, steps))
        at = st.slider("Step", 0, steps - 1, key=STEP, format="%d", width="stretch")
    number, stage = min(divmod(at, len(STAGES)), (len(walked.tiles) - 1, len(STAGES) - 1))
    done = at == steps - 1
    if done:
        number, stage = len(walked.tiles) - 1, len(STAGES) - 1
    names = [f"{shown.token(n)} {n + 1}" for n in walked.keys]
    tile = walked.tiles[number]
    rows = [names[n - walked.keys.start] for n in tile.rows]
    if done:
        st.markdown(f"**The end: each output is divided by its running sum. {_equal(walked, shown, codes)}**")
    else:
        st.markdown(
            f"**Tile {number + 1} of {len(walked.tiles)}, {STAGES[stage].lower()}.** {tile_sentence(tile, stage)}"
        )
    left, right = st.columns([1, 1.7], gap="large")
    with left:
        st.caption("For every dimension: which keys of this tile hold it (the paper's posting lists).")
        _postings(shown, walked, number, stage)
    with right:
        plot(
            tile_figure(walked, number, stage, names),
            key="features_tile",
            alt=f"Scores of {len(rows)} queries over {len(names)} keys; tile {number + 1} is framed.",
            name=f"Tile {number + 1}, {STAGES[stage].lower()}, {shown.where}",
            note=what_ran(shown.trace, shown.layer),
        )
    st.dataframe(tile_table(tile, stage, rows), hide_index=True, key="features_tile_state")
    st.caption(
        f"Three queries up to the picked one, over their last {len(walked.keys)} keys, {WIDTH} keys a tile. The paper "
        "takes 128 x 128; the steps are the same. No tile but the one at work is ever held."
    )


def walk_of(shown: Shown) -> tuple[Tiles, Codes]:
    """The few queries and keys that are stepped through."""
    stop = shown.query + 1
    rows, keys = range(max(0, stop - ROWS), stop), range(max(0, stop - KEYS), stop)
    return walk(shown.data, rows, keys, WIDTH, shown.codes), shown.codes


def _move(by: int, steps: int) -> None:
    st.session_state[STEP] = max(0, min(steps - 1, st.session_state.get(STEP, FIRST) + by))


def _equal(walked: Tiles, shown: Shown, codes: Codes) -> str:
    """The last query's attention beside a plain softmax over the same keys, computed at once."""
    every = walk(shown.data, walked.tiles[0].rows, walked.keys, len(walked.keys), codes).tiles[0].scores
    shift = np.where(np.isinf(every.max(1, keepdims=True)), 0, every.max(1, keepdims=True))
    weights = np.exp(every - shift)
    plain_softmax = weights / np.maximum(weights.sum(1, keepdims=True), 1e-300)
    apart = float(np.abs(plain_softmax - walked.attention).max())
    best = int(np.argmax(walked.attention[-1]))
    name = plain(shown.token(walked.keys[best]))
    return (
        f"The last query gives {percent(float(walked.attention[-1, best]))} to “{name}”; a plain softmax over all "
        f"{len(walked.keys)} keys differs by {sig3(apart) if apart > 1e-12 else 'less than 1e-12'} at most."
    )


def _postings(shown: Shown, walked: Tiles, number: int, stage: int) -> None:
    tile = walked.tiles[number]
    met = {(key, feature) for _, key, feature, _ in tile.hits} if stage >= 1 else set()
    lines = []
    for feature, entries in sorted(tile.postings.items()):
        keys = "".join(
            f"<span class='{'m' if (key, feature) in met else ''}'>{escape(shown.token(key))} "
            f"<small>{sig3(value) if value >= 0 else '−' + sig3(-value)}</small></span>"
            for key, value in entries
        )
        lines.append(f"<b>{feature}</b><div>{keys}</div>")
    st.html(f"{_STYLE}<div class='fl-post'>{''.join(lines)}</div>")
    if stage >= 1:
        st.caption("Blue: a query that may see the key holds the dimension too.")


_STYLE = """<style>
.fl-post{display:grid;grid-template-columns:2.2rem 1fr;gap:.12rem .4rem;font-size:.82rem;max-height:330px;overflow:auto}
.fl-post b{text-align:right;opacity:.7;font-weight:600;font-variant-numeric:tabular-nums}
.fl-post span{display:inline-block;padding:0 .35rem;margin:0 .2rem .1rem 0;border-radius:.25rem;
background:rgb(128 128 128/.14)}
.fl-post span.m{background:rgb(47 127 224/.35)}
.fl-post small{opacity:.75}
</style>"""
