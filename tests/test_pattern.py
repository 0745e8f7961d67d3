"""GroupPattern against pairs spelt out one by one."""

import numpy as np
import pytest

from focus_core import pattern as module
from focus_core.pattern import GroupPattern


def sets(shape, groups, members, seed=0):
    rng = np.random.default_rng(seed)
    order = rng.random((*shape, groups)).argsort(-1)[..., :members].astype(np.uint64)
    return np.bitwise_or.reduce(np.uint64(1) << order, -1).view(np.int64)


def brute(p: GroupPattern, batch: int, head: int) -> np.ndarray:
    out = np.zeros((p.queries, p.keys), bool)
    router = head // (p.heads // p.key_bits.shape[1])
    first = 0 if p.first_key is None else int(p.first_key[batch])
    for n in range(p.queries):
        i = p.keys - p.queries + n
        for j in range(first, i + 1):
            shared = int(p.query_bits[batch, router, n]) & int(p.key_bits[batch, router, j])
            out[n, j] = i - j < p.window or j - first < p.sinks or shared != 0
    return out


def made(
    *, batch=2, heads=6, routers=3, queries=40, keys=40, groups=8, wanted=2, held=1, window=4, sinks=2, first=None
):
    query, key = sets((batch, routers, queries), groups, wanted), sets((batch, routers, keys), groups, held, 1)
    return GroupPattern(query, key, heads, window, sinks, None if first is None else np.array(first))


CASES = {
    "plain": {},
    "one router": {"routers": 1, "heads": 4},
    "a router a head": {"routers": 6},
    "last queries": {"queries": 9},
    "one query": {"queries": 1},
    "padded": {"first": [0, 13]},
    "padded, last queries": {"first": [7, 38], "queries": 9},
    "a row of pads": {"first": [3, 40]},
    "window of one, no sinks": {"window": 1, "sinks": 0},
    "sinks past the window": {"window": 2, "sinks": 9},
    "more sinks than keys": {"sinks": 60},
    "dense": {"window": 40, "sinks": 0},
    "many sets": {"groups": 64, "wanted": 5, "held": 3},
    "bit 63": {"groups": 64, "wanted": 20, "held": 1},
}


@pytest.mark.parametrize("limit", [512, 5], ids=["counted by sets", "counted by rows"])
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_pairs_one_by_one(name, limit, monkeypatch):
    monkeypatch.setattr(module, "_MAX_DISTINCT_SETS", limit)
    monkeypatch.setattr(module, "_CHUNK_CELLS", 130)
    p = made(**CASES[name])
    kept, possible = 0, 0
    for b in range(p.batch):
        first = 0 if p.first_key is None else p.first_key[b]
        row_possible = [max(0, i + 1 - first) for i in range(p.keys - p.queries, p.keys)]
        assert p.possible_per_query(b).tolist() == row_possible
        row_kept = 0
        for h in range(p.heads):
            wanted = brute(p, b, h)
            assert np.array_equal(p.tile(b, h, slice(0, p.queries), slice(0, p.keys)), wanted)
            assert np.array_equal(p.kept_per_query(b, h), wanted.sum(1))
            one = wanted.sum() / sum(row_possible) if sum(row_possible) else 1.0
            assert p.density(b, h) == pytest.approx(one, abs=1e-12)
            row_kept += wanted.sum()
        row = row_kept / (p.heads * sum(row_possible)) if sum(row_possible) else 1.0
        assert p.density(b) == pytest.approx(row, abs=1e-12)
        kept, possible = kept + row_kept, possible + p.heads * sum(row_possible)
    assert p.density() == pytest.approx(kept / possible, abs=1e-12)


@pytest.mark.parametrize("rows, cols", [((0, 40), (0, 40)), ((3, 17), (5, 30)), ((39, 40), (0, 1)), ((8, 8), (0, 40))])
def test_a_tile_is_a_part_of_the_whole(rows, cols):
    p = made(first=[0, 6])
    whole = p.tile(1, 4, slice(0, 40), slice(0, 40))
    tile = p.tile(1, 4, slice(*rows), slice(*cols))
    assert np.array_equal(tile, whole[slice(*rows), slice(*cols)])
    assert np.array_equal(p.tile(1, 4, slice(*rows), slice(None, cols[1])), whole[slice(*rows), : cols[1]])


@pytest.mark.parametrize("size", [1, 7, 16, 40, 64])
@pytest.mark.parametrize("given", [{}, {"first": [0, 21], "queries": 30, "window": 1, "sinks": 0}])
def test_a_block_is_on_when_any_pair_is(size, given):
    p = made(**given)
    whole = brute(p, 1, 5)
    blocks = p.blocks(size, 1, 5)
    assert blocks.shape == (-(-p.queries // size), -(-p.keys // size))
    for (r, c), on in np.ndenumerate(blocks):
        assert on == whole[r * size : (r + 1) * size, c * size : (c + 1) * size].any()


def test_without_groups_is_window_and_sinks():
    p = GroupPattern.without_groups(2, 9, 30, 4, window=3, sinks=1, first_key=np.array([0, 4]))
    for b in range(2):
        assert np.array_equal(p.tile(b, 0, slice(0, 9), slice(0, 30)), brute(p, b, 0))
        assert (p.kept_per_query(b, 3) == 4).all()
    assert GroupPattern.without_groups(1, 30, 30, 4, window=30).density() == 1


def test_a_long_pattern_is_counted_without_its_mask():
    """16,384 tokens: 268 million cells, counted in well under the time that drawing them takes."""
    n = 16384
    p = made(batch=1, heads=1, routers=1, queries=n, keys=n, groups=16, wanted=4, window=128, sinks=4)
    far = (n - 132) * (n - 131) / 2
    near = n * (n + 1) / 2 - far
    assert p.density() == pytest.approx((near + far / 4) / (near + far), rel=0.01)
