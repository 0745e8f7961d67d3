"""The page's canvas: block scores with the kept set, the picked block from near, and the cut of its row."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from analysis import palette
from analysis.numbers import percent
from analysis.xattention import words
from analysis.xattention.head import Head
from analysis.xattention.scores import sampled
from app.ui.export import component_part

HERE = Path(__file__).parent
SCRIPTS = ("../cividis.js", "base.js", "map.js", "detail.js", "curve.js", "blocks.js")
KEPT, SINK, OWN = 1, 2, 4
"""Marks of a block, as ``base.js`` reads them."""
_STARTS = 40
_HELP = "Block scores: rows look, columns are looked at. Arrow keys pick a block."
HTML = (
    '<div class="fl fx"><div class="room"><div class="left">'
    f'<div class="stage map" tabindex="0" role="application" aria-label="{_HELP}">'
    '<canvas class="base"></canvas><canvas class="over"></canvas></div><div class="bar"></div>'
    '<div class="keys"><kbd>click</kbd> or <kbd>←↑↓→</kbd> picks a block</div></div>'
    '<div class="aside"><div class="head"></div><div class="why"></div>'
    '<div class="stage near"><canvas class="base"></canvas><canvas class="over"></canvas></div><div class="how"></div>'
    '<div class="stage cut"><canvas class="base"></canvas><canvas class="over"></canvas></div></div></div>'
    '<div class="sr" aria-live="polite"></div><div class="tip" role="tooltip"></div></div>'
)


def colours(name: str) -> str:
    """The colours of pairs as the canvases' own variables."""
    return f".{name}{{--kept:{palette.KEPT};--own:{palette.WINDOW};--lost:{palette.LOST};--dropped:{palette.DROPPED}}}"


def css() -> str:
    """The canvas's styles."""
    return colours("fx") + (HERE / "blocks.css").read_text("utf-8")


def js() -> str:
    """The canvas's module."""
    return "\n".join((HERE / name).read_text("utf-8") for name in SCRIPTS)


def part(data: dict[str, Any], *, place: str = "blocks") -> str:
    """The canvas within a page that stands alone; what is picked there stays as it was saved."""
    return component_part(html=HTML, css=css(), js=js(), data=data, place=place)


@st.cache_resource(show_spinner=False)
def _component(version: float) -> Any:
    return st.components.v2.component("focus_lab_blocks", html=HTML, css=css(), js=js())


def canvas(data: dict[str, Any], *, key: str) -> None:
    """Draw the canvas; the picked block stands in ``st.session_state[key]`` when the page is drawn again."""
    component = _component(max((HERE / name).stat().st_mtime for name in (*SCRIPTS, "blocks.css")))
    component(data=data, key=key, default={"picked": None}, on_picked_change=_noted)


def _noted() -> None:
    """The state is read where it stands; Streamlit asks for a callback to keep it."""


def packed(values: np.ndarray, kind: Any) -> str:
    """An array as the components read it."""
    return base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode("ascii")


def blocks_data(head: Head, tokens: list[str], picked: tuple[int, int], serial: int) -> dict[str, Any]:
    """What the canvas draws, as JSON values.

    Args:
        head: the head with its selection.
        tokens: the token strings.
        picked: row and column of the block that is looked at.
        serial: rises when the app, and not the reader, picks.
    """
    n, setting = head.blocks, head.setting
    row, column = np.arange(n)[:, None], np.arange(n)[None, :]
    marks = np.where(head.kept, KEPT, 0).astype(np.uint8)
    voter = head.voters()
    marks[(column == row) & head.kept] |= OWN
    marks[((column == 0) | (column == voter[:, None])) & (column < row)] |= SINK
    starts = ["".join(tokens[b * setting.block : b * setting.block + 8])[:_STARTS] for b in range(n)]
    return {
        "count": len(tokens),
        "block": setting.block,
        "stride": setting.stride,
        "n": n,
        "threshold": setting.threshold,
        "order": None if setting.mode == "oracle" else sampled(setting.stride, setting.mode, setting.seed),
        "unit": "of its row, √ scale",
        "share": packed(head.share, np.float32),
        "real": packed(head.real, np.float32),
        "rank": packed(head.rank, np.int16),
        "marks": packed(marks, np.uint8),
        "starts": starts,
        "legend": _legend(head),
        "picked": list(picked),
        "serial": serial,
        "detail": _detail(head, tokens, *picked),
        "curve": _curve(head, picked[0]),
    }


def _legend(head: Head) -> list[list[str]]:
    who = "its own queries" if head.setting.voters == "own" else "the queries before it"
    return [
        ["kept", f"kept ({percent(head.pairs)} of pairs)", "Computed: every pair of the block."],
        ["own", "always kept", f"The first block, the block itself, and the last one of {who}."],
        ["dropped", "dropped", "Not computed."],
    ]


def _detail(head: Head, tokens: list[str], row: int, column: int) -> dict[str, Any]:
    setting = head.setting
    found = words.place(head.selection, row, column, setting.voters, setting.threshold)
    # Where nobody decides about a block, its own scores are shown.
    looking = row if found.why == "own" and column > found.voter else found.voter
    near = head.near(looking, column)
    low, high = near.low, near.high
    cells = np.clip(255 * (near.cells - low) / (high - low or 1), 0, 255).round()
    q0, k0 = looking * setting.block, column * setting.block
    name = f"Queries of block {looking + 1}, keys of block {column + 1}"
    return {
        "row": row,
        "column": column,
        "title": name,
        "why": words.why(found, row, setting.threshold, setting.voters),
        "how": _how(head),
        "rows": near.cells.shape[0],
        "columns": near.cells.shape[1],
        "cells": packed(cells, np.uint8),
        "low": low,
        "high": high,
        "tiles": packed(near.tiles, np.float32),
        "q0": q0,
        "k0": k0,
        "queries": tokens[q0 : q0 + near.cells.shape[0]],
        "keys": tokens[k0 : k0 + near.cells.shape[1]],
    }


def _how(head: Head) -> str:
    setting = head.setting
    if setting.mode == "oracle":
        return "Every true score of the block is read: as dear as dense attention."
    shape = {
        "antidiagonal": "antidiagonal",
        "diagonal": "diagonal",
        "random": "random permutation",
    }[setting.mode]
    return (
        f"Its true scores, {setting.stride} × {setting.stride} a tile. In full colour: the {shape} that is read, "
        f"1 score in {setting.stride}."
    )


def _curve(head: Head, row: int) -> dict[str, Any]:
    voter = int(head.voters()[row])
    of = voter + 1
    selection = head.selection
    return {
        "voter": voter,
        "kept": int(selection.kept[voter]),
        "order": packed(selection.order[voter, :of], np.int16),
        "reached": packed(selection.reached[voter, :of], np.float32),
        "title": f"the {of} blocks of row {of}: those always kept first, then by score",
    }
