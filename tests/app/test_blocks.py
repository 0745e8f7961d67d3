"""What the canvas and the strip draw of a variant that keeps whole blocks."""

import base64

import numpy as np
import pytest

from analysis import masks as words
from app.ui.mask.data import mask_data, terms_of
from app.ui.strip.data import heads_of, kept_by, mask_name, router_count, router_label, router_of, strip_data
from focus_core.errors import Unsupported
from focus_core.pattern_blocks import BlockPattern
from tests.app.synthetic import HEADS, LAYERS, make_trace

TEXT = "The cat sat on the mat and looked at the rain. " * 12
BLOCK = 16


def as_blocks(trace):
    """The Trace as a variant would have left it that keeps whole blocks, every head its own."""
    n, rng = len(trace), np.random.default_rng(1)
    side = -(-n // BLOCK)
    for name in [n for n in trace.arrays if n in ("key_bits", "query_bits") or "_points." in n or "centroids." in n]:
        trace.arrays.pop(name)
    trace.provenance["block_size"] = BLOCK
    for layer in range(LAYERS):
        kept = np.tril(rng.random((1, HEADS, side, side)) < 0.5) | np.eye(side, dtype=bool)
        trace.arrays[f"block_mask.{layer}"] = BlockPattern(kept, BLOCK, HEADS, n, n).packed()
    return trace


@pytest.fixture(scope="module")
def trace():
    return as_blocks(make_trace(TEXT, window=0, sinks=0, variant="xattention"))


def bits(term, side):
    return np.frombuffer(base64.b64decode(term["bits"]), np.uint8).reshape(-1, side)


def test_every_head_has_a_mask_of_its_own(trace):
    assert router_count(trace) == HEADS
    assert [router_of(trace, h) for h in range(HEADS)] == list(range(HEADS))
    assert heads_of(trace, None, 2) == [2]
    assert (router_label(trace, 2), mask_name(trace, 2), kept_by(trace)) == ("Blocks of head 2", "head 2", "block")
    grouped = make_trace(TEXT)
    assert (router_label(grouped, 2), kept_by(grouped)) == ("Groups of KV head 2", "group")


def test_the_canvas_gets_the_blocks_and_no_window(trace):
    n, pattern = len(trace), trace.pattern(1)
    side = -(-n // BLOCK)
    mask = mask_data(trace, 1, 3)["mask"]
    (term,) = mask["terms"]
    assert (term["kind"], term["size"], term["columns"], mask["count"]) == ("blocks", BLOCK, side, n)
    assert np.array_equal(bits(term, side), pattern.kept[0, 3])
    with_more = BlockPattern(pattern.kept, BLOCK, HEADS, n, n, window=5, sinks=2)
    assert [t["kind"] for t in terms_of(with_more, 3)["terms"]] == ["window", "sinks", "blocks"]
    # Only the first tokens are drawn of a long text: the blocks are cut with it.
    (part,) = terms_of(pattern, 3, limit=40)["terms"]
    assert np.array_equal(bits(part, 3), pattern.kept[0, 3, :3, :3])
    padded = BlockPattern(pattern.kept, BLOCK, HEADS, n, n, first_key=np.array([3]))
    with pytest.raises(Unsupported, match="without padding"):
        terms_of(padded)


def test_the_strip_gets_the_blocks_of_the_shown_head(trace):
    data = strip_data(trace, 1, router=3)
    side = -(-len(trace) // BLOCK)
    assert np.array_equal(bits(data["blocks"], side), trace.pattern(1).kept[0, 3])
    assert (data["window"], data["sinks"], data["blocks"]["size"]) == (0, 0, BLOCK)
    assert "k" not in data
    assert "blocks" not in strip_data(make_trace(TEXT), 1)


def test_the_shares_name_the_blocks(trace):
    found = words.shares(trace.pattern(1), 3)
    assert set(found) == {"near", "sink", "block", "dropped"}
    assert found["near"] == found["sink"] == 0
    assert found["block"] == pytest.approx(trace.pattern(1).density(0, 3))
    assert found["block"] + found["dropped"] == pytest.approx(1)
