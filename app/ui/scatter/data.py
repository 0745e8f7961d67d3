"""What the map draws, as plain JSON values: coordinates, sets, tags and the text, packed once."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from typing import Any

import numpy as np
from plotly.colors import sample_colorscale

from analysis import palette
from analysis.groups import Group, far_from_sinks, is_directed, members, word_types
from analysis.parts import KINDS, Parts
from focus_core.trace import Trace

COLOURS = ("group", "part", "position", "frequency")
MAX_SHOWN = 8192
NONE = 255
_ISLANDS = 24


def scatter_data(
    trace: Trace,
    layer: int,
    router: int,
    *,
    points: np.ndarray,
    centroids: np.ndarray,
    table: list[Group],
    parts: Parts | None,
    colour: str = "group",
    select: tuple[int | None, int | None, int] | None = None,
) -> dict[str, Any]:
    """Everything the map needs.

    Args:
        trace: the run.
        layer: shown layer.
        router: shown router.
        points: (P, N, 2) coordinates of keys, then of queries where P = 2.
        centroids: (K, 2) coordinates of the groups' centroids; empty for none.
        table: the groups of the keys, for names and shares.
        parts: parts of speech; None when there are none.
        colour: one of ``COLOURS``, shown first.
        select: (group, token, number) selects once for each new number.
    """
    n = min(len(trace), MAX_SHOWN)
    both = np.concatenate([points[:, :n].reshape(-1, 2), np.asarray(centroids).reshape(-1, 2)]).astype(np.float64)
    low, high = both.min(0), both.max(0)
    unit = np.clip((both - low) / np.maximum(high - low, 1e-9), 0, 1)
    packed = np.round(unit * 65535).astype(np.uint16)
    count = len(points) * n
    keys = trace.arrays["key_bits"][layer, router, :n]
    queries = trace.arrays["query_bits"][layer, router, :n]
    counted = far_from_sinks(trace)[:n]
    joined = members(trace, layer, router)[:n]
    begin, end, specials = _offsets(trace, n)
    types = word_types(trace)[:n]
    often = Counter(types)
    data: dict[str, Any] = {
        "count": n,
        "sides": len(points),
        "points": _pack(packed[:count], np.uint16),
        "centroids": _pack(packed[count:], np.uint16),
        "k": _words(keys),
        "q": _words(queries),
        "key_group": _pack(_telling(keys, counted), np.uint8),
        "query_group": _pack(_telling(queries, counted), np.uint8),
        "middles": _pack(np.round(middles(unit[:n], joined) * 65535), np.uint16),
        "parts": "" if parts is None else _pack(np.where(parts.kinds[:n] < 0, NONE, parts.kinds[:n]), np.uint8),
        "often": _pack(np.minimum([often[t] for t in types], 65535), np.uint16),
        "begin": _pack(begin, np.int32),
        "end": _pack(end, np.int32),
        "specials": specials,
        "text": trace.text[: _characters(trace, n)],
        "names": [group.name for group in table],
        "shares": [round(group.share, 4) for group in table],
        "kinds": list(KINDS),
        "directed": is_directed(trace),
        "colours": list(palette.GROUPS),
        "ramp": RAMP,
        "colour": colour,
    }
    data["tokens"] = _digest(data["text"], data["begin"])
    data["place"] = _digest(data["tokens"], str(layer), str(router))
    data["id"] = _digest(*(str(value) for value in data.values()))
    return data | {"select": list(select) if select else None}


RAMP = sample_colorscale("Cividis", np.linspace(0.04, 1, 16).tolist())


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _telling(bits: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """(N,) one group of each set, for its colour: of several, the one that the fewest tokens share.

    A group that every token looks into tells nothing about any of them.
    """
    joined = (bits[:, None] >> np.arange(64, dtype=np.int64)) & 1 != 0
    if not len(bits):
        return np.zeros(0, np.uint8)
    size = joined[counted].sum(0) if counted.any() else joined.sum(0)
    rare = np.where(joined, np.maximum(size, 1), np.iinfo(np.int64).max).argmin(1)
    return np.where(joined.any(1), rare, NONE).astype(np.uint8)


def middles(points: np.ndarray, joined: np.ndarray) -> np.ndarray:
    """(K, 2) a place on the map for each group's letter: a token in the middle of its largest island.

    Not the centroid: a bias that balances the groups moves their borders, so tokens need not lie near it.

    Args:
        points: (N, 2) in the unit square.
        joined: (N, K) memberships.
    """
    cells = np.minimum((points * _ISLANDS).astype(int), _ISLANDS - 1)
    cell = cells[:, 0] * _ISLANDS + cells[:, 1]
    out = np.zeros((joined.shape[1], 2))
    for g in range(joined.shape[1]):
        own = np.flatnonzero(joined[:, g])
        if len(own):
            inside = own[cell[own] == np.bincount(cell[own]).argmax()]
            centre = points[inside].mean(0)
            out[g] = points[inside[((points[inside] - centre) ** 2).sum(1).argmin()]]
    return out


def _offsets(trace: Trace, n: int) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Begin and end of each token in the text as JavaScript counts it, and the tokens that are not in the text.

    A token that is a part of a character is shown as the whole character.
    """
    spans = trace.arrays.get("byte_span")
    if spans is None:
        return np.zeros(n, np.int32), np.zeros(n, np.int32), dict(enumerate(trace.tokens[:n]))
    raw = np.frombuffer(trace.text.encode("utf-8"), np.uint8)
    leads = (raw & 0xC0) != 0x80
    units = np.concatenate([[0], np.cumsum(np.where(leads, 1 + (raw >= 0xF0), 0))])
    index = np.concatenate([np.cumsum(leads) - 1, [leads.sum()]])
    at_lead = np.concatenate([units[:-1][leads], units[-1:]])
    first, last = spans[:n, 0].astype(np.int64), spans[:n, 1].astype(np.int64)
    begin = at_lead[index[np.minimum(first, len(raw))]]
    end = at_lead[np.minimum(index[np.maximum(last - 1, 0)] + 1, len(at_lead) - 1)] if len(raw) else begin
    specials = {int(t): trace.tokens[t] for t in np.flatnonzero(first == last)}
    return begin.astype(np.int32), end.astype(np.int32), specials


def _characters(trace: Trace, n: int) -> int:
    """Characters of the text up to a little after the last shown token, for its context."""
    spans = trace.arrays.get("byte_span")
    if spans is None or not n:
        return 0
    raw = trace.text.encode("utf-8")
    return len(raw[: int(spans[:n, 1].max())].decode("utf-8", "ignore")) + 60


def _words(bits: np.ndarray) -> list[str]:
    """int64 sets as low and, where used, high uint32 words."""
    unsigned = np.ascontiguousarray(bits, np.int64).view(np.uint64)
    low, high = unsigned & np.uint64(0xFFFFFFFF), unsigned >> np.uint64(32)
    return [_pack(low, np.uint32), _pack(high, np.uint32) if high.any() else ""]


def _pack(values: Any, dtype: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode("ascii")
