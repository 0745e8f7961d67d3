"""Recorders for ``retrofit``: the pairs a variant really kept, and the memberships it used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from focus_core.pattern import GroupPattern, Pattern

if TYPE_CHECKING:
    from focus_core.variants import AttentionCall, Variant


def kept_pattern(call: AttentionCall, variant: Variant) -> Pattern:
    """The pairs that this call keeps; a layer with its own sliding window keeps that window's."""
    if call.sliding_window is None:
        return variant.pattern(call)
    batch, heads, queries, _ = call.query.shape
    first = None if call.first_key is None else call.first_key.cpu().numpy()
    return GroupPattern.without_groups(
        batch, queries, call.key.shape[2], heads, call.sliding_window, sinks=0, first_key=first
    )


class PairCounter:
    """Kept over causal pairs of every layer, for each sequence of the batch."""

    def __init__(self) -> None:
        self.layers: dict[int, list[float]] = {}

    def record(self, call: AttentionCall, variant: Variant) -> None:
        """Count one call's pairs."""
        pattern = kept_pattern(call, variant)
        self.layers[call.layer] = [pattern.density(b) for b in range(pattern.batch)]

    def kept(self, batch: int) -> list[float]:
        """(layers,) kept fraction of one sequence, mean over query heads."""
        return [self.layers[layer][batch] for layer in sorted(self.layers)]


class Memberships:
    """What decided each pair of the first sequence, comparable between two ways of running the same tokens.

    Group patterns are held as their sets, any other pattern as its rows. Layers with their own sliding window are
    left out: nothing is decided there.
    """

    def __init__(self) -> None:
        self._queries: dict[int, list[np.ndarray]] = {}
        self._keys: dict[int, np.ndarray | None] = {}

    def record(self, call: AttentionCall, variant: Variant) -> None:
        """Keep one call's sets or rows; calls of a layer are the pieces of one sequence, in order."""
        if call.sliding_window is not None:
            return
        pattern = variant.pattern(call)
        if isinstance(pattern, GroupPattern):
            piece, keys = pattern.query_bits[0], pattern.key_bits[0]
        else:
            everything = slice(0, pattern.queries), slice(0, pattern.keys)
            piece, keys = np.stack([pattern.tile(0, h, *everything) for h in range(pattern.heads)]), None
        self._queries.setdefault(call.layer, []).append(piece)
        self._keys[call.layer] = keys

    def flips(self, other: Memberships, upto: int) -> tuple[int, int]:
        """Compare with another run of the same first ``upto`` tokens.

        Returns:
            The number of (layer, router or head, token) that differ, and the first such token (``upto`` if none).
        """
        count, first = 0, upto
        for layer, keys in self._keys.items():
            differs = self._rows(layer, upto) != other._rows(layer, upto)
            moved = differs.any(-1) if differs.ndim == 3 else differs
            theirs = other._keys[layer]
            if keys is not None and theirs is not None:
                moved = moved | (keys[:, :upto] != theirs[:, :upto])
            count += int(moved.sum())
            where = np.flatnonzero(moved.any(0))
            first = min(first, int(where[0])) if len(where) else first
        return count, first

    def count(self, upto: int) -> int:
        """Number of (layer, router or head, token) that ``flips`` compares."""
        return sum(len(pieces[0]) * upto for pieces in self._queries.values())

    def _rows(self, layer: int, upto: int) -> np.ndarray:
        pieces = self._queries[layer]
        if pieces[0].ndim == 2:
            return np.concatenate(pieces, 1)[:, :upto]
        width = max(p.shape[2] for p in pieces)
        padded = [np.pad(p, ((0, 0), (0, 0), (0, width - p.shape[2]))) for p in pieces]
        return np.concatenate(padded, 1)[:, :upto, :upto]
