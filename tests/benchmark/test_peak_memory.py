"""No cpu path holds an array of all pairs: what it holds grows with the tokens."""

import pytest

from benchmarks.memory import pairs_bytes, peaks
from focus_core.kernels import masked
from focus_core.variants import make

LENGTHS = (2048, 4096)
PATHS = [
    *("bigbird", "focus", "focus_sfa", "longformer", "performer", "random", "routing", "sfa", "window"),
    *("xattention", "xattention_sfa"),
]


@pytest.mark.parametrize("name", PATHS)
def test_twice_the_tokens_take_about_twice_the_memory(name):
    short, long = peaks(make(name), LENGTHS)
    assert long < pairs_bytes(LENGTHS[1])
    assert long < 3 * short


@pytest.mark.parametrize("name, form", [("sfa", {"no_overlap": "exclude"}), ("xattention", {"mode": "oracle"})])
def test_masks_of_single_pairs_are_made_a_stripe_at_a_time(name, form, monkeypatch):
    (whole,) = peaks(make(name, form), LENGTHS[1:])
    monkeypatch.setattr(masked, "_STRIPE_SCORES", 1 << 18)
    (stripes,) = peaks(make(name, form), LENGTHS[1:])
    assert stripes <= whole
    assert stripes < 2 * pairs_bytes(LENGTHS[1])


def test_an_array_of_all_pairs_would_be_seen():
    (held,) = peaks(make("dense"), LENGTHS[:1])
    import torch

    from focus_core.benchmark.prefill import peak_bytes

    every = peak_bytes(lambda: torch.ones(LENGTHS[0], LENGTHS[0], dtype=torch.bool).sum(), "cpu")
    assert held < pairs_bytes(LENGTHS[0]) <= every
