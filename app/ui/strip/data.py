"""What the token strip draws, as plain JSON values: cells of whole characters, group sets, window, sinks, marks."""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from focus_core.pattern_blocks import BlockPattern
from focus_core.trace import Trace

MAX_SHOWN = 8192


@dataclass(frozen=True)
class Lost:
    """Where one query's dense attention went, and which of it the mask drops.

    Attributes:
        query: position of the query.
        mass: (query + 1,) dense attention mass, mean over the chosen heads.
        kept: (query + 1,) whether the mask keeps the key.
        keys: dropped keys of the smallest set that holds 90 % of the mass, most mass first.
    """

    query: int
    mass: np.ndarray
    kept: np.ndarray
    keys: np.ndarray

    @property
    def share(self) -> float:
        """Mass of all dropped keys, 0 to 1."""
        return float(self.mass[~self.kept].sum())

    @property
    def lost_share(self) -> float:
        """Mass of the lost keys, 0 to 1."""
        return float(self.mass[self.keys].sum())


def router_of(trace: Trace, head: int | None, router: int = 0) -> int:
    """The router that serves a query head; ``router`` itself when all heads are shown."""
    routers = router_count(trace)
    return min(router, routers - 1) if head is None else head * routers // int(trace.provenance["heads"])


def router_count(trace: Trace) -> int:
    """Masks a layer: one a router (1, or one a KV head), or one a head where blocks are kept; 1 without either."""
    if trace.has_blocks:
        return next(len(array) for name, array in trace.arrays.items() if name.startswith("block_mask."))
    return int(trace.arrays["key_bits"].shape[1]) if "key_bits" in trace.arrays else 1


def router_label(trace: Trace, router: int) -> str:
    """What one of a layer's masks is called."""
    return f"{kept_by(trace).capitalize()}s of {mask_name(trace, router)}"


def mask_name(trace: Trace, router: int) -> str:
    """Whose mask it is: ``KV head 2``, or ``head 2`` where every query head keeps its own blocks."""
    return f"{'' if trace.has_blocks and router_count(trace) == trace.provenance['heads'] else 'KV '}head {router}"


def kept_by(trace: Trace) -> str:
    """What far pairs are kept by: ``group`` or ``block``."""
    return "block" if trace.has_blocks else "group"


def heads_of(trace: Trace, head: int | None, router: int) -> list[int]:
    """The query heads that are meant: one, or all that the shown router serves."""
    if head is not None:
        return [head]
    heads, routers = int(trace.provenance["heads"]), router_count(trace)
    return [h for h in range(heads) if h * routers // heads == router]


def lost_keys(trace: Trace, layer: int, query: int, head: int | None = None, router: int = 0) -> Lost | None:
    """Dense mass of one query and what the mask drops of it; None where q and k of the layer were not recorded.

    Lost is a dropped key in the smallest set of keys that holds 90 % of the mass.
    """
    if f"queries.{layer}" not in trace.arrays:
        return None
    router = router_of(trace, head, router)
    heads = heads_of(trace, head, router)
    mass = trace.dense_mass(layer, query, heads)
    pattern = trace.pattern(layer)
    kept = pattern.tile(0, heads[0], slice(query, query + 1), slice(0, query + 1))[0]
    order = np.argsort(-mass, kind="stable")
    needed = int(np.searchsorted(np.cumsum(mass[order]), 0.9 * mass.sum())) + 1
    core = order[:needed]
    return Lost(query, mass, kept, core[~kept[core]])


def cells(trace: Trace, count: int | None = None) -> tuple[list[str], np.ndarray]:
    """Group tokens into cells that hold whole characters.

    Tokens that are parts of one character, and marks that belong to the character before them, share a cell, so text
    flows and shapes as it would without cells.

    Returns:
        The text of each cell, in reading order, and the first token of each cell (plus one past the end).
    """
    n = len(trace) if count is None else min(count, len(trace))
    spans = trace.arrays.get("byte_span")
    if spans is None:
        return list(trace.tokens[:n]), np.arange(n + 1)
    raw = trace.text.encode("utf-8")
    texts: list[str] = []
    first: list[int] = []
    start = done = int(spans[0][0]) if n else 0
    for i, (begin, end) in enumerate(spans[:n].tolist()):
        special = begin == end
        whole = begin >= done and not (done < len(raw) and raw[done] & 0xC0 == 0x80)
        if special or whole or not first:
            start = done
            first.append(i)
            texts.append("")
        done = max(done, end)
        texts[-1] = trace.tokens[i] if special else raw[start:done].decode("utf-8", "replace")
    return _join_marks(texts, first, n)


def _join_marks(texts: list[str], first: list[int], count: int) -> tuple[list[str], np.ndarray]:
    """Merge each cell that continues the character of the cell before."""
    joined: list[str] = []
    starts: list[int] = []
    for text, begin in zip(texts, first, strict=True):
        if joined and text and joined[-1] and _continues(joined[-1], text):
            joined[-1] += text
        else:
            joined.append(text)
            starts.append(begin)
    return joined, np.asarray([*starts, count])


def _continues(before: str, after: str) -> bool:
    head = after[0]
    if before[-1] == "\u200d" or head in "\u200d\ufe0f" or unicodedata.category(head) in ("Mn", "Me", "Mc"):
        return True
    if "\U0001f3fb" <= head <= "\U0001f3ff":
        return True
    flags = 0
    for c in reversed(before):
        if not "\U0001f1e6" <= c <= "\U0001f1ff":
            break
        flags += 1
    return flags % 2 == 1 and "\U0001f1e6" <= head <= "\U0001f1ff"


def strip_data(
    trace: Trace,
    layer: int,
    *,
    router: int = 0,
    mode: str = "groups",
    lost: Lost | None = None,
    select: tuple[int, int] | None = None,
    limit: int = MAX_SHOWN,
) -> dict[str, Any]:
    """Everything the strip needs, as JSON values.

    Args:
        trace: the run.
        layer: shown layer.
        router: shown router.
        mode: ``groups`` or ``damage`` (change of each token's log-likelihood against dense).
        lost: the pinned query's lost keys; None while nothing is pinned.
        select: (token, number) pins that token once for each new number.
        limit: most tokens that are drawn.
    """
    n = min(len(trace), limit)
    p = trace.provenance
    texts, first = cells(trace, n)
    counts = np.diff(first)
    several = np.flatnonzero(counts > 1)
    own = p["native"][layer]
    data: dict[str, Any] = {
        "cells": texts,
        "several": {int(c): int(counts[c]) for c in several},
        "pieces": {int(c): _pieces(trace, int(first[c]), int(first[c + 1])) for c in several},
        "ids": _pack(trace.arrays["token_ids"][:n], np.int32) if "token_ids" in trace.arrays else "",
        "count": n,
        "total": len(trace),
        "layer": layer,
        "mode": mode,
        "window": int(own if own is not None else p["window"]),
        "sinks": 0 if own is not None else int(p.get("sinks") or 0),
        "select": list(select) if select else None,
        "lost": None,
    }
    if "key_bits" in trace.arrays and own is None:
        keys, queries = trace.arrays["key_bits"][layer, router, :n], trace.arrays["query_bits"][layer, router, :n]
        data |= {"k": _words(keys), "q": _words(queries), "groups": group_shares(keys)}
    pattern = trace.pattern(layer) if trace.has_blocks else None
    if isinstance(pattern, BlockPattern):
        side = -(-n // pattern.block)
        kept = pattern.kept[0, router, :side, :side]
        data["blocks"] = {"size": pattern.block, "columns": side, "bits": _pack(kept, np.uint8)}
    if "nll" in trace.arrays and "dense_nll" in trace.arrays:
        change = np.concatenate([[0.0], (trace.arrays["dense_nll"] - trace.arrays["nll"])[: n - 1]])
        data |= {"change": _pack(change, np.float32), "scale": change_scale(change)}
    if lost is not None:
        shown = lost.keys[lost.keys < n]
        data["lost"] = {"query": lost.query, "keys": shown.tolist(), "mass": np.round(lost.mass[shown], 4).tolist()}
    return data


def change_scale(change: np.ndarray) -> float:
    """End of the symmetric colour scale: the 99th percentile of absolute change, at least 0.1 nats."""
    return float(max(np.quantile(np.abs(change), 0.99), 0.1)) if len(change) else 0.1


def group_shares(keys: np.ndarray) -> list[list[float]]:
    """``[group, share of tokens]`` of every group that holds a token."""
    if not len(keys):
        return []
    counted = [(g, float(((keys >> np.int64(g)) & 1).mean())) for g in range(64)]
    return [[g, share] for g, share in counted if share > 0]


def _pieces(trace: Trace, begin: int, end: int) -> list[str]:
    """What each token of a shared cell is: its bytes, or its text where it is whole characters."""
    raw, spans = trace.text.encode("utf-8"), trace.arrays["byte_span"]
    found = []
    for i in range(begin, end):
        piece = raw[int(spans[i][0]) : int(spans[i][1])]
        try:
            found.append(piece.decode("utf-8"))
        except UnicodeDecodeError:
            found.append("bytes " + piece.hex(" ").upper())
    return found


def _words(bits: np.ndarray) -> list[str]:
    """int64 sets as low and, where used, high uint32 words."""
    unsigned = np.ascontiguousarray(bits, np.int64).view(np.uint64)
    low, high = unsigned & np.uint64(0xFFFFFFFF), unsigned >> np.uint64(32)
    return [_pack(low, np.uint32), _pack(high, np.uint32) if high.any() else ""]


def _pack(values: Sequence[Any] | np.ndarray | Iterable[Any], dtype: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode("ascii")
