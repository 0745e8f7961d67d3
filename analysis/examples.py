"""Tokens in context, one line each: a concordance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from focus_core.trace import Trace

WIDTH = 48


@dataclass(frozen=True)
class Line:
    """One token and the text round it, newlines shown.

    Attributes:
        token: its position. before, text, after: what stands there.
    """

    token: int
    before: str
    text: str
    after: str


def spread_out(positions: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` of the positions, evenly over all of them."""
    if len(positions) <= count:
        return positions
    return positions[np.unique(np.linspace(0, len(positions) - 1, count).round().astype(int))]


def concordance(trace: Trace, tokens: np.ndarray, width: int = WIDTH) -> list[Line]:
    """Lines for the tokens; a token that is a part of a character is shown as that character.

    Args:
        trace: the run.
        tokens: positions.
        width: characters of context on each side.
    """
    spans = trace.arrays.get("byte_span")
    raw = trace.text.encode("utf-8")
    lines = []
    for token in map(int, tokens):
        if spans is None or spans[token][0] == spans[token][1]:
            lines.append(Line(token, "", trace.tokens[token], ""))
            continue
        begin, end = map(int, spans[token])
        while begin > 0 and raw[begin] & 0xC0 == 0x80:
            begin -= 1
        while end < len(raw) and raw[end] & 0xC0 == 0x80:
            end += 1
        before = raw[max(0, begin - 4 * width) : begin].decode("utf-8", "ignore")[-width:]
        after = raw[end : end + 4 * width].decode("utf-8", "ignore")[:width]
        shown = raw[begin:end].decode("utf-8", "replace")
        bare = shown.lstrip(" ") or "␣" * len(shown)
        gap = " " if bare != shown and shown.strip(" ") else ""
        lines.append(Line(token, _flat(before + gap), _flat(bare), _flat(after)))
    return lines


def _flat(text: str) -> str:
    return text.replace("\n", "↵").replace("\t", "⇥")
