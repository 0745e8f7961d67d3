"""FlashSFA's tile-wise softmax on a few tokens, one state a stage, as ``focus_core.kernels.sfa.tiled`` computes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.features.codes import Codes, Head, support

STAGES = ("Keys by dimension", "Shared dimensions", "Scores", "Running maximum", "Running sum and output")


@dataclass(frozen=True)
class Tile:
    """One tile after it was added.

    Attributes:
        rows, cols: tokens of its queries and of its keys.
        postings: keys of the tile by feature: ``{feature: [(key, value)]}``, ascending.
        hits: (query, key, feature, product) of every shared feature, the scale included.
        scores: (rows, cols); pairs without a hit have 0, later keys -inf.
        before, maximum: (rows,) running maximum before and after this tile.
        faded: (rows,) what is left of the earlier sum where the maximum has grown.
        added, total: (rows,) sum of this tile's weights, and the running sum after it.
        output: (rows, all keys) running output, not yet divided: of values that are 1 at their own key and 0 at all
            others, so that it is the attention itself.
    """

    rows: range
    cols: range
    postings: dict[int, list[tuple[int, float]]]
    hits: list[tuple[int, int, int, float]]
    scores: np.ndarray
    before: np.ndarray
    maximum: np.ndarray
    faded: np.ndarray
    added: np.ndarray
    total: np.ndarray
    output: np.ndarray


@dataclass(frozen=True)
class Tiles:
    """All tiles of a few queries, and the attention (rows, keys) that they come to."""

    tiles: list[Tile]
    keys: range
    attention: np.ndarray


def walk(head: Head, rows: range, keys: range, width: int, codes: Codes) -> Tiles:
    """Go through the tiles of some queries over some keys.

    Args:
        head: the head.
        rows: queries.
        keys: the keys that are looked at; the softmax is over these alone.
        width: keys a tile.
        codes: how codes are made.
    """
    queries = head.queries[rows.start : rows.stop]
    wanted = np.ones(queries.shape, bool) if codes.sparse == "keys" else support(queries, codes)
    held = support(head.keys[keys.start : keys.stop], codes)
    maximum = np.full(len(rows), -np.inf)
    total, output = np.zeros(len(rows)), np.zeros((len(rows), len(keys)))
    found = []
    for left in range(keys.start, keys.stop, width):
        cols = range(left, min(left + width, keys.stop))
        inside = slice(cols.start - keys.start, cols.stop - keys.start)
        postings = _postings(head.keys, held[inside], cols)
        hits = _intersect(queries, wanted, postings, rows, head.scale)
        scores = np.zeros((len(rows), len(cols)))
        touched = np.zeros(scores.shape, bool)
        for query, key, _, product in hits:
            scores[query - rows.start, key - cols.start] += product
            touched[query - rows.start, key - cols.start] = True
        if head.softcap is not None:
            scores = head.softcap * np.tanh(scores / head.softcap)
        kept = np.array(cols)[None, :] <= np.array(rows)[:, None]
        if codes.no_overlap == "exclude":
            kept = kept & touched
        scores = np.where(kept, scores, -np.inf)
        before, maximum = maximum, np.maximum(maximum, scores.max(1))
        shift = np.where(np.isinf(maximum), 0, maximum)
        weights, faded = np.exp(scores - shift[:, None]), np.exp(before - shift)
        added = weights.sum(1)
        total = total * faded + added
        output = output * faded[:, None]
        output[:, inside] += weights
        found.append(
            Tile(rows, cols, postings, hits, scores, before, maximum, faded, added, total.copy(), output.copy())
        )
    return Tiles(found, keys, output / np.where(total == 0, 1, total)[:, None])


def _postings(keys: np.ndarray, held: np.ndarray, cols: range) -> dict[int, list[tuple[int, float]]]:
    found: dict[int, list[tuple[int, float]]] = {}
    for feature, at in zip(*held.T.nonzero(), strict=True):
        key = cols.start + int(at)
        found.setdefault(int(feature), []).append((key, float(keys[key, feature])))
    return found


def _intersect(
    queries: np.ndarray, wanted: np.ndarray, postings: dict[int, list[tuple[int, float]]], rows: range, scale: float
) -> list[tuple[int, int, int, float]]:
    """Every query walks its own features and meets the keys in their lists."""
    return [
        (query, key, int(feature), float(queries[at, feature]) * value * scale)
        for at, query in enumerate(rows)
        for feature in wanted[at].nonzero()[0]
        for key, value in postings.get(int(feature), ())
    ]
