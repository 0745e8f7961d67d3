"""No cpu path holds an array of all pairs: what it holds grows with the tokens."""

import pytest
import torch

from benchmarks.memory import OWN_MODELS, pairs_growth, peaks
from focus_core.benchmark.prefill import peak_bytes
from focus_core.kernels import masked
from focus_core.kernels.focus import soft
from focus_core.variants import VARIANTS, make

LENGTHS = (2048, 4096)
STRIPED = [("sfa", {"no_overlap": "exclude"}), ("xattention", {"mode": "oracle"}), ("temperature", {})]
"""What makes a mask of single pairs, or their scores: a stripe at a time."""
PATHS = sorted(set(VARIANTS) - set(OWN_MODELS) - {"temperature"})


@pytest.mark.parametrize("name", PATHS)
def test_twice_the_tokens_take_about_twice_the_memory(name):
    short, long = peaks(make(name), LENGTHS)
    assert long - short < pairs_growth(LENGTHS)
    assert long < 3 * short


@pytest.mark.parametrize("name, form", STRIPED)
def test_masks_of_single_pairs_are_made_a_stripe_at_a_time(name, form, monkeypatch):
    monkeypatch.setattr(masked, "_STRIPE_SCORES", 1 << 18)
    monkeypatch.setattr(soft, "_CHUNK_CELLS", 1 << 18)
    short, long = peaks(make(name, form), LENGTHS)
    assert long - short < pairs_growth(LENGTHS)


def test_an_array_of_all_pairs_would_be_seen():
    each = [peak_bytes(lambda n=n: torch.ones(n, n, dtype=torch.bool).sum(), "cpu") for n in LENGTHS]
    assert each[1] - each[0] >= pairs_growth(LENGTHS)
