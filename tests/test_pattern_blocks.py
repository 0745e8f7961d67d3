"""BlockPattern against pairs spelt out one by one, and its way through a Trace file."""

import dataclasses

import numpy as np
import pytest

from focus_core import pattern_blocks as module
from focus_core.errors import InvalidInput
from focus_core.pattern_blocks import BlockPattern, grid_rows
from focus_core.trace import Trace
from focus_core.trace_files import open_trace


def brute(p: BlockPattern, batch: int, head: int) -> np.ndarray:
    out = np.zeros((p.queries, p.keys), bool)
    first = 0 if p.first_key is None else int(p.first_key[batch])
    past = max(0, p.keys - p.queries - first)
    blocks = p.kept[batch, head // (p.heads // p.kept.shape[1])]
    for n in range(p.queries):
        i = p.keys - p.queries + n - first
        for j in range(i + 1):
            held = blocks[i // p.block - past // p.block, j // p.block]
            out[n, j + first] = held or i - j < p.window or j < p.sinks
    return out


def made(*, batch=2, heads=4, masks=4, queries=40, keys=40, block=8, window=0, sinks=0, first=None, share=0.4):
    rng = np.random.default_rng(0)
    rows = max(grid_rows(queries, keys, block, f) for f in (first or [0]))
    kept = rng.random((batch, masks, rows, -(-keys // block))) < share
    return BlockPattern(kept, block, heads, queries, keys, window, sinks, None if first is None else np.array(first))


CASES = {
    "plain": {},
    "one mask for all heads": {"masks": 1},
    "a mask for two heads": {"masks": 2},
    "odd length": {"queries": 37, "keys": 37},
    "blocks longer than the text": {"block": 64},
    "last queries": {"queries": 9},
    "one query": {"queries": 1, "keys": 41},
    "queries that begin inside a block": {"queries": 13, "keys": 37},
    "padded": {"first": [0, 13]},
    "padded, last queries": {"first": [7, 38], "queries": 9},
    "a row of pads": {"first": [3, 40]},
    "window": {"window": 5},
    "window and first tokens": {"window": 3, "sinks": 2, "first": [0, 11]},
    "first tokens past the window": {"window": 1, "sinks": 12},
    "more first tokens than keys": {"sinks": 60},
    "window of everything": {"window": 60},
    "nothing": {"share": 0.0},
    "everything": {"share": 1.1},
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_pairs_one_by_one(name, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_CELLS", 50)
    p = made(**CASES[name])
    kept = possible = 0
    for b in range(p.batch):
        for h in range(p.heads):
            wanted = brute(p, b, h)
            assert np.array_equal(p.tile(b, h, slice(0, p.queries), slice(0, p.keys)), wanted)
            assert np.array_equal(p.tile(b, h, slice(2, 30, 3), slice(5, 31)), wanted[2:30:3, 5:31])
            assert np.array_equal(p.kept_per_query(b, h), wanted.sum(1))
            kept, possible = kept + wanted.sum(), possible + int(p.possible_per_query(b).sum())
            assert np.array_equal(p.only(p.router_of(h)).kept_per_query(b, h), wanted.sum(1))
    assert p.density() == pytest.approx(kept / possible if possible else 1)


def test_blocks_that_do_not_cover_the_pairs_are_refused():
    p = made()
    for wrong in ({"kept": p.kept[:, :, :4]}, {"kept": p.kept[..., :4]}, {"kept": p.kept[0]}, {"heads": 3}):
        with pytest.raises(InvalidInput, match=r"5|heads"):
            dataclasses.replace(p, **wrong)


def traced(n=37, block=8, **changed) -> tuple[Trace, BlockPattern]:
    p = made(batch=1, queries=n, keys=n, block=block)
    provenance = {
        **{"model": "m", "variant": "v", "layers": 2, "heads": 4, "kv_heads": 2, "window": 0, "sinks": 0},
        **{"native": [None, 8], "block_size": block, "scale": 1.0, "softcap": None},
    }
    arrays = {
        "block_mask.0": p.packed(),
        "kept_pairs": np.ones((2, 4), np.float32),
        "nll": np.ones(n - 1, np.float32),
        "dense_nll": np.ones(n - 1, np.float32),
    }
    return Trace({**provenance, **changed}, "x", ["x"] * n, arrays), p


def test_a_trace_keeps_blocks_as_bits_and_gives_them_back(tmp_path):
    trace, p = traced()
    back = open_trace(trace.save(tmp_path / "t.npz"))
    assert back.has_blocks
    got = back.pattern(0)
    assert np.array_equal(got.kept, p.kept)
    assert (got.block, got.heads, got.window) == (8, 4, 0)
    assert back.arrays["block_mask.0"].nbytes == 4 * 5 * 1
    # A layer with the model's own window keeps that window's pairs.
    assert not isinstance(back.pattern(1), BlockPattern)


@pytest.mark.parametrize(
    "size, bits, reason",
    [
        (0, None, "no mask of blocks of 0 tokens"),
        (None, None, "no mask of blocks of None tokens"),
        (16, None, "has the shape"),
        (8, np.zeros((3, 5, 1), np.uint8), "for 4 heads"),
        (8, np.zeros((4, 5, 1), np.int64), "no mask of blocks"),
        (8, np.zeros((4, 6, 1), np.uint8), "has the shape"),
    ],
)
def test_a_trace_file_whose_blocks_do_not_fit_is_refused(tmp_path, size, bits, reason):
    trace, _ = traced(block_size=size)
    if bits is not None:
        trace.arrays["block_mask.0"] = bits
    with pytest.raises(InvalidInput, match=reason):
        open_trace(trace.save(tmp_path / "t.npz"))
