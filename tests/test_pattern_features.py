"""Pairs by shared features, against the sets spelt out."""

import numpy as np

from focus_core.pattern_features import FeaturePattern


def test_a_pair_is_kept_where_supports_meet():
    rng = np.random.default_rng(0)
    query, key = rng.random((2, 6, 5, 8)) < 0.2, rng.random((2, 3, 9, 8)) < 0.2
    pattern = FeaturePattern(query, key, np.array([0, 3]))
    assert (pattern.batch, pattern.heads, pattern.queries, pattern.keys) == (2, 6, 5, 9)
    kept = possible = 0
    for b in range(2):
        for h in range(6):
            tile = pattern.tile(b, h, slice(0, 5), slice(0, 9))
            for n in range(5):
                for j in range(9):
                    causal = (0, 3)[b] <= j <= n + 4
                    assert tile[n, j] == (causal and bool((query[b, h, n] & key[b, h // 2, j]).any()))
                    possible += causal
            kept += tile.sum()
            assert np.array_equal(pattern.kept_per_query(b, h), tile.sum(1))
    assert pattern.density() == kept / possible
    assert 0 < kept < possible
