"""What the mask canvas draws, as plain JSON values: terms (groups, window, sinks, blocks), tokens, lost pairs."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from analysis.masks import LostPairs
from focus_core.errors import Unsupported
from focus_core.pattern import GroupPattern, Pattern
from focus_core.pattern_blocks import BlockPattern
from focus_core.trace import Trace

MAX_SHOWN = 8192


def terms_of(pattern: Pattern, head: int = 0, batch: int = 0, limit: int = MAX_SHOWN) -> dict[str, Any]:
    """A pattern as the canvas reads it: ``{count, first, terms}``; see ``cells.js`` for the terms.

    Args:
        pattern: whole-sequence pattern (as many queries as keys) of window, sinks and groups or blocks.
        head: query head.
        batch: row of the batch.
        limit: first tokens that are drawn.
    """
    if not isinstance(pattern, GroupPattern | BlockPattern) or pattern.queries != pattern.keys:
        raise Unsupported("The mask canvas draws whole-sequence patterns of groups, blocks, window and sinks.")
    n = min(pattern.keys, limit)
    first = 0 if pattern.first_key is None else int(pattern.first_key[batch])
    terms: list[dict[str, Any]] = []
    if pattern.window:
        terms.append({"kind": "window", "size": int(min(pattern.window, n))})
    if pattern.sinks:
        terms.append({"kind": "sinks", "count": int(pattern.sinks)})
    router = pattern.router_of(head)
    if isinstance(pattern, BlockPattern):
        if first:
            raise Unsupported("The mask canvas draws blocks of rows without padding.")
        side = -(-n // pattern.block)
        terms.append(blocks_term(pattern.kept[batch, router, :side, :side], pattern.block))
        return {"count": n, "first": 0, "terms": terms}
    queries, keys = pattern.query_bits[batch, router, :n], pattern.key_bits[batch, router, :n]
    if queries.any() and keys.any():
        terms.append({"kind": "groups", "q": words(queries), "k": words(keys)})
    return {"count": n, "first": first, "terms": terms}


def blocks_term(kept: np.ndarray, size: int) -> dict[str, Any]:
    """A term that keeps whole blocks.

    Args:
        kept: (rows, columns) bool, one entry a block of ``size`` x ``size`` pairs.
        size: tokens a block.
    """
    return {"kind": "blocks", "size": int(size), "columns": int(kept.shape[1]), "bits": pack(kept, np.uint8)}


def mask_data(
    trace: Trace,
    layer: int,
    head: int,
    *,
    label: str = "",
    other: Trace | Pattern | None = None,
    other_label: str = "",
    lost: LostPairs | None = None,
    shares: dict[str, float] | None = None,
    said: str = "",
    select: tuple[int, int, int] | None = None,
    view: tuple[int, int, int, int] | None = None,
    limit: int = MAX_SHOWN,
) -> dict[str, Any]:
    """Everything the canvas needs, as JSON values.

    Args:
        trace: the run whose mask is drawn.
        layer: its layer.
        head: its query head (any that the shown router serves).
        label: what the run is called beside another one.
        other: a second mask over the same tokens, drawn over the first: kept by both, by one, by none.
        other_label: what it is called.
        lost: lost pairs of some rows (see :func:`analysis.masks.lost_pairs`); not drawn beside another mask.
        shares: share of the causal pairs of each kind, for the legend: ``group``, ``near``, ``sink``, ``dropped`` and
            ``lost``, or beside another mask ``both``, ``first``, ``second`` and ``neither``.
        said: a sentence under the legend.
        select: (query, key, number) pins a pair once for each new number; query -1 lets go.
        view: (first query, first key, tokens across, number) shows that part once for each new number.
        limit: first tokens that are drawn.
    """
    n = min(len(trace), limit)
    second = other.pattern(layer) if isinstance(other, Trace) else other
    return {
        "tokens": trace.tokens[:n],
        "count": n,
        "layer": layer,
        "mask": terms_of(trace.pattern(layer), head, limit=limit),
        "other": None if second is None else terms_of(second, head % second.heads, limit=limit),
        "names": [label, other_label],
        "lost": None if lost is None or second is not None else _lost(lost, n),
        "shares": {name: round(share, 6) for name, share in (shares or {}).items()},
        "said": said,
        "select": list(select) if select else None,
        "view": list(view) if view else None,
    }


def _lost(lost: LostPairs, count: int) -> dict[str, Any]:
    inside = lost.rows < count
    sizes = np.diff(lost.start)[inside]
    taken = np.repeat(inside, np.diff(lost.start))
    return {
        "rows": pack(lost.rows[inside], np.int32),
        "start": pack(np.concatenate([[0], np.cumsum(sizes)]), np.int32),
        "keys": pack(lost.keys[taken], np.uint16),
        "mass": pack(np.round(lost.mass[taken] * 65535), np.uint16),
    }


def words(bits: np.ndarray) -> list[str]:
    """int64 sets as low and, where used, high uint32 words."""
    unsigned = np.ascontiguousarray(bits, np.int64).view(np.uint64)
    low, high = unsigned & np.uint64(0xFFFFFFFF), unsigned >> np.uint64(32)
    return [pack(low, np.uint32), pack(high, np.uint32) if high.any() else ""]


def pack(values: Any, dtype: Any) -> str:
    """Numbers as base64 of their bytes."""
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode("ascii")
