"""What tokens look for: far pairs that groups keep, by the part of speech of the query and of the key."""

from __future__ import annotations

import numpy as np

from focus_core.interpret.sample import Sample


def far_pairs(
    query_bits: np.ndarray, key_bits: np.ndarray, tags: np.ndarray, kinds: int, *, window: int, sinks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Far pairs of one window by the tags of query and key.

    Far: causal, outside the window and not with a first token, where groups alone decide.

    Args:
        query_bits: (R, N) sets that tokens look into.
        key_bits: (R, N) sets that they are in.
        tags: (N,) tag of each token, -1 for none.
        kinds: number of tags.
        window: w.
        sinks: first tokens that all see.

    Returns:
        (kinds, kinds) kept pairs, summed over routers; (kinds, kinds) pairs there are, of one router. Rows are queries.
    """
    n = len(tags)
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    far = (i - j >= window) & (j >= sinks)
    rows = (tags[:, None] == np.arange(kinds)).astype(np.float32)
    possible = rows.T @ far.astype(np.float32) @ rows
    kept = np.zeros((kinds, kinds))
    for q, k in zip(query_bits, key_bits, strict=True):
        kept += rows.T @ (far & ((q[:, None] & k[None]) != 0)).astype(np.float32) @ rows
    return kept, possible


def looked_for(
    sample: Sample, query_bits: np.ndarray, key_bits: np.ndarray, kinds: int, *, window: int
) -> tuple[np.ndarray, np.ndarray]:
    """``far_pairs`` of all windows: (kinds, kinds) kept over possible, and the pairs there are.

    Args:
        sample: the tokens.
        query_bits: (R, N) sets of one layer that tokens look into.
        key_bits: (R, N) sets that they are in.
        kinds: number of tags.
        window: w.
    """
    kept, possible = np.zeros((kinds, kinds)), np.zeros((kinds, kinds))
    for w in range(int(sample.window.max()) + 1):
        at = sample.window == w
        found = far_pairs(
            query_bits[:, at], key_bits[:, at], sample.parts.tags[at], kinds, window=window, sinks=sample.sinks
        )
        kept += found[0]
        possible += found[1]
    return kept / np.maximum(possible * len(query_bits), 1), possible
