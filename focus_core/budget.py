"""How many bytes a Trace takes, and what it can hold within its budget. No torch: the app's process asks as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from focus_core.errors import InvalidInput, TooLarge

BYTE_BUDGET = 64 << 20
TOP_TOKENS = 8
"""Most likely next tokens that are kept after every token."""
MAX_SIMILAR_HEADS = 1_500
"""Heads of the whole model above which they are not compared with each other."""
_MOST_CENTROIDS = 64
_POINTS_SHARE = 4


def trace_bytes(shape: Any, tokens: int, layers: int, width: int = 0, routed: int = 0) -> int:
    """Bytes of a Trace's arrays before compression, at most.

    Args:
        shape: anything with ``layers``, ``heads``, ``kv_heads`` and ``head_dim``.
        tokens: length of the text.
        layers: number of layers whose q and k are kept.
        width: numbers a token and layer of the routing space; 0 without a router.
        routed: number of layers whose routing space is kept.
    """
    sets = 2 * 8 * shape.layers * shape.kv_heads * tokens
    vectors = 2 * layers * (shape.heads + shape.kv_heads) * shape.head_dim * tokens
    points = 2 * routed * width * (tokens + _MOST_CENTROIDS)
    heads = shape.layers * shape.heads
    similar = 2 * heads**2 if heads <= MAX_SIMILAR_HEADS else 0
    likely = 2 * TOP_TOKENS * (4 + 2) * tokens
    return sets + vectors + points + similar + likely + 16 * heads + 29 * tokens


def plan_layers(
    shape: Any, tokens: int, layers: str | Sequence[int] = "all", budget: int = BYTE_BUDGET, width: int = 0
) -> list[int]:
    """Layers whose q and k are kept: those asked for, or, for ``all``, as many as the budget holds, evenly spread.

    Raises:
        InvalidInput: there is no such layer.
        TooLarge: the layers that were named do not fit; the hint names how many do.
    """
    whole = _points_of_all(shape, tokens, budget, width)

    def need(count: int) -> int:
        return trace_bytes(shape, tokens, count, width, shape.layers if whole else count)

    one = need(1) - need(0)
    room = max(0, (budget - need(0)) // max(1, one))
    if isinstance(layers, str):
        if layers != "all":
            raise InvalidInput(f"layers is {layers!r}.", "It can be all, or a list of layer numbers.")
        count = min(shape.layers, max(1, room))
        return sorted({round(x) for x in np.linspace(0, shape.layers - 1, count)})
    wanted = sorted(set(layers))
    wrong = [x for x in wanted if not isinstance(x, int) or isinstance(x, bool) or not 0 <= x < shape.layers]
    if wrong:
        raise InvalidInput(f"There is no layer {wrong[0]!r}.", f"The model has layers 0 to {shape.layers - 1}.")
    if need(len(wanted)) > budget and len(wanted) > 1:
        raise TooLarge(
            f"Keeping q and k of {len(wanted)} layers over {tokens:,} tokens takes {need(len(wanted)) / 1e6:,.0f} MB; "
            f"a trace may take {budget / 1e6:,.0f} MB.",
            f"{max(1, room)} of these layers fit.",
        )
    return wanted


def plan_points(shape: Any, tokens: int, kept: list[int], budget: int = BYTE_BUDGET, width: int = 0) -> list[int]:
    """Layers whose routing space is kept: all where that is a small part of the budget, else those of q and k."""
    if not width:
        return []
    if _points_of_all(shape, tokens, budget, width):
        return list(range(shape.layers))
    return list(kept) if trace_bytes(shape, tokens, len(kept), width, len(kept)) <= budget else []


def _points_of_all(shape: Any, tokens: int, budget: int, width: int) -> bool:
    size = trace_bytes(shape, tokens, 0, width, shape.layers) - trace_bytes(shape, tokens, 0)
    return size <= budget // _POINTS_SHARE
